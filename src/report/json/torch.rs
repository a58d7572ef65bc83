//! The key `torch` of a device in `report --json`: PyTorch's cache.

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::process::seconds;
use crate::analysis::oom::{Oom, OomAnswer, PostMortem};
use crate::analysis::{Level, Process};
use crate::replay::DeviceState;
use crate::report::segments::SegmentCounts;

/// PyTorch's cache on one device. Absent where no blocks were recorded.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TorchFacts {
    pub allocated_bytes: u64,
    pub reserved_bytes: u64,
    /// Of the allocated bytes, those without physical memory, which was unmapped and may be mapped
    /// again; the others; and of the reserved bytes those without physical memory.
    pub paused_bytes: u64,
    pub resident_bytes: u64,
    pub reserved_paused_bytes: u64,
    pub peak_allocated_bytes: u64,
    pub peak_allocated_at_s: f64,
    pub peak_reserved_bytes: u64,
    pub peak_reserved_at_s: f64,
    /// 1 - peak allocated / peak reserved.
    pub fragmentation: Option<f64>,
    pub free_in_segments_bytes: u64,
    /// 0 where samples of the blocks were recorded.
    pub largest_free_block_bytes: u64,
    pub segments: u64,
    /// Segments with a single block that takes less than half of the segment.
    pub segments_held_by_one_block: u64,
    pub blocks: u64,
    pub allocations: u64,
    pub frees: u64,
    /// Of the allocated bytes, those outside of all memory that driver calls allocated.
    pub outside_bytes: u64,
    /// How often PyTorch's own totals differed from these.
    pub disagreements: u64,
    /// The failure that the run ended with; absent where there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<FatalFacts>,
}

/// A failure, with the keys of `oom --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FatalFacts {
    #[serde(flatten)]
    pub oom: Oom,
    #[serde(flatten)]
    pub answer: OomAnswer,
}

/// The value of `torch`. `None`: no blocks were recorded.
pub(super) fn facts(process: &Process, id: DeviceId, device: &DeviceState) -> Option<TorchFacts> {
    let cache = &device.cache;
    if !cache.is_used() {
        return None;
    }
    let counts = SegmentCounts::of(process, id);
    let of_cache = |fatal: &&PostMortem| fatal.oom.device == id && fatal.oom.level == Level::Tensor;
    let fatal = process.fatal().iter().find(of_cache);
    Some(TorchFacts {
        allocated_bytes: cache.allocated,
        reserved_bytes: cache.reserved,
        paused_bytes: cache.paused,
        resident_bytes: cache.resident(),
        reserved_paused_bytes: cache.reserved_paused,
        peak_allocated_bytes: cache.peak_allocated.bytes,
        peak_allocated_at_s: seconds(cache.peak_allocated.time_ns),
        peak_reserved_bytes: cache.peak_reserved.bytes,
        peak_reserved_at_s: seconds(cache.peak_reserved.time_ns),
        fragmentation: cache.fragmentation(),
        free_in_segments_bytes: cache.free(),
        largest_free_block_bytes: counts.largest_hole.unwrap_or(0),
        segments: counts.segments,
        segments_held_by_one_block: counts.held_by_one,
        blocks: cache.blocks,
        allocations: cache.allocations,
        frees: cache.frees,
        outside_bytes: cache.outside,
        disagreements: cache.disagreements,
        out_of_memory: fatal
            .map(|fatal| FatalFacts { oom: fatal.oom.clone(), answer: OomAnswer::of(fatal) }),
    })
}
