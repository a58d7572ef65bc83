//! Figures of one device that are computed from the segments of PyTorch's caching allocator.

use vramtrace_format::DeviceId;

use crate::analysis::Process;
use crate::replay::SegmentAt;

pub(super) struct SegmentCounts {
    pub segments: u64,
    /// Segments with a single block that takes less than half of the segment.
    pub held_by_one: u64,
    /// Bytes of the largest free gap in a segment. `None`: samples of the blocks were recorded.
    pub largest_hole: Option<u64>,
}

impl SegmentCounts {
    pub(super) fn of(process: &Process, id: DeviceId) -> SegmentCounts {
        let all = process.state.segments();
        let here: Vec<&SegmentAt> = all.iter().filter(|segment| segment.device == id).collect();
        let segments = here.len() as u64;
        if process.definitions.samples_blocks() {
            return SegmentCounts { segments, held_by_one: 0, largest_hole: None };
        }
        let largest = here.iter().map(|segment| segment.largest_hole()).max().unwrap_or(0);
        SegmentCounts {
            segments,
            held_by_one: here.iter().filter(|segment| segment.is_pinned_by_one()).count() as u64,
            largest_hole: Some(largest),
        }
    }
}
