//! PyTorch's caching allocator as a library: what another `PYTORCH_CUDA_ALLOC_CONF` would have
//! reserved for the same requests.
//!
//! * [`Conf`] reads the setting string.
//! * [`rounding`] turns a requested size into a block size and a segment size.
//! * [`Cache`] keeps segments and blocks and decides as the allocator of torch 2.11 does.
//! * [`replay`] runs a [`Log`] of requests through a `Cache` and says what came of it.
//!
//! Rules, with the names of torch's own settings. "Small" requests are those of 1 MiB or less; they
//! come from segments of 2 MiB, others below 10 MiB from segments of `large_segment_size_mb` (20),
//! and larger ones get a segment of their own, rounded up to 2 MiB. A block is never handed to
//! another stream or pool than the one that it was first taken for. A free block is the best fit by
//! (size, address). What is left of a block is split off when it is 512 B or more (small, or
//! expandable segments) or more than 1 MiB (large).
//!
//! The limit is a capacity less what others than the cache hold of it at that time. When it is met,
//! all free segments are released and the request is tried once more (a "retry"); with
//! `max_split_size_mb`, oversize blocks go first. Then the run ends in out of memory.
//! `garbage_collection_threshold` works under a memory fraction alone, as in torch. A log may begin
//! with segments and blocks that are there already; they keep their places.

mod cache;
mod conf;
mod log;
mod replay;
pub mod rounding;

pub use cache::{BlockId, Cache, OutOfMemory, Totals};
pub use conf::{Conf, ConfError};
pub use log::{Log, LogSegment, Request, Requests};
pub use replay::{ReplayFailure, ReplayOutcome, replay, smallest_capacity};
