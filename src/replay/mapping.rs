//! Where physical memory is mapped, which addresses are reserved, and what that means for a
//! framework's blocks. The rules are those of [`AddressSpace`].
//!
//! Unmapped memory is asleep (it may be mapped again) or freed. Blocks above sleeping memory stay live,
//! and so does their segment, since the framework does not know that the memory is unmapped. The same
//! holds for blocks above memory of a reservation that was freed: they are paused. Elsewhere blocks end
//! with their memory.

use std::collections::VecDeque;

pub use vramtrace_format::address_space::{AddressSpace, Asleep, Mapping, Reservation, Woken};
pub(super) use vramtrace_format::address_space::{Freed, Owner};
use vramtrace_format::{DeviceId, SiteId, Space, StackId, Stamped};

use super::Replay;
use super::live::{Key, Live, LiveSet};
use super::observer::{AllocCause, FreeCause, Observer};

/// The number of freed reservations that are kept: the driver may still refuse the free, shortly after its
/// record.
const FREED_KEPT: usize = 16;

/// The latest freed reservations, with the blocks that ended with them.
#[derive(Clone, Debug, Default)]
pub(super) struct FreedReservations(VecDeque<(Freed, Vec<(Key, Live)>)>);

/// The stack that created a physical object, and its device.
fn maker(live: &LiveSet, object: u64) -> Owner {
    let live = live.get(Key::object(object));
    let (stack, device) =
        live.map_or((StackId(0), DeviceId::UNKNOWN), |live| (live.stack, live.device));
    Owner { stack, device }
}

