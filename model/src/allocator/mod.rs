//! A model of PyTorch's caching allocator: the memory that another `PYTORCH_CUDA_ALLOC_CONF` would have
//! reserved for the same requests. Sizes are bytes.
//!
//! * [`Conf`] parses the setting string.
//! * [`rounding`] turns a requested size into a block size and a segment size.
//! * [`Cache`] has the segments and blocks, and decides as the allocator of torch 2.11 does.
//! * [`first_with`] names the version of PyTorch that knows a setting first.
//! * [`replay`] runs a [`Log`] of requests through a `Cache` and returns peaks and failures.
//!
//! Rules, with the names of torch's own settings. "Small" requests are those of 1 MiB or less; they
//! come from segments of 2 MiB, others below 10 MiB from segments of `large_segment_size_mb` (20),
//! and larger ones get a separate segment, rounded up to 2 MiB. A segment serves only the stream and pool
//! that it was allocated for. Of the free blocks the best fit by (size, address) is taken. The rest of a
//! block is split off when it is 512 B or more (small, or expandable segments) or more than 1 MiB (large).
//!
//! Segments get the addresses that the driver would give them (`cache/addresses.rs`), which decide between free blocks of
//! one size. Private pools (CUDA graphs) keep their segments until no graph uses them.
//!
//! The limit is a capacity minus the memory outside of the cache at that time. When it is reached, all
//! free segments are released and the request is tried once more (a "retry"); with `max_split_size_mb`,
//! oversize blocks are released first. If the retry fails, the run ends out of memory. As in torch,
//! `garbage_collection_threshold` has an effect only with a memory fraction. A log may begin with
//! existing segments and blocks; they keep their addresses.

mod cache;
mod conf;
mod log;
mod replay;
pub mod rounding;
mod versions;

pub use cache::{BlockId, Cache, OutOfMemory, ReplayFailure, ReplayOutcome};
pub use conf::{Conf, ConfError};
pub use log::{Log, LogSegment, Request, Requests};
pub use replay::{bisected, replay, smallest_capacity};
pub use versions::{CONF_VARIABLE, SHARES_EXPANDABLE, TorchVersion, first_with};
