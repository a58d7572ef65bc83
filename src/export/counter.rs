//! The counters of timelines.

use vramtrace_format::{Cause, Kind};

/// What a counter counts, in bytes.
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
    /// Memory that the driver took for itself, without contexts.
    DriverOwn(Cause),
    /// Allocations, or blocks, that have no lane: too small, too many.
    Small,
    SmallBlocks,
}

impl Counter {
    pub(super) const COUNT: usize = 23 + Cause::COUNT;

    /// Kinds of memory are numbered from 1 to 11.
    pub(super) fn index(self) -> usize {
        match self {
            Counter::Live => 0,
            Counter::Kind(kind) => kind as usize,
            Counter::PoolUsed => 12,
            Counter::GraphUsed => 13,
            Counter::Process => 14,
            Counter::Cap => 15,
            Counter::Allocated => 16,
            Counter::Reserved => 17,
            Counter::Small => 18,
            Counter::SmallBlocks => 19,
            Counter::AllocatedPaused => 20,
            Counter::ReservedPaused => 21,
            Counter::Paused => 22,
            Counter::DriverOwn(cause) => 23 + cause as usize,
        }
    }

    pub(super) fn all() -> impl Iterator<Item = Counter> {
        let others = [
            Counter::PoolUsed,
            Counter::GraphUsed,
            Counter::Process,
            Counter::Cap,
            Counter::Allocated,
            Counter::Reserved,
            Counter::AllocatedPaused,
            Counter::ReservedPaused,
            Counter::Paused,
            Counter::Small,
            Counter::SmallBlocks,
        ];
        [Counter::Live]
            .into_iter()
            .chain(Kind::ALL.into_iter().filter(|kind| *kind != Kind::Block).map(Counter::Kind))
            .chain(others)
            .chain(Cause::ALL.into_iter().map(Counter::DriverOwn))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
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
            Counter::DriverOwn(cause) => match cause {
                Cause::Modules => "driver_modules",
                Cause::LocalMemory => "driver_local_memory",
                Cause::Heap => "driver_heap",
                Cause::Streams => "driver_streams",
                Cause::Graphs => "driver_graphs",
                Cause::Sharing => "driver_sharing",
                Cause::Context => "driver_context",
                Cause::Other => "driver_other",
            },
        }
    }
}
