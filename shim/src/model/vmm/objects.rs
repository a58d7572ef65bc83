//! The physical objects and their reference counts.

use crate::runtime::fallible::MakeRoom;
use crate::runtime::fallible_map::Map;
use crate::runtime::hash_table::NoMemory;
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

/// One physical object. `P` is the caller's data (the ledger's entry), kept from the announcement of
/// its end until the driver's result.
#[derive(Debug)]
pub struct Object<P> {
    pub what: What,
    pub device: DeviceId,
    /// Bytes; 0 for an import that was not mapped yet.
    pub size: u64,
    /// The stack that created it; 0 until it is mapped.
    pub maker: StackId,
    /// References: handles, mappings, ties, and calls in progress that may create one of these.
    references: u32,
    /// Calls in progress that dropped a reference.
    dropping: u32,
    /// Announced as freed; a call that fails may still revive it.
    ended: bool,
    pub parked: Option<P>,
}

/// The effect of a step on an object, which the caller applies to ledger, file and cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// The call drops the last reference: the free is announced before the driver's call.
    Ends,
    /// Announced, and every call that dropped a reference has returned: its bytes are free. The object
    /// is removed, and its parked payload returned.
    Gone,
    /// The driver refused: the object still exists, and the announcement must be undone.
    Revived,
}

#[derive(Debug)]
pub struct Objects<P> {
    live: Map<u64, Object<P>>,
    /// Objects have their own numbers, which are never reused; the driver reuses handles.
    next: u64,
}

impl<P> Default for Objects<P> {
    fn default() -> Self {
        Objects { live: Map::default(), next: 1 }
    }
}

impl<P> Objects<P> {
    /// Makes room for one more object.
    pub fn make_room(&mut self) -> Result<(), NoMemory> {
        self.live.make_room()
    }

    /// A new object with one reference. Returns its number. Without host memory (see
    /// [`Objects::make_room`]) the object is not stored: its bytes stay counted.
    pub fn create(&mut self, what: What, device: DeviceId, size: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        let object = Object {
            what,
            device,
            size,
            maker: StackId(0),
            references: 1,
            dropping: 0,
            ended: false,
            parked: None,
        };
        let _ = self.live.insert(number, object);
        number
    }

    pub fn get(&self, number: u64) -> Option<&Object<P>> {
        self.live.get(&number)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Object<P>> {
        self.live.get_mut(&number)
    }

    /// Adds a reference to an object. False: there is no such object.
    pub fn add_reference(&mut self, number: u64) -> bool {
        match self.live.get_mut(&number) {
            Some(object) => {
                object.references += 1;
                true
            }
            None => false,
        }
    }

    /// Drops one reference before the driver's call. Each is settled with [`settle`].
    ///
    /// [`settle`]: Objects::settle
    pub fn begin_drop(&mut self, number: u64) -> Change {
        let Some(object) = self.live.get_mut(&number) else { return Change::Nothing };
        object.references = object.references.saturating_sub(1);
        object.dropping += 1;
        if object.references == 0 && !object.ended {
            object.ended = true;
            return Change::Ends;
        }
        Change::Nothing
    }

    /// Settles a dropped reference after the driver's call. With `Change::Gone` the object itself is
    /// returned.
    pub fn settle(&mut self, number: u64, done: bool) -> (Change, Option<Object<P>>) {
        let Some(object) = self.live.get_mut(&number) else { return (Change::Nothing, None) };
        object.dropping = object.dropping.saturating_sub(1);
        if !done {
            object.references += 1;
            if object.ended {
                object.ended = false;
                return (Change::Revived, None);
            }
        } else if object.references == 0 && object.dropping == 0 {
            return (Change::Gone, self.live.remove(&number));
        }
        (Change::Nothing, None)
    }

    #[cfg(test)]
    pub fn references(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.live.iter().map(|(number, object)| (*number, object.references))
    }
}
