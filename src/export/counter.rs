//! The counters of timelines.

use std::borrow::Cow;

use vramtrace_format::{Cause, Kind};

/// What a counter counts, in bytes. A part of a timeline begins with them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Counter {
    /// Physical bytes of all allocations of the process on the device.
    Live,
    /// Bytes of one kind. Host memory has no device.
    Kind(Kind),
    /// Bytes in use inside what the pools, or the graphs, reserved.
    PoolUsed,
    GraphUsed,
    /// Bytes that nvidia-smi shows for the process.
    Process,
    /// The cap in force.
    Cap,
    /// Bytes of a framework's blocks.
    Allocated,
    /// Bytes of the segments that contain blocks.
    Reserved,
    /// The unmapped parts of `Allocated` and `Reserved`.
    AllocatedPaused,
    ReservedPaused,
    /// All unmapped bytes whose reservation stays, also outside of a framework's cache.
    Paused,
    /// Allocations, or blocks, that have no lane: too small, too many.
    Small,
    SmallBlocks,
    /// Memory that the driver took for itself, without contexts.
    DriverOwn(Cause),
}

impl Counter {
    pub(super) fn name(self) -> Cow<'static, str> {
        let name = match self {
            Counter::Live => "live",
            Counter::Kind(kind) => kind.name(),
            Counter::PoolUsed => "pool_used",
            Counter::GraphUsed => "graph_used",
            Counter::Process => "process",
            Counter::Cap => "cap",
            Counter::Allocated => "allocated",
            Counter::Reserved => "reserved",
            Counter::AllocatedPaused => "allocated_paused",
            Counter::ReservedPaused => "reserved_paused",
            Counter::Paused => "paused",
            Counter::Small => "small_allocations",
            Counter::SmallBlocks => "small_blocks",
            Counter::DriverOwn(cause) => return format!("driver_{}", cause.name()).into(),
        };
        name.into()
    }
}
