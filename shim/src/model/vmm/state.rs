//! Handles, mappings and ties of the process, and the references that they hold on objects.

use crate::runtime::fallible::{MakeRoom, TryPush, vec_of};
use crate::runtime::fallible_map::Map;
use crate::runtime::hash_table::NoMemory;
use vramtrace_format::address_space::{self, AddressSpace, Freed, Mapping, Taken};
use vramtrace_format::{DeviceId, StackId};

use super::objects::{Change, Object, What};
use super::ties::{Owner, Region, Tie, Ties};

/// References dropped by a call in progress, to be passed to [`State::settle`].
#[must_use = "pass it to `settle`, or its objects are never removed"]
#[derive(Debug, Default)]
pub struct Dropped {
    /// An object's number for each reference.
    references: Vec<u64>,
    /// Objects whose last reference this was: announce their free before the call of the driver.
    pub ended: Vec<u64>,
    undo: Undo,
}

impl Dropped {
    pub fn is_empty(&self) -> bool {
        self.references.is_empty()
    }
}

#[derive(Debug, Default)]
enum Undo {
    #[default]
    Nothing,
    Handle(u64, u64),
    Mappings(Taken),
    Ties(Owner, Vec<Tie>),
}

/// The result of settling dropped references.
#[derive(Debug, Default)]
pub struct Settled {
    /// Objects that have ended. Without a parked entry the end was not announced before.
    pub ended: Vec<(u64, Object)>,
    /// Announced as freed, but alive.
    pub revived: Vec<u64>,
    /// Mappings that were restored.
    pub remapped: Vec<Mapping>,
}

#[derive(Debug, Clone, Copy)]
struct Handle {
    object: u64,
    count: u32,
}

#[derive(Debug, Default)]
pub struct State {
    /// By their numbers, which are never given again; the driver reuses handles.
    objects: Map<u64, Object>,
    last: u64,
    handles: Map<u64, Handle>,
    pub space: AddressSpace,
    ties: Ties,
}

impl State {
    pub fn object(&self, number: u64) -> Option<&Object> {
        self.objects.get(&number)
    }

    pub fn object_mut(&mut self, number: u64) -> Option<&mut Object> {
        self.objects.get_mut(&number)
    }

    pub fn by_handle(&self, handle: u64) -> Option<u64> {
        self.handles.get(&handle).map(|known| known.object)
    }

    /// Makes room for one more object and its handle, before the driver's call.
    pub fn make_room(&mut self) -> Result<(), NoMemory> {
        self.handles.make_room()?;
        self.objects.make_room()
    }

    /// The driver created an object with `handle`. An object that still has this handle was released by
    /// a call that was not seen; it is returned in `Settled`.
    pub fn created(
        &mut self,
        handle: u64,
        what: What,
        device: DeviceId,
        size: u64,
    ) -> (u64, Settled) {
        let stale = self.forget_handle(handle);
        self.last += 1;
        let object = self.last;
        // Without host memory (see `make_room`) its bytes stay counted.
        let _ = self.objects.insert(object, Object::new(what, device, size));
        let _ = self.handles.insert(handle, Handle { object, count: 1 });
        (object, stale)
    }

    /// An import returned `handle`: a second reference if the handle is known (the same object imported
    /// again), otherwise a new object. Returns its number.
    pub fn imported(&mut self, handle: u64, device: DeviceId) -> u64 {
        match self.hold_handle(handle) {
            Some(object) => {
                let _ = self.held_by_handle(object, handle);
                object
            }
            None => self.created(handle, What::Imported, device, 0).0,
        }
    }

    /// `None`: there is no such object.
    fn hold(&mut self, object: u64) -> Option<u64> {
        self.objects.get_mut(&object)?.references += 1;
        Some(object)
    }

    /// Adds a reference for a call that is about to refer to the handle's object, so that its end
    /// cannot be announced before the call's result is known.
    pub fn hold_handle(&mut self, handle: u64) -> Option<u64> {
        self.hold(self.by_handle(handle)?)
    }

