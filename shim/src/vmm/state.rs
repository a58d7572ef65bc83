//! Handles, mappings and ties of one process, kept in step with the objects that they refer to.

use std::collections::HashMap;
use vramtrace_format::DeviceId;

use super::mappings::{Mapping, Mappings, Taken};
use super::objects::{Change, Object, Objects, What};
use super::ties::{Owner, Region, Tie, Ties};

/// References taken away by a call that is still under way. Hand it to [`State::settle`].
#[must_use = "a drop that is never settled keeps its objects for ever"]
#[derive(Debug, Default)]
pub struct Dropped {
    /// An object's number for each reference.
    references: Vec<u64>,
    /// Objects whose last reference this was: announce their free before the driver is asked.
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

/// What became of a settled drop.
#[derive(Debug)]
pub struct Settled<P> {
    /// Objects that are no more. Without a parked payload the end was not announced before.
    pub gone: Vec<(u64, Object<P>)>,
    /// Announced as freed, but alive.
    pub revived: Vec<u64>,
    /// Mappings that are back.
    pub remapped: Vec<Mapping>,
}

impl<P> Default for Settled<P> {
    fn default() -> Self {
        Settled { gone: Vec::new(), revived: Vec::new(), remapped: Vec::new() }
    }
}

#[derive(Debug, Clone, Copy)]
struct Handle {
    object: u64,
    count: u32,
}

#[derive(Debug)]
pub struct State<P> {
    objects: Objects<P>,
    handles: HashMap<u64, Handle>,
    mappings: Mappings,
    ties: Ties,
}

impl<P> Default for State<P> {
    fn default() -> Self {
        State {
            objects: Objects::default(),
            handles: HashMap::new(),
            mappings: Mappings::default(),
            ties: Ties::default(),
        }
    }
}

impl<P> State<P> {
    pub fn object(&self, number: u64) -> Option<&Object<P>> {
        self.objects.get(number)
    }

    pub fn object_mut(&mut self, number: u64) -> Option<&mut Object<P>> {
        self.objects.get_mut(number)
    }

    pub fn by_handle(&self, handle: u64) -> Option<u64> {
        self.handles.get(&handle).map(|known| known.object)
    }

    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }

    /// The driver made an object and gave `handle` for it. An object that still had this handle
    /// was released behind our back: it comes back in `Settled`.
    pub fn created(
        &mut self,
        handle: u64,
        what: What,
        device: DeviceId,
        size: u64,
    ) -> (u64, Settled<P>) {
        let stale = self.forget_handle(handle);
        let object = self.objects.create(what, device, size);
        self.handles.insert(handle, Handle { object, count: 1 });
        (object, stale)
    }

    /// An import gave `handle`: a second reference where the handle is known (the same object
    /// imported again), else a new object. Returns its number.
    pub fn imported(&mut self, handle: u64, device: DeviceId) -> u64 {
        if let Some(known) = self.handles.get_mut(&handle)
            && self.objects.take(known.object)
        {
            known.count += 1;
            return known.object;
        }
        self.created(handle, What::Imported, device, 0).0
    }

    /// Takes a reference for a call that is about to refer to the handle's object, so that its
    /// end cannot be announced before the call's answer is booked.
    pub fn hold_handle(&mut self, handle: u64) -> Option<u64> {
        let object = self.by_handle(handle)?;
        self.objects.take(object).then_some(object)
    }

    /// The same for the object that is mapped at `address`.
    pub fn hold_address(&mut self, address: u64) -> Option<u64> {
        let object = self.mappings.at(address)?.object;
        self.objects.take(object).then_some(object)
    }

    /// The same for all objects mapped in a range, each with its part of the range.
    pub fn hold_range(&mut self, address: u64, size: u64) -> Vec<(u64, u64, u64)> {
        let end = address.saturating_add(size);
        let parts = self.mappings.touching(address, size);
        parts
            .into_iter()
            .filter(|part| self.objects.take(part.object))
            .map(|part| {
                let from = part.address.max(address);
                (part.object, from - address, (part.address + part.size).min(end) - from)
            })
            .collect()
    }

