//! Where physical memory is mapped, which addresses are reserved, and what that means for a
//! framework's blocks. The rules are those of [`AddressSpace`].
//!
//! Unmapped memory is asleep (it may be mapped again) or freed. Blocks above sleeping memory stay live,
//! and so does their segment, since the framework does not know that the memory is unmapped. The same
//! holds for blocks above memory of a reservation that was freed: they are paused. Elsewhere blocks end
//! with their memory.

pub use vramtrace_format::address_space::{AddressSpace, Asleep, Mapping, Reservation, Woken};
pub(super) use vramtrace_format::address_space::{Freed, Owner};
use vramtrace_format::{DeviceId, SiteId, StackId};

use super::Apply;
use super::cache::mapped;
use super::live::{Key, LiveSet};
use super::observer::{FreeCause, Observer};

/// The stack that created a physical object, and its device.
fn maker(live: &LiveSet, object: u64) -> Owner {
    let live = live.get(Key::object(object));
    let (stack, device) =
        live.map_or((StackId(0), DeviceId::UNKNOWN), |live| (live.stack, live.device));
    Owner { stack, device }
}

/// A damaged file may hold any number.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl<O: Observer> Apply<'_, O> {
    pub(super) fn reserve_addresses(
        &mut self,
        (address, size): (u64, u64),
        (site, stack): (SiteId, StackId),
    ) {
        for stale in self.state.space.reserve(address, size, site, stack) {
            self.end_reservation(&stale);
        }
        self.state.cache.ranges.reserved(address, address.saturating_add(size));
    }

    pub(super) fn free_addresses(&mut self, address: u64) {
        if let Some(freed) = self.state.space.free(address) {
            self.end_reservation(&freed);
        }
    }

    /// Ends the blocks in a reservation that was freed.
    fn end_reservation(&mut self, freed: &Freed) {
        let (start, end) = (freed.reservation.address, freed.reservation.end());
        for piece in &freed.asleep {
            self.observer.on_sleep_end(self.at, piece);
        }
        self.end_blocks(start, end, FreeCause::WithMemory);
        let changes = self.state.cache.ranges.remove_in(start, end);
        self.apply_changes(changes);
    }

    /// `owner`: of the sleeping range that the mapping woke, where a checkpoint lists it.
    pub(super) fn map(&mut self, mapping: Mapping, owner: StackId, by: StackId) {
        if owner != StackId(0) {
            // Treated as if it had been asleep, so that the memory gets its owner.
            let device = maker(&self.state.live, mapping.object).device;
            let owner = Owner { stack: owner, device };
            let (address, size) = (mapping.address, mapping.size);
            self.state.space.fall_asleep(Asleep { address, size, owner, was: None });
        }
        if mapping.size == 0 {
            return;
        }
        if self.state.space.touching(mapping.address, mapping.size).next().is_some() {
            // The unmap of the earlier mapping is missing.
            self.unmap(mapping.address, mapping.size, StackId(0));
        }
        let state = &mut self.state;
        let object = state.live.get(Key::object(mapping.object)).copied();
        let bytes = object.map_or(0, |object| object.size);
        let put = state.space.put(mapping, by, bytes);
        if put.is_placeholder_now {
            self.backs_nothing(mapping.object, &put.pieces);
        }
        let backs = self.state.space.backs(&mapping);
        for piece in &put.pieces {
            match put.woke.iter().any(|woke| woke.address == piece.address) {
                true if backs => self.observer.on_wake(self.at, piece, object.as_ref()),
                // Sleeping memory stays asleep.
                true => {}
                false => self.observer.on_map(self.at, piece.address, piece, object.as_ref()),
            }
            if backs {
                self.became_resident(piece.address, piece.end(), true);
                let state = &mut self.state;
                let range = mapped(piece, &state.live, &state.space);
                let (changes, waiting) = state.cache.add(piece.address, range);
                self.apply_changes(changes);
                self.place_again(&waiting);
            }
        }
    }

    /// Adds sleeping memory of a reservation.
    pub(super) fn add_asleep(&mut self, (address, size): (u64, u64), owner: Owner) {
        let state = &mut self.state;
        let Some(reservation) = state.space.reservation_at(address).map(|known| known.address)
        else {
            return;
        };
        let piece = Asleep { address, size, owner, was: None };
        state.space.fall_asleep(piece);
        state.cache.put_asleep(&piece, reservation);
    }

    /// One unmap may cover several mappings, and parts of them.
    pub(super) fn unmap(&mut self, address: u64, size: u64, by: StackId) {
        let state = &mut self.state;
        let taken = state.space.take(address, size, |object| maker(&state.live, object));
        for cut in &taken.cut {
            let (start, end) = (cut.address, cut.end());
            let slept = taken.slept.iter().find(|slept| slept.address == start);
            let state = &mut self.state;
            let reserved = state.space.reservation_at(start).is_some();
            let backed = state.space.backs(cut);
            let stays = slept.is_some()
                || (reserved && !state.cache.blocks_over(start, end, &state.live).is_empty());
            if backed && stays {
                self.became_resident(start, end, false);
                let changes = self.state.cache.ranges.pause(start, end);
                self.apply_changes(changes);
            } else if backed {
                if self.state.cache.ranges.may_hold_blocks(start, end) {
                    self.end_blocks(start, end, FreeCause::WithMemory);
                }
                let changes = self.state.cache.ranges.remove_in(start, end);
                self.apply_changes(changes);
            }
            match slept {
                Some(slept) if backed => self.observer.on_sleep(self.at, slept, by),
                Some(_) => {}
                None => self.observer.on_unmap(self.at, start, cut),
            }
        }
    }

    /// An object is found to be a placeholder, mapped many times: memory that it seemed to back is paused.
    fn backs_nothing(&mut self, object: u64, newest: &[Mapping]) {
        let of_object = self.state.space.mappings().filter(|mapping| mapping.object == object);
        let reserved =
            |mapping: &&Mapping| self.state.space.reservation_at(mapping.address).is_some();
        let before = of_object.filter(reserved).filter(|mapping| !newest.contains(mapping));
        let all: Vec<(u64, u64)> = before.map(|m| (m.address, m.end())).collect();
        for (start, end) in all {
            self.became_resident(start, end, false);
            let changes = self.state.cache.ranges.pause(start, end);
            self.apply_changes(changes);
        }
    }

    /// Updates the blocks in `[start, end)`, which became resident or paused.
    fn became_resident(&mut self, start: u64, end: u64, resident: bool) {
        let state = &mut self.state;
        let paused = state.devices.values().any(|device| device.cache.paused > 0);
        if state.space.reservation_at(start).is_none() || (resident && !paused) {
            return;
        }
        for (address, bytes) in state.cache.blocks_over(start, end, &state.live) {
            let key = Key::block(address);
            let Some(device) = self.state.live.get(key).map(|live| live.device) else { continue };
            let change = if resident { -signed(bytes) } else { signed(bytes) };
            let sums = &mut self.device(device).cache;
            sums.paused = sums.paused.saturating_add_signed(change);
            self.observer.on_block_paused(self.at, device, address, change);
            self.notify_device_change(device);
        }
    }
}
