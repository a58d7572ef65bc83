//! Reserved addresses. Memory that is unmapped in them may be mapped again.
//!
//! As for all frees, a free is announced before the driver's call; otherwise another thread could be
//! given the addresses first. It is not announced while something is mapped there, since the driver
//! then refuses it.

use super::state::State;
use vramtrace_format::address_space::{Asleep, Freed, Reservation};
use vramtrace_format::{DeviceId, SiteId, StackId};

impl<P> State<P> {
    /// The driver reserved addresses.
    pub fn reserve(&mut self, address: u64, size: u64, site: SiteId, stack: StackId) {
        // Reservations that overlap it were freed by calls that were not seen.
        drop(self.space.reserve(address, size, site, stack));
    }

    /// Before cuMemAddressFree. `None`: nothing is announced, since the driver will refuse, or since
    /// the reservation is not known.
    pub fn begin_free(&mut self, address: u64, size: u64) -> Option<Freed> {
        let known = self.space.reservation_at(address)?;
        let exact = known.address == address && known.size == size;
        let empty = self.space.touching(address, size).next().is_none();
        if exact && empty { self.space.free(address) } else { None }
    }

    /// Undoes an announced free that the driver refused.
    pub fn take_back(&mut self, freed: &Freed) {
        self.space.restore(freed);
    }

    /// The driver accepted a free that was not announced. False: the address is of no reservation.
    pub fn freed(&mut self, address: u64) -> bool {
        self.space.free(address).is_some()
    }

    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.space.reservations()
    }

    pub fn asleep(&self) -> impl Iterator<Item = &Asleep> {
        self.space.asleep()
    }

    /// Bytes of a device that are unmapped and may be mapped again (asleep).
    pub fn asleep_on(&self, device: DeviceId) -> u64 {
        self.space.asleep_on(device)
    }

    /// Whether anything was ever asleep.
    pub fn ever_slept(&self) -> bool {
        self.space.ever_slept()
    }

    /// Parts of reservations without memory, by address: start and end.
    pub fn unbacked(&self) -> Vec<(u64, u64)> {
        self.space.unbacked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::vmm::{Mapping, What};

    #[test]
    fn a_free_is_announced_where_the_driver_can_agree() {
        let mut state: State<()> = State::default();
        state.reserve(100, 20, SiteId(1), StackId(2));
        assert!(state.begin_free(100, 10).is_none(), "another size");
        assert!(state.begin_free(110, 10).is_none(), "another address");
        state.created(1, What::Device, DeviceId(0), 20);
        let object = state.hold_handle(1).expect("created");
        let _ = state.held_by_mapping(Mapping::new(100, 20, 0, object), StackId(3));
        assert!(state.begin_free(100, 20).is_none(), "mapped");
        state.object_mut(object).expect("mapped").maker = StackId(7);
        let dropped = state.begin_unmap(100, 20);
        let _ = state.settle(dropped, true);
        let owners: Vec<u32> = state.asleep().map(|piece| piece.owner.stack.0).collect();
        assert_eq!(owners, [7]);
        assert_eq!((state.asleep_on(DeviceId(0)), state.ever_slept()), (20, true));
        let freed = state.begin_free(100, 20).expect("nothing is mapped");
        assert_eq!((state.reservations().count(), state.asleep().count()), (0, 0));
        assert_eq!(state.asleep_on(DeviceId(0)), 0);
        state.take_back(&freed);
        assert_eq!((state.reservations().count(), state.asleep().count()), (1, 1));
        assert!(state.freed(100) && !state.freed(100));
    }

    #[test]
    fn a_mapping_that_wakes_several_owners_holds_its_object_until_the_last_piece_goes() {
        let mut state: State<()> = State::default();
        state.reserve(0, 20, SiteId(0), StackId(0));
        for (handle, address) in [(1, 0), (2, 10)] {
            state.created(handle, What::Device, DeviceId(0), 10);
            let object = state.hold_handle(handle).expect("created");
            let _ = state.held_by_mapping(Mapping::new(address, 10, 0, object), StackId(0));
        }
        let dropped = state.begin_unmap(0, 20);
        let _ = state.settle(dropped, true);
        let (object, _) = state.created(3, What::Device, DeviceId(0), 20);
        let held = state.hold_handle(3).expect("created");
        let _ = state.held_by_mapping(Mapping::new(0, 20, 0, held), StackId(0));
        assert_eq!(state.mappings().count(), 2);
        let released = state.begin_release(3).expect("known");
        assert!(released.ended.is_empty());
        let _ = state.settle(released, true);
        let first = state.begin_unmap(0, 10);
        assert!(first.ended.is_empty());
        let _ = state.settle(first, true);
        let second = state.begin_unmap(10, 10);
        assert_eq!(second.ended, [object]);
        assert_eq!(state.settle(second, true).ended.len(), 1);
    }
}