    /// The call did not come to refer to the object after all.
    pub fn let_go(&mut self, object: u64) -> Settled<P> {
        let mut dropped = Dropped::default();
        self.drop_reference(object, &mut dropped);
        self.settle(dropped, true)
    }

    /// A held reference becomes a handle's: the driver gave `handle` for the object.
    pub fn held_by_handle(&mut self, object: u64, handle: u64) -> Settled<P> {
        match self.handles.get_mut(&handle) {
            Some(known) if known.object == object => {
                known.count += 1;
                Settled::default()
            }
            _ => {
                let stale = self.forget_handle(handle);
                self.handles.insert(handle, Handle { object, count: 1 });
                stale
            }
        }
    }

    /// A held reference becomes a mapping's. What was mapped there went behind our back.
    pub fn held_by_mapping(&mut self, mapping: Mapping) -> Settled<P> {
        let stale = self.begin_unmap(mapping.address, mapping.size);
        self.mappings.put(mapping);
        self.settle(stale, true)
    }

    /// A held reference becomes a tie's.
    pub fn held_by_tie(&mut self, owner: Owner, region: Region, object: u64) {
        self.ties.put(owner, Tie { region, object });
    }

    /// Before cuMemRelease. `None`: a handle that we never saw.
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

    /// Before cuMemUnmap.
    pub fn begin_unmap(&mut self, address: u64, size: u64) -> Dropped {
        let taken = self.mappings.take(address, size);
        // First the new references of what stays, so that no object ends in between.
        for mapping in &taken.rest {
            self.objects.take(mapping.object);
        }
        let mut dropped = Dropped::default();
        for mapping in &taken.whole {
            self.drop_reference(mapping.object, &mut dropped);
        }
        dropped.undo = Undo::Mappings(taken);
        dropped
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

    /// The driver answered: `done` or refused.
    pub fn settle(&mut self, dropped: Dropped, done: bool) -> Settled<P> {
        let mut settled = Settled::default();
        for number in &dropped.references {
            match self.objects.settle(*number, done) {
                (Change::Gone, Some(object)) => settled.gone.push((*number, object)),
                (Change::Revived, _) => settled.revived.push(*number),
                _ => {}
            }
        }
        if !done {
            self.undo(dropped.undo, &mut settled);
        }
        self.untie_gone_owners(&mut settled);
        settled
    }

    fn undo(&mut self, undo: Undo, settled: &mut Settled<P>) {
        match undo {
            Undo::Nothing => {}
            Undo::Handle(handle, object) => {
                self.handles.entry(handle).or_insert(Handle { object, count: 0 }).count += 1;
            }
            Undo::Mappings(taken) => {
                for mapping in &taken.rest {
                    // Its whole has its reference back by now: this is never the last one.
                    settled.absorb(self.let_go(mapping.object));
                }
                self.mappings.put_back(&taken);
                settled.remapped.extend(taken.whole);
            }
            Undo::Ties(owner, ties) => {
                for tie in ties {
                    self.ties.put(owner, tie);
                }
            }
        }
    }

    /// A multicast object that is gone holds its memory no more.
    fn untie_gone_owners(&mut self, settled: &mut Settled<P>) {
        let owners: Vec<u64> = settled
            .gone
            .iter()
            .filter(|(_, object)| object.what == What::Multicast)
            .map(|(number, _)| *number)
            .collect();
        for number in owners {
            let dropped = self.begin_untie(Owner::Multicast(number), None);
            settled.absorb(self.settle(dropped, true));
        }
    }

    fn forget_handle(&mut self, handle: u64) -> Settled<P> {
        let mut dropped = Dropped::default();
        if let Some(known) = self.handles.remove(&handle) {
            for _ in 0..known.count {
                self.drop_reference(known.object, &mut dropped);
            }
        }
        self.settle(dropped, true)
    }

    fn drop_reference(&mut self, object: u64, dropped: &mut Dropped) {
        dropped.references.push(object);
        if self.objects.begin_drop(object) == Change::Ends {
            dropped.ended.push(object);
        }
    }

    #[cfg(test)]
    pub fn references(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.objects.references()
    }
}

impl<P> Settled<P> {
    fn absorb(&mut self, other: Settled<P>) {
        self.gone.extend(other.gone);
        self.revived.extend(other.revived);
        self.remapped.extend(other.remapped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: DeviceId = DeviceId(0);

    fn state() -> State<()> {
        State::default()
    }

    fn create(state: &mut State<()>, handle: u64) -> u64 {
        state.created(handle, What::Device, GPU, 10).0
    }

    fn map(state: &mut State<()>, handle: u64, address: u64) {
        let object = state.hold_handle(handle).expect("a known handle");
        let settled = state.held_by_mapping(Mapping { address, size: 10, offset: 0, object });
        assert!(settled.gone.is_empty());
    }

    /// Releases with success; tells whether the object ended, and is gone.
    fn release(state: &mut State<()>, handle: u64) -> bool {
        let dropped = state.begin_release(handle).expect("a known handle");
        finish(state, dropped)
    }

    fn unmap(state: &mut State<()>, address: u64, size: u64) -> bool {
        let dropped = state.begin_unmap(address, size);
        finish(state, dropped)
    }

    fn finish(state: &mut State<()>, dropped: Dropped) -> bool {
        let ended = dropped.ended.len();
        let settled = state.settle(dropped, true);
        assert_eq!(settled.gone.len(), ended);
        ended > 0
    }

    fn retain(state: &mut State<()>, address: u64, handle: u64) {
        let object = state.hold_address(address).expect("mapped");
        state.held_by_handle(object, handle);
    }

    #[test]
    fn nccl_frees_retain_release_unmap_release() {
        let mut s = state();
        create(&mut s, 1);
        map(&mut s, 1, 100);
        retain(&mut s, 105, 1);
        assert!(!release(&mut s, 1));
        assert!(!unmap(&mut s, 100, 10));
        assert!(release(&mut s, 1));
        assert!(s.begin_release(1).is_none());
    }

    #[test]
    fn nccl_inspects_with_retain_and_release() {
        let mut s = state();
        create(&mut s, 1);
        map(&mut s, 1, 100);
        for handle in [1, 9] {
            retain(&mut s, 100, handle);
            assert!(!release(&mut s, handle));
        }
        assert!(!release(&mut s, 1));
        assert!(unmap(&mut s, 100, 10));
    }

    #[test]
    fn released_first_it_lives_until_the_last_of_two_maps() {
        let mut s = state();
        create(&mut s, 1);
        map(&mut s, 1, 100);
        map(&mut s, 1, 200);
        assert!(!release(&mut s, 1));
        assert!(!unmap(&mut s, 200, 10));
        assert!(unmap(&mut s, 100, 10));
    }

    #[test]
    fn one_unmap_over_several_maps_ends_each() {
        let mut s = state();
        for handle in 1..=3 {
            create(&mut s, handle);
            map(&mut s, handle, handle * 10);
            release(&mut s, handle);
        }
        let dropped = s.begin_unmap(10, 30);
        assert_eq!(dropped.ended, [1, 2, 3]);
        assert_eq!(s.settle(dropped, true).gone.len(), 3);
    }

    #[test]
    fn a_partial_unmap_keeps_the_rest_alive() {
        let mut s = state();
        create(&mut s, 1);
        map(&mut s, 1, 100);
        assert!(!release(&mut s, 1));
        assert!(!unmap(&mut s, 103, 4));
        assert!(!unmap(&mut s, 100, 3));
        assert!(unmap(&mut s, 107, 3));
    }

    #[test]
    fn a_refused_unmap_puts_everything_back() {
        let mut s = state();
        let number = create(&mut s, 1);
        map(&mut s, 1, 100);
        release(&mut s, 1);
        let dropped = s.begin_unmap(103, 4);
        assert!(dropped.ended.is_empty());
        let settled = s.settle(dropped, false);
        assert_eq!(settled.remapped.len(), 1);
        assert_eq!(s.references().collect::<Vec<_>>(), [(number, 1)]);
        let dropped = s.begin_unmap(100, 10);
        assert_eq!(dropped.ended, [number]);
        assert_eq!(s.settle(dropped, false).revived, [number]);
        assert!(unmap(&mut s, 100, 10));
    }

    #[test]
    fn a_refused_release_keeps_the_handle() {
        let mut s = state();
        let number = create(&mut s, 1);
        let dropped = s.begin_release(1).expect("known");
        assert_eq!(dropped.ended, [number]);
        assert_eq!(s.settle(dropped, false).revived, [number]);
        assert!(release(&mut s, 1));
    }

    #[test]
    fn bytes_are_free_when_the_slower_of_two_calls_has_returned() {
        let mut s = state();
        let number = create(&mut s, 1);
        map(&mut s, 1, 100);
        let slow = s.begin_release(1).expect("known");
        let fast = s.begin_unmap(100, 10);
        assert_eq!(fast.ended, [number]);
        assert!(s.settle(fast, true).gone.is_empty());
        assert_eq!(s.settle(slow, true).gone.len(), 1);
    }

    #[test]
    fn a_retain_under_way_keeps_it_from_ending() {
        let mut s = state();
        create(&mut s, 1);
        map(&mut s, 1, 100);
        let object = s.hold_address(100).expect("mapped");
        assert!(!release(&mut s, 1));
        assert!(!unmap(&mut s, 100, 10));
        s.held_by_handle(object, 1);
        assert!(release(&mut s, 1));
    }

    #[test]
    fn a_failed_map_may_be_what_ends_it() {
        let mut s = state();
        let number = create(&mut s, 1);
        let held = s.hold_handle(1).expect("known");
        assert!(!release(&mut s, 1));
        let settled = s.let_go(held);
        assert_eq!(settled.gone.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [number]);
    }

    #[test]
    fn reused_handles_are_new_objects() {
        let mut s = state();
        let first = create(&mut s, 1);
        map(&mut s, 1, 100);
        release(&mut s, 1);
        let second = create(&mut s, 1);
        assert_ne!(first, second);
        assert!(release(&mut s, 1));
        assert!(unmap(&mut s, 100, 10));
        // A handle given again without a release that we saw: the old object ends.
        let third = create(&mut s, 1);
        let (_, stale) = s.created(1, What::Device, GPU, 10);
        assert_eq!(stale.gone.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [third]);
    }

    #[test]
    fn an_import_seen_twice_is_one_object_with_two_handles() {
        let mut s = state();
        let number = s.imported(5, GPU);
        assert_eq!(s.imported(5, GPU), number);
        assert!(!release(&mut s, 5));
        assert!(release(&mut s, 5));
    }

    #[test]
    fn a_multicast_bind_holds_the_memory_until_unbound_or_gone() {
        let mut s = state();
        let group = s.created(50, What::Multicast, GPU, 0).0;
        for (handle, offset) in [(1, 0), (2, 10)] {
            create(&mut s, handle);
            let held = s.hold_handle(handle).expect("known");
            s.held_by_tie(Owner::Multicast(group), Region::span(0, offset, 10), held);
            assert!(!release(&mut s, handle));
        }
        let dropped = s.begin_untie(Owner::Multicast(group), Some(Region::span(0, 0, 10)));
        assert!(finish(&mut s, dropped));
        let dropped = s.begin_release(50).expect("known");
        assert_eq!(dropped.ended, [group]);
        // The group itself, and what was bound to it.
        assert_eq!(s.settle(dropped, true).gone.len(), 2);
    }

    #[test]
    fn a_bind_by_address_holds_each_object_of_the_range() {
        let mut s = state();
        for handle in 1..=2 {
            create(&mut s, handle);
            map(&mut s, handle, handle * 10);
        }
        assert_eq!(s.hold_range(15, 10), [(1, 0, 5), (2, 5, 5)]);
    }
}
