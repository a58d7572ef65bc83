//! What only the segments of PyTorch's cache tell.

use vramtrace_format::DeviceId;

use crate::analysis::Process;
use crate::replay::SegmentAt;

/// What only the segments themselves tell.
pub(super) struct SegmentCounts {
    pub segments: u64,
    pub held_by_one: u64,
    pub largest_hole: u64,
}

impl SegmentCounts {
    pub fn of(process: &Process, id: DeviceId) -> SegmentCounts {
        let all = process.state.segments();
        let here: Vec<&SegmentAt> = all.iter().filter(|segment| segment.device == id).collect();
        SegmentCounts {
            segments: here.len() as u64,
            held_by_one: here.iter().filter(|segment| segment.is_pinned_by_one()).count() as u64,
            largest_hole: here.iter().map(|segment| segment.largest_hole()).max().unwrap_or(0),
        }
    }
}
