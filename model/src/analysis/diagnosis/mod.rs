//! What went wrong, and what would help: out-of-memory failures, leaks, fragmentation, other allocator settings.

pub mod frag;
pub mod leaks;
pub mod oom;
pub mod whatif;
