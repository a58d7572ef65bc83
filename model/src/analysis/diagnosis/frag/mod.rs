//! Fragmentation of PyTorch's cache at one moment: the reserved bytes that are in no block, the part of
//! them that is usable, and the lines whose blocks keep their segments reserved. Sizes are bytes.
//!
//! | free memory | is |
//! |---|---|
//! | releasable | segments without any block: torch frees them when a request needs the memory |
//! | pinned | the free parts of segments that contain a block |
//! | unusable | pinned ranges smaller than the pool's usual request |
//!
//! The **usual request** of a pool (small: blocks up to 1 MiB; large) is the size at or above which
//! half of all bytes were requested, over the whole run.

mod moment;
mod pins;
mod sizes;
#[cfg(test)]
mod tests;

pub use moment::{FragAt, MomentError, ROUNDED_NS, RequestSizes, find};
pub use pins::Pin;

use sizes::Sizes;

use serde::Serialize;
use vramtrace_format::DeviceId;

use crate::analysis::MomentFacts;
use crate::facts::{self, ProcessId};
use crate::replay::{CacheOomAt, SegmentAt};
use crate::symbols::Symbols;

/// One device's cache at one moment: the facts of `vramtrace frag`.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Frag {
    #[serde(flatten)]
    pub process: ProcessId,
    /// Null: the device is not known.
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    /// Null also where the trace has no times.
    #[serde(flatten)]
    pub moment: MomentFacts,
    pub reserved_bytes: u64,
    pub allocated_bytes: u64,
    /// Of the reserved, and of the allocated bytes, those without physical memory: it was unmapped and
    /// may be mapped again. Absent where there are none.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub reserved_paused_bytes: u64,
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub paused_bytes: u64,
    pub free_in_segments_bytes: u64,
    pub largest_free_block_bytes: u64,
    /// Of the free bytes: those in segments without a block.
    pub releasable_bytes: u64,
    /// Of the free bytes: those in segments with a block, in pieces smaller than the usual request.
    pub unusable_bytes: u64,
    pub peak_reserved_bytes: u64,
    pub peak_allocated_bytes: u64,
    /// 1 - peak allocated / peak reserved; null where nothing was reserved.
    pub fragmentation: Option<f64>,
    /// Earlier events are not in the file, and earlier peaks not known.
    #[serde(rename = "history_from_s", with = "facts::Seconds")]
    pub history_from_ns: u64,
    /// The last request that failed.
    pub out_of_memory: Option<CacheOomAt>,
    pub small: PoolFrag,
    pub large: PoolFrag,
    pub segments: u64,
    /// The lines that pin most first.
    #[serde(skip)]
    pub pins: Vec<Pin>,
    #[serde(skip)]
    pub symbols: Symbols,
}

/// The segments of one of the two pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct PoolFrag {
    pub segments: u64,
    #[serde(rename = "reserved_bytes")]
    pub reserved: u64,
    #[serde(rename = "allocated_bytes")]
    pub allocated: u64,
    #[serde(rename = "largest_free_block_bytes")]
    pub largest_free: u64,
    #[serde(rename = "releasable_bytes")]
    pub releasable: u64,
    #[serde(rename = "unusable_bytes")]
    pub unusable: u64,
    /// Half of all bytes were requested in requests of this size or more.
    #[serde(rename = "usual_request_bytes")]
    pub usual_request: u64,
}

impl PoolFrag {
    pub fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}

/// Whether a segment is of the pool of small blocks.
pub(in crate::analysis) fn is_small(segment: &SegmentAt) -> bool {
    let whole = segment.bytes <= sizes::SMALL_SEGMENT;
    segment.blocks.first().map_or(whole, |block| sizes::is_small(block.bytes))
}

/// Sums of the segments of one pool.
fn pool(segments: &[&SegmentAt], small: bool, usual_request: u64) -> PoolFrag {
    let mut pool = PoolFrag { usual_request, ..PoolFrag::default() };
    for segment in segments.iter().filter(|segment| is_small(segment) == small) {
        pool.segments += 1;
        pool.reserved = pool.reserved.saturating_add(segment.bytes);
        pool.allocated = pool.allocated.saturating_add(segment.allocated());
        pool.largest_free = pool.largest_free.max(segment.largest_hole());
        // PyTorch releases a segment to the driver only when it contains no block.
        if segment.blocks.is_empty() {
            // Unmapped memory is free already.
            let resident = segment.bytes.saturating_sub(segment.paused);
            pool.releasable = pool.releasable.saturating_add(resident);
            continue;
        }
        let unusable = segment.holes().map(|(_, bytes)| bytes).filter(|b| *b < usual_request);
        pool.unusable = pool.unusable.saturating_add(unusable.sum());
    }
    pool
}
