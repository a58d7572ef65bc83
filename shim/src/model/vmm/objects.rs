//! The objects and who refers to them.

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

/// One physical object. `P` is what the caller wants kept between the announcement of its end and
/// the driver's answer (the ledger's entry).
#[derive(Debug)]
pub struct Object<P> {
    pub what: What,
    pub device: DeviceId,
    /// Bytes; 0 for an import that was not mapped yet.
    pub size: u64,
    /// The stack that made it; 0 until it is mapped.
    pub maker: StackId,
    /// References: handles, mappings, ties and calls under way that may become one of these.
    references: u32,
    /// Calls under way that took a reference away.
    dropping: u32,
    /// Announced as freed; some call may still revive it.
    ended: bool,
    pub parked: Option<P>,
}

/// What the last step did to an object, which the caller passes on to ledger, file and cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// The last reference goes with this call: announce the free, before asking the driver.
    Ends,
    /// Announced, and now every call that took a reference has returned: its bytes are free.
    /// The object is forgotten; its parked payload is handed out.
    Gone,
    /// The driver refused: it lives on. Take the announcement back.
    Revived,
}

#[derive(Debug)]
pub struct Objects<P> {
    live: Map<u64, Object<P>>,
    /// Numbers are ours and never reused: the driver reuses its handles.
    next: u64,
}

impl<P> Default for Objects<P> {
    fn default() -> Self {
        Objects { live: Map::default(), next: 1 }
    }
}

impl<P> Objects<P> {
    /// For one more.
    pub fn make_room(&mut self) -> Result<(), NoMemory> {
        self.live.make_room()
    }

    /// A new object with one reference. Returns its number.
    /// Without memory (see [`Objects::make_room`]) nothing is kept behind the number: its bytes stay
    /// counted.
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

    pub fn take(&mut self, number: u64) -> bool {
        match self.live.get_mut(&number) {
            Some(object) => {
                object.references += 1;
                true
            }
            None => false,
        }
    }

    /// Takes one reference away, before the driver is asked. Each is settled with [`settle`].
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

    /// The driver answered to a call that had taken a reference away. With `Change::Gone` comes
    /// the object itself.
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