/// A damaged file may hold any number.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Replay {
    pub(super) fn reserve_addresses(
        &mut self,
        at: &Stamped,
        (address, size): (u64, u64),
        (site, stack): (SiteId, StackId),
        restored: bool,
        observer: &mut impl Observer,
    ) {
        if restored {
            let same = |(freed, _): &(Freed, _)| freed.reservation.address == address;
            if let Some(index) = self.freed_reservations.0.iter().rposition(same)
                && let Some((freed, blocks)) = self.freed_reservations.0.remove(index)
            {
                self.state.space.restore(&freed);
                for piece in &freed.asleep {
                    self.state.cache.put_asleep(piece, address);
                    observer.on_sleep(at, piece, StackId(0));
                }
                for (key, live) in blocks {
                    let sums = &mut self.device(live.device).cache;
                    sums.frees = sums.frees.saturating_sub(1);
                    self.begin(at, key, live, AllocCause::FreeFailed, observer);
                }
                return;
            }
        }
        for stale in self.state.space.reserve(address, size, site, stack) {
            let _ = self.end_reservation(at, &stale, observer);
        }
        self.state.cache.reserved(address, size);
    }

    pub(super) fn free_addresses(
        &mut self,
        at: &Stamped,
        address: u64,
        observer: &mut impl Observer,
    ) {
        let Some(freed) = self.state.space.free(address) else { return };
        let blocks = self.end_reservation(at, &freed, observer);
        if self.freed_reservations.0.len() == FREED_KEPT {
            self.freed_reservations.0.pop_front();
        }
        self.freed_reservations.0.push_back((freed, blocks));
    }

    /// Ends the blocks in a reservation that was freed. Returns them.
    fn end_reservation(
        &mut self,
        at: &Stamped,
        freed: &Freed,
        observer: &mut impl Observer,
    ) -> Vec<(Key, Live)> {
        let (start, end) = (freed.reservation.address, freed.reservation.end());
        for piece in &freed.asleep {
            observer.on_sleep_end(at, piece);
        }
        let ended = self.end_blocks(at, start, end, FreeCause::WithMemory, observer);
        let changes = self.state.cache.went(start, end, &self.state.live);
        self.apply_changes(at, changes, observer);
        ended
    }

    pub(super) fn map(
        &mut self,
        at: &Stamped,
        mapping: Mapping,
        by: StackId,
        observer: &mut impl Observer,
    ) {
        if mapping.size == 0 {
            return;
        }
        if self.state.space.touching(mapping.address, mapping.size).next().is_some() {
            // The unmap of the earlier mapping is missing.
            self.unmap(at, mapping.address, mapping.size, StackId(0), observer);
        }
        let state = &mut self.state;
        let object = state.live.get(Key::object(mapping.object)).copied();
        let bytes = object.map_or(0, |object| object.size);
        let put = state.space.put(mapping, by, bytes);
        if put.is_placeholder_now {
            self.backs_nothing(at, mapping.object, &put.pieces, observer);
        }
        let backs = self.state.space.backs(&mapping);
        for piece in &put.pieces {
            match put.woke.iter().any(|woke| woke.address == piece.address) {
                true if backs => observer.on_wake(at, piece, object.as_ref()),
                // Sleeping memory stays asleep.
                true => {}
                false => observer.on_map(at, piece.address, piece, object.as_ref()),
            }
            if backs {
                self.became_resident(at, piece.address, piece.end(), true, observer);
                let state = &mut self.state;
                let (changes, waiting) = state.cache.was_mapped(piece, &state.live, &state.space);
                self.apply_changes(at, changes, observer);
                self.place_again(at, &waiting, observer);
            }
        }
    }

    /// Adds a reservation, or sleeping memory in one, that a checkpoint lists.
    pub(super) fn checkpoint_reserve(
        &mut self,
        asleep: bool,
        device: DeviceId,
        (address, size): (u64, u64),
        (site, stack): (SiteId, StackId),
    ) {
        let state = &mut self.state;
        let known = state.space.reservation_at(address).map(|known| known.address);
        match known {
            None if !asleep => {
                let _ = state.space.reserve(address, size, site, stack);
                state.cache.reserved(address, size);
            }
            Some(reservation) if asleep => {
                let owner = Owner { stack, device };
                let piece = Asleep { address, size, owner, was: None };
                state.space.fall_asleep(piece);
                state.cache.put_asleep(&piece, reservation);
            }
            _ => {}
        }
    }

    /// Adds a mapping and its owner that a checkpoint lists.
    pub(super) fn map_of_checkpoint(
        &mut self,
        at: &Stamped,
        mapping: Mapping,
        (owner, by): (StackId, StackId),
        observer: &mut impl Observer,
    ) {
        if owner != StackId(0) {
            // Treated as if it had been asleep, so that the memory gets its owner.
            let device = maker(&self.state.live, mapping.object).device;
            let owner = Owner { stack: owner, device };
            let (address, size) = (mapping.address, mapping.size);
            self.state.space.fall_asleep(Asleep { address, size, owner, was: None });
        }
        self.map(at, mapping, by, observer);
    }

    /// One unmap may cover several mappings, and parts of them.
    pub(super) fn unmap(
        &mut self,
        at: &Stamped,
        address: u64,
        size: u64,
        by: StackId,
        observer: &mut impl Observer,
    ) {
        let state = &mut self.state;
        let taken = state.space.take(address, size, |object| maker(&state.live, object));
        for cut in &taken.cut {
            let (start, end) = (cut.address, cut.end());
            let slept = taken.slept.iter().find(|slept| slept.address == start);
            let state = &mut self.state;
            let reserved = state.space.reservation_at(start).is_some();
            let backed = state.space.backs(cut);
            let stays =
                slept.is_some() || (reserved && state.cache.holds_blocks(start, end, &state.live));
            if backed && stays {
                self.became_resident(at, start, end, false, observer);
                let changes = self.state.cache.fell_asleep(start, end, &self.state.live);
                self.apply_changes(at, changes, observer);
            } else if backed {
                self.mapping_went(at, start, end, observer);
            }
            match slept {
                Some(slept) if backed => observer.on_sleep(at, slept, by),
                Some(_) => {}
                None => observer.on_unmap(at, start, cut),
            }
        }
    }

    /// An object is found to be a placeholder, mapped many times: memory that it seemed to back is paused.
    fn backs_nothing(
        &mut self,
        at: &Stamped,
        object: u64,
        newest: &[Mapping],
        observer: &mut impl Observer,
    ) {
        let of_object = self.state.space.mappings().filter(|mapping| mapping.object == object);
        let reserved =
            |mapping: &&Mapping| self.state.space.reservation_at(mapping.address).is_some();
        let before = of_object.filter(reserved).filter(|mapping| !newest.contains(mapping));
        let all: Vec<(u64, u64)> = before.map(|m| (m.address, m.end())).collect();
        for (start, end) in all {
            self.became_resident(at, start, end, false, observer);
            let changes = self.state.cache.fell_asleep(start, end, &self.state.live);
            self.apply_changes(at, changes, observer);
        }
    }

    /// Updates the blocks in `[start, end)`, which became resident or paused.
    fn became_resident(
        &mut self,
        at: &Stamped,
        start: u64,
        end: u64,
        resident: bool,
        observer: &mut impl Observer,
    ) {
        let state = &mut self.state;
        let paused = state.devices.values().any(|device| device.cache.paused > 0);
        if state.space.reservation_at(start).is_none() || (resident && !paused) {
            return;
        }
        for (address, bytes) in state.cache.blocks_over(start, end, &state.live) {
            let key = Key { space: Space::Block, number: address };
            let Some(device) = self.state.live.get(key).map(|live| live.device) else { continue };
            let sums = &mut self.device(device).cache;
            sums.paused = match resident {
                true => sums.paused.saturating_sub(bytes),
                false => sums.paused.saturating_add(bytes),
            };
            let change = signed(bytes);
            observer.on_block_paused(at, device, address, if resident { -change } else { change });
            self.notify_device_change(at, device, observer);
        }
    }
}
