//! A physical object and its reference count.

use crate::model::ledger::Removed;
use vramtrace_format::{DeviceId, StackId};

/// What an object is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// VRAM of a device: counts.
    Device,
    /// Host memory, plain or of a NUMA node: pinned, no VRAM.
    Host,
    /// Another process's memory. Its size is not known before it is mapped.
    Imported,
    /// A multicast object: a handle that can be mapped, without memory.
    Multicast,
}

/// One physical object.
#[derive(Debug)]
pub struct Object {
    pub what: What,
    pub device: DeviceId,
    /// Bytes; 0 for an import that was not mapped yet.
    pub size: u64,
    /// The stack that created it; 0 until it is mapped.
    pub maker: StackId,
    /// References: handles, mappings, ties, and calls in progress that may create one of these.
    pub(super) references: u32,
    /// Calls in progress that dropped a reference.
    dropping: u32,
    /// Announced as freed; a call that fails may still revive it.
    ended: bool,
    /// The ledger's entry, from the announcement of its end until the driver's result.
    pub parked: Option<Removed>,
}

/// The effect of a settled reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// Announced, and every call that dropped a reference has returned: its bytes are free.
    Gone,
    /// The driver refused: the object still exists, and the announcement must be undone.
    Revived,
}

impl Object {
    /// With one reference.
    pub(super) fn new(what: What, device: DeviceId, size: u64) -> Object {
        let (maker, references, dropping, ended, parked) = (StackId(0), 1, 0, false, None);
        Object { what, device, size, maker, references, dropping, ended, parked }
    }

    /// Drops one reference before the driver's call. Each is [settled](Object::settle). True: it is the last one, and the free
    /// is announced before the driver's call.
    pub(super) fn begin_drop(&mut self) -> bool {
        self.references = self.references.saturating_sub(1);
        self.dropping += 1;
        let ends = self.references == 0 && !self.ended;
        self.ended |= ends;
        ends
    }

    /// Settles a dropped reference after the driver's call.
    pub(super) fn settle(&mut self, done: bool) -> Change {
        self.dropping = self.dropping.saturating_sub(1);
        if done {
            let is_gone = self.references == 0 && self.dropping == 0;
            return if is_gone { Change::Gone } else { Change::Nothing };
        }
        self.references += 1;
        if std::mem::take(&mut self.ended) { Change::Revived } else { Change::Nothing }
    }
}
