//! The elements of a timeline, and the trait that a format implements. Times are ns on the common clock.

use std::borrow::Cow;
use std::io;
use std::rc::Rc;

use vramtrace_format::{DeviceId, Kind, Refused};

use super::counter::Counter;
use super::phases::ExportedPhase;
use super::processes::TracedProcess;
use super::requester::Requester;
use crate::analysis::roles::Role;
use crate::replay::{FreeCause, Key, Live};
use crate::trace::Definitions;
use crate::units::size;

/// Numbers of elements that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    pub allocations: u64,
    pub counters: u64,
    pub refusals: u64,
}

/// Bytes by role, at [`Role::index`].
pub(super) type RoleSums = [u64; Role::ALL.len()];

/// The requested part of the timeline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    pub from_ns: Option<u64>,
    pub to_ns: Option<u64>,
    /// Allocations of fewer requested bytes are left out; counters include them.
    pub min_size: u64,
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

/// The end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceEnd {
    Freed,
    /// Its context was destroyed.
    WithContext,
    /// A block whose memory was freed.
    WithMemory,
    /// Its address was allocated again; the free is missing.
    Replaced,
    /// Live at the end of the timeline.
    Live,
    /// Events are missing here.
    Lost,
}

impl From<FreeCause> for SliceEnd {
    fn from(how: FreeCause) -> SliceEnd {
        match how {
            FreeCause::Freed => SliceEnd::Freed,
            FreeCause::WithContext => SliceEnd::WithContext,
            FreeCause::WithMemory => SliceEnd::WithMemory,
            FreeCause::Replaced => SliceEnd::Replaced,
        }
    }
}

impl SliceEnd {
    pub(super) fn name(self) -> &'static str {
        match self {
            SliceEnd::Freed => "freed",
            SliceEnd::WithContext => "with_context",
            SliceEnd::WithMemory => "with_memory",
            SliceEnd::Replaced => "replaced",
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
    pub api: Rc<str>,
    pub stream: u64,
    /// The thread that allocated it; 0: not known.
    pub tid: u32,
    /// Time of the allocation. The slice may begin later.
    pub allocated_ns: u64,
    /// The requester; `None`: the trace has no stack of it.
    pub who: Option<Rc<Requester>>,
    /// The call that mapped its memory again after it had been unmapped.
    pub brought_back_by: Option<Rc<Requester>>,
    /// The role; `None`: a segment of a cache, or no memory of the device.
    pub role: Option<Role>,
}

impl Slice {
    /// Whether it is a block of a framework's cache; else it is driver memory.
    pub(super) fn is_block(&self) -> bool {
        self.live.kind == Kind::Block
    }

    /// `modeling.py:212 12.00 MiB`; with the function that allocated it where no stack is known.
    pub(super) fn name(&self) -> String {
        let who = self.who.as_ref().map(|who| who.name()).filter(|name| !name.is_empty());
        format!("{} {}", who.unwrap_or(&self.api), size(self.live.size))
    }

    /// Physical bytes; `None` for a block.
    pub(super) fn physical(&self) -> Option<u64> {
        (!self.is_block()).then(|| self.live.share())
    }

    /// What viewers show of it, by name.
    pub(super) fn details(&self) -> Vec<(&'static str, Detail<'_>)> {
        let mut all = vec![
            ("size", Detail::Text(size(self.live.size).into())),
            ("bytes", Detail::Number(self.live.size)),
            ("address", Detail::Pointer(self.key.number)),
            ("stream", Detail::Pointer(self.stream)),
            ("tid", Detail::Number(self.tid.into())),
            ("allocated_s", Detail::seconds(self.allocated_ns)),
            ("api", Detail::Text((&*self.api).into())),
        ];
        all.extend(self.role.map(|role| ("role", Detail::Text(role.name().into()))));
        all.extend(self.physical().map(|bytes| ("physical_bytes", Detail::Number(bytes))));
        let words = self.who.iter().flat_map(|who| who.words());
        all.extend(words.map(|(name, words)| (name, Detail::Text(words.into()))));
        let by = self.brought_back_by.as_ref();
        all.extend(by.map(|by| ("brought_back_by", Detail::Text(by.name().into()))));
        all
    }

    /// The same at its end.
    pub(super) fn end_details(&self, at_ns: u64, how: SliceEnd) -> [(&'static str, Detail<'_>); 2] {
        let lifetime_ns = at_ns.saturating_sub(self.allocated_ns);
        [("end", Detail::Text(how.name().into())), ("lifetime_s", Detail::seconds(lifetime_ns))]
    }
}

/// A value that viewers show.
pub(super) enum Detail<'s> {
    Text(Cow<'s, str>),
    Number(u64),
    Pointer(u64),
    Seconds(f64),
}

impl Detail<'_> {
    fn seconds(ns: u64) -> Detail<'static> {
        Detail::Seconds(ns as f64 / 1e9)
    }
}

/// A refused request.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub device: DeviceId,
    pub kind: Option<Kind>,
    pub api: Rc<str>,
    pub tid: u32,
    pub refused: Refused,
}

/// A format. Times never decrease within a process.
pub(super) trait Sink {
    fn process(&mut self, process: &TracedProcess, definitions: &Definitions) -> io::Result<()>;
    /// `device` is `None` for host memory.
    fn counter(
        &mut self,
        at_ns: u64,
        device: Option<DeviceId>,
        what: Counter,
        bytes: u64,
    ) -> io::Result<()>;
    fn begin(&mut self, at_ns: u64, slice: &Slice) -> io::Result<()>;
    fn end(&mut self, at_ns: u64, slice: &Slice, how: SliceEnd) -> io::Result<()>;
    fn refusal(&mut self, at_ns: u64, refusal: &Refusal) -> io::Result<()>;
    /// A format without phases ignores them.
    fn phase(&mut self, _at_ns: u64, _phase: &ExportedPhase) -> io::Result<()> {
        Ok(())
    }
    /// The most lanes of a device, for driver memory and for blocks each. `None`: slices have no lanes.
    fn lanes(&self) -> Option<u32> {
        None
    }
    /// Whether [`Requester::stack`] is filled.
    fn whole_stacks(&self) -> bool {
        false
    }
    /// Bytes by role of a device, after a change.
    fn roles(&mut self, _at_ns: u64, _device: DeviceId, _sums: &RoleSums) -> io::Result<()> {
        Ok(())
    }
    fn finish(self) -> io::Result<()>;
}