    /// The same for the object that is mapped at `address`.
    pub fn hold_address(&mut self, address: u64) -> Option<u64> {
        self.hold(self.space.at(address)?.object)
    }

    /// The same for all objects mapped in a range, each with its part of the range.
    pub fn hold_range(
        &mut self,
        address: u64,
        size: u64,
    ) -> Result<Vec<(u64, u64, u64)>, NoMemory> {
        let end = address.saturating_add(size);
        let State { space, objects, .. } = self;
        let mut held = vec_of(space.touching(address, size).count())?;
        for part in space.touching(address, size) {
            if let Some(object) = objects.get_mut(&part.object) {
                object.references += 1;
                let from = part.address.max(address);
                let size = (part.address + part.size).min(end) - from;
                held.try_push((part.object, from - address, size))?;
            }
        }
        Ok(held)
    }

    /// Drops the reference of a call that failed.
    pub fn drop_hold(&mut self, object: u64) -> Settled {
        let mut dropped = Dropped::default();
        self.drop_reference(object, &mut dropped);
        self.settle(dropped, true)
    }

    /// A held reference becomes that of `handle`, which the driver returned for the object.
    pub fn held_by_handle(&mut self, object: u64, handle: u64) -> Settled {
        match self.handles.get_mut(&handle) {
            Some(known) if known.object == object => {
                known.count += 1;
                Settled::default()
            }
            _ => {
                let stale = self.forget_handle(handle);
                // Without host memory its release will not be recognised, and the reference stays.
                let _ = self.handles.insert(handle, Handle { object, count: 1 });
                stale
            }
        }
    }

    /// A held reference becomes a mapping's. Earlier mappings in the range were removed by calls that
    /// were not seen. `by`: the stack of the call.
    pub fn held_by_mapping(&mut self, mapping: Mapping, by: StackId) -> Settled {
        let stale = self.begin_unmap(mapping.address, mapping.size);
        let bytes = self.object(mapping.object).map_or(0, |object| object.size);
        let put = self.space.put(mapping, by, bytes);
        // Each piece holds the object.
        for _ in put.pieces.iter().skip(1) {
            self.hold(mapping.object);
        }
        let mut settled = self.settle(stale, true);
        if put.pieces.is_empty() {
            settled.absorb(self.drop_hold(mapping.object));
        }
        settled
    }

    /// A held reference becomes a tie's.
    pub fn held_by_tie(&mut self, owner: Owner, region: Region, object: u64) {
        self.ties.put(owner, Tie { region, object });
    }

    /// Before cuMemRelease. `None`: the handle is not known.
    pub fn begin_release(&mut self, handle: u64) -> Option<Dropped> {
        let known = self.handles.get_mut(&handle)?;
        let object = known.object;
        known.count -= 1;
        if known.count == 0 {
            self.handles.remove(&handle);
        }
        let mut dropped = Dropped { undo: Undo::Handle(handle, object), ..Dropped::default() };
        self.drop_reference(object, &mut dropped);
        Some(dropped)
    }

    /// Before cuMemUnmap. Without host memory the references stay.
    pub fn begin_unmap(&mut self, address: u64, size: u64) -> Dropped {
        let objects = &self.objects;
        let maker = |number| {
            let object = objects.get(&number);
            let (stack, device) = object
                .map_or((StackId(0), DeviceId::UNKNOWN), |object| (object.maker, object.device));
            address_space::Owner { stack, device }
        };
        let taken = self.space.take(address, size, maker);
        // First adds references for the parts that stay, so that no object ends in between.
        for mapping in &taken.rest {
            self.hold(mapping.object);
        }
        let mut dropped = Dropped::default();
        for mapping in &taken.whole {
            self.drop_reference(mapping.object, &mut dropped);
        }
        dropped.undo = Undo::Mappings(taken);
        dropped
    }

