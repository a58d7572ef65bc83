//! The elements of a timeline, and the trait that a format implements. Times are ns on the common clock.

use std::borrow::Cow;
use std::io;
use std::rc::Rc;

use vramtrace_format::{DeviceId, DriverCause, Kind, Refused, StackId};

use super::TracedProcess;
use super::requester::Requester;
use crate::analysis::roles::Role;
use crate::replay::{FreeCause, Key, Live};
use crate::units::size;

/// Numbers of elements that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    pub allocations: u64,
    pub counters: u64,
    pub refusals: u64,
}

/// The requested part of the timeline.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeWindow {
    pub from_ns: Option<u64>,
    pub to_ns: Option<u64>,
    /// Leave out the blocks of a framework's cache.
    pub driver_only: bool,
}

/// `GPU 0`; `GPU ?` for memory whose device is not known, `host` for host memory.
pub(super) fn device_name(device: Option<DeviceId>) -> String {
    match device {
        None => "host".into(),
        Some(DeviceId::UNKNOWN) => "GPU ?".into(),
        Some(DeviceId(ordinal)) => format!("GPU {ordinal}"),
    }
}

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
    DriverOwn(DriverCause),
    Role(Role),
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
            Counter::Role(role) => role.name(),
        };
        name.into()
    }
}

/// The end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceEnd {
    Free(FreeCause),
    /// Live at the end of the timeline.
    Live,
    /// Events are missing here.
    Lost,
}

impl SliceEnd {
    pub(super) fn name(self) -> &'static str {
        match self {
            SliceEnd::Free(FreeCause::Freed) => "freed",
            SliceEnd::Free(FreeCause::WithContext) => "with_context",
            SliceEnd::Free(FreeCause::WithMemory) => "with_memory",
            SliceEnd::Free(FreeCause::Replaced) => "replaced",
            SliceEnd::Live => "live",
            SliceEnd::Lost => "lost",
        }
    }
}

/// The time from an allocation to its free.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    /// `None`: host memory.
    pub device: Option<DeviceId>,
    /// Slices of one device and lane never overlap. Blocks and driver memory have separate lanes.
    pub lane: u32,
    pub key: Key,
    pub live: Live,
    /// The function that allocated it.
    pub api: String,
    pub stream: u64,
    /// The thread that allocated it; 0: not known.
    pub tid: u32,
    /// Time of the allocation, and of the begin of the slice where the allocation is before the timeline.
    pub allocated_ns: u64,
    pub begin_ns: u64,
    /// The stack that allocated the memory, and the one that mapped it again after it had been unmapped.
    pub owner: StackId,
    pub woken_by: Option<StackId>,
    /// These two; `None`: the trace has no stack of it.
    pub who: Option<Rc<Requester>>,
    pub brought_back_by: Option<Rc<Requester>>,
    /// The role; `None`: a segment of a cache, or no memory of the device.
    pub role: Option<Role>,
}

impl Slice {
    /// `modeling.py:212 12.00 MiB`; with the function that allocated it where no stack is known.
    pub(super) fn name(&self) -> String {
        let who = self.who.as_ref().map(|who| who.name()).filter(|name| !name.is_empty());
        format!("{} {}", who.unwrap_or(&self.api), size(self.live.size))
    }

    /// Physical bytes; `None` for a block.
    pub(super) fn physical(&self) -> Option<u64> {
        (self.live.kind != Kind::Block).then(|| self.live.share())
    }
}

/// A refused request.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub device: DeviceId,
    pub kind: Option<Kind>,
    pub api: String,
    pub tid: u32,
    pub refused: Refused,
}

/// A phase that the program marked: that it begins, ends, or is a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExportedPhase<'n> {
    pub what: Edge,
    pub name: &'n str,
    /// The id of its name among the texts of the trace.
    pub id: u32,
    /// The thread of a nested phase. `None`: a range that any thread may end.
    pub tid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Begin,
    End,
    Moment,
}

/// What is drawn at one time. The device of a counter is `None` for host memory.
pub(super) enum Element<'e> {
    Counter(Option<DeviceId>, Counter, u64),
    Begin(&'e Slice),
    End(&'e Slice, SliceEnd),
    Refusal(&'e Refusal),
    Phase(ExportedPhase<'e>),
}

/// A format. Times never decrease within a process.
pub(super) trait Sink {
    /// Maximum number of lanes of a device, for driver memory and for blocks each. `None`: slices have no lanes.
    const LANES: Option<u32> = None;
    fn process(&mut self, process: &TracedProcess) -> io::Result<()>;
    fn write(&mut self, at_ns: u64, element: &Element) -> io::Result<()>;
    fn finish(self) -> io::Result<()>;
}
