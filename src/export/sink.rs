//! What a timeline consists of, and what a format has to draw of it.

use std::io;
use std::rc::Rc;

use vramtrace_format::{DeviceId, Kind, Refused};

use super::counter::Counter;
use super::phases::ExportedPhase;
use super::processes::TracedProcess;
use super::requester::Requester;
use crate::analysis::roles::Role;
use crate::replay::{Key, Live};
use crate::trace::Definitions;
use crate::units::size;

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    pub allocations: u64,
    pub counters: u64,
    pub refusals: u64,
    /// Of the allocations: those that are only in counters.
    pub without_lane: u64,
}

/// Bytes by role, at [`Role::index`].
pub type RoleSums = [u64; Role::ALL.len()];

/// What part of the timeline is wanted. Times in ns on the common clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    pub from_ns: Option<u64>,
    pub to_ns: Option<u64>,
    /// Allocations that asked for less are left out; counters count them.
    pub min_size: u64,
    /// Without the blocks of a framework's cache.
    pub driver_only: bool,
}

/// `GPU 0`; `GPU ?` for memory whose device is not known, `host` for host memory.
pub fn device_name(device: Option<DeviceId>) -> String {
    match device {
        None => "host".into(),
        Some(DeviceId::UNKNOWN) => "GPU ?".into(),
        Some(DeviceId(ordinal)) => format!("GPU {ordinal}"),
    }
}

/// How a slice ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceEnd {
    Freed,
    WithContext,
    /// A block: the memory below it was given back.
    WithMemory,
    Replaced,
    /// Live where the timeline ends.
    Live,
    /// Events are missing here.
    Lost,
}

impl SliceEnd {
    pub fn name(self) -> &'static str {
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

/// An allocation's time.
#[derive(Clone, Debug)]
pub struct Slice {
    /// `None`: host memory.
    pub device: Option<DeviceId>,
    /// Slices of one device and lane never overlap; blocks have lanes of their own.
    pub lane: u32,
    pub key: Key,
    pub live: Live,
    /// The entry point that allocated it.
    pub api: Rc<str>,
    pub stream: u64,
    /// Of the thread that allocated it; 0 = not known.
    pub tid: u32,
    /// When it was allocated, on the common clock; the slice may begin later.
    pub allocated_ns: u64,
    /// Who wanted it; `None` where the trace has no stack of it.
    pub who: Option<Rc<Requester>>,
    /// Who mapped memory for it again, after it had been unmapped.
    pub brought_back_by: Option<Rc<Requester>>,
    /// What it is for; `None`: it is a segment of a cache, or not known to the device.
    pub role: Option<Role>,
}

impl Slice {
    /// Of a framework's cache; else memory that the driver gave.
    pub fn is_block(&self) -> bool {
        self.live.kind == Kind::Block
    }

    /// `modeling.py:212 12.00 MiB`; by its call where no stack is known.
    pub fn name(&self) -> String {
        let who = self.who.as_ref().map(|who| who.name()).filter(|name| !name.is_empty());
        format!("{} {}", who.unwrap_or(&self.api), size(self.live.size))
    }

    /// Its share of physical memory; a block has none.
    pub fn physical(&self) -> Option<u64> {
        (!self.is_block()).then(|| self.live.share())
    }
}

#[derive(Clone, Debug)]
pub struct Refusal {
    pub device: DeviceId,
    pub kind: Option<Kind>,
    pub api: Rc<str>,
    pub tid: u32,
    pub refused: Refused,
}

impl Refusal {
    pub fn by(&self) -> &'static str {
        self.refused.by.name()
    }
}

/// A format. Times are ns on the common clock, and never run back within a process.
pub trait Sink {
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
    /// Formats without a place for phases leave them out.
    fn phase(&mut self, _at_ns: u64, _phase: &ExportedPhase) -> io::Result<()> {
        Ok(())
    }
    /// How many slices of a device may lie above each other, of its blocks the same. `None`: slices
    /// have no lanes.
    fn lanes(&self) -> Option<u32> {
        None
    }
    /// Are stacks wanted in whole?
    fn whole_stacks(&self) -> bool {
        false
    }
    /// What the memory of a device is for, after something changed.
    fn roles(&mut self, _at_ns: u64, _device: DeviceId, _sums: &RoleSums) -> io::Result<()> {
        Ok(())
    }
    fn finish(self) -> io::Result<()>;
}