    /// Before cuMemAddressFree. As for all frees, the free of a reservation is announced before the driver's call; otherwise
    /// another thread could be given the addresses first. `None`: nothing is announced, since the driver will refuse
    /// (something is mapped there), or since the reservation is not known.
    pub fn begin_free(&mut self, address: u64, size: u64) -> Option<Freed> {
        let known = self.space.reservation_at(address)?;
        let exact = known.address == address && known.size == size;
        let empty = self.space.touching(address, size).next().is_none();
        if exact && empty { self.space.free(address) } else { None }
    }

    /// Before ties are cut: an unbind, an unmapped tile, an array that is destroyed.
    pub fn begin_untie(&mut self, owner: Owner, region: Option<Region>) -> Dropped {
        let ties = self.ties.take(owner, region);
        let mut dropped = Dropped::default();
        for tie in &ties {
            self.drop_reference(tie.object, &mut dropped);
        }
        dropped.undo = Undo::Ties(owner, ties);
        dropped
    }

    /// After the driver's call: `done`, or it was refused.
    pub fn settle(&mut self, dropped: Dropped, done: bool) -> Settled {
        let mut settled = Settled::default();
        for number in &dropped.references {
            match self.objects.get_mut(number).map(|object| object.settle(done)) {
                Some(Change::Gone) => {
                    self.space.forget_object(*number);
                    if let Some(object) = self.objects.remove(number) {
                        // Without host memory its bytes stay counted.
                        let _ = settled.ended.try_push((*number, object));
                    }
                }
                Some(Change::Revived) => drop(settled.revived.try_push(*number)),
                Some(Change::Nothing) | None => {}
            }
        }
        if !done {
            self.undo(dropped.undo, &mut settled);
        }
        self.untie_ended_owners(&mut settled);
        settled
    }

    fn undo(&mut self, undo: Undo, settled: &mut Settled) {
        match undo {
            Undo::Nothing => {}
            Undo::Handle(handle, object) => {
                if let Ok(known) = self.handles.get_or_insert(handle, Handle { object, count: 0 }) {
                    known.count += 1;
                }
            }
            Undo::Mappings(taken) => {
                for mapping in &taken.rest {
                    // The whole mapping has its reference again, so this is never the last one.
                    settled.absorb(self.drop_hold(mapping.object));
                }
                self.space.put_back(&taken);
                absorb(&mut settled.remapped, taken.whole);
            }
            Undo::Ties(owner, ties) => {
                for tie in ties {
                    self.ties.put(owner, tie);
                }
            }
        }
    }

    /// A multicast object that has ended no longer holds its memory.
    fn untie_ended_owners(&mut self, settled: &mut Settled) {
        for at in 0..settled.ended.len() {
            let (number, object) = &settled.ended[at];
            if object.what == What::Multicast {
                let dropped = self.begin_untie(Owner::Multicast(*number), None);
                settled.absorb(self.settle(dropped, true));
            }
        }
    }

    fn forget_handle(&mut self, handle: u64) -> Settled {
        let mut dropped = Dropped::default();
        if let Some(known) = self.handles.remove(&handle) {
            for _ in 0..known.count {
                self.drop_reference(known.object, &mut dropped);
            }
        }
        self.settle(dropped, true)
    }

    fn drop_reference(&mut self, object: u64, dropped: &mut Dropped) {
        // Without host memory the reference is not dropped: the count is then too high, never too low.
        let noted = dropped.references.try_push(object);
        let known = self.objects.get_mut(&object).filter(|_| noted.is_ok());
        if known.is_some_and(Object::begin_drop) {
            // If it is not announced now, it is when it is settled.
            let _ = dropped.ended.try_push(object);
        }
    }

    #[cfg(test)]
    pub fn references(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.objects.iter().map(|(number, object)| (*number, object.references))
    }
}

impl Settled {
    fn absorb(&mut self, other: Settled) {
        absorb(&mut self.ended, other.ended);
        absorb(&mut self.revived, other.revived);
        absorb(&mut self.remapped, other.remapped);
    }
}

/// Without host memory a change is not reported, and its bytes stay counted.
fn absorb<T>(list: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        let _ = list.try_push(one);
    }
}
