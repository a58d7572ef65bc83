//! PyTorch's allocator: its blocks, its snapshots, its settings.

mod allocator_truth;
mod blocks;
mod blocks_export;
mod forward;
mod frag;
mod recorded;
mod requests;
mod sampled;
mod sleeping;
mod sleeping_commands;
mod snapshot_export;
mod streams;
mod whatif;
