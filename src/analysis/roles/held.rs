//! Bytes by role and stack at moments of a trace.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, StackId};

use super::{Allocation, Role};
use crate::analysis::holdings::{Held, Piece, What, each_piece, places};
use crate::analysis::{Level, Moment};
use crate::replay::{Key, State, Until, Visitor};

/// The role of memory that is no allocation.
pub(super) fn without_allocation(what: What) -> Role {
    match what {
        What::Free => Role::FreeCache,
        What::Driver(cause) => Role::of_cause(cause),
        What::Memory | What::Block => Role::Unknown,
    }
}

/// The memory held at one moment, by device, role and stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldByRole {
    pub held: FxHashMap<(DeviceId, Role, StackId), Held>,
}

impl HeldByRole {
    /// The sums of a device by role, without roles that hold nothing.
    pub fn of_device(&self, device: DeviceId) -> BTreeMap<Role, Held> {
        let mut sums: BTreeMap<Role, Held> = BTreeMap::new();
        for ((of, role, _), held) in &self.held {
            if *of == device {
                sums.entry(*role).or_default().add(*held);
            }
        }
        sums
    }

    /// Bytes of all roles on a device.
    pub fn bytes_on(&self, device: DeviceId) -> u64 {
        let here = self.held.iter().filter(|((of, _, _), _)| *of == device);
        here.map(|(_, held)| held.bytes).fold(0, u64::saturating_add)
    }

    /// Adds held memory.
    pub fn add(&mut self, device: DeviceId, role: Role, stack: StackId, held: Held) {
        self.held.entry((device, role, stack)).or_default().add(held);
    }

    /// Keeps the memory of some devices.
    pub fn retain(&mut self, wanted: impl Fn(DeviceId) -> bool) {
        self.held.retain(|(of, _, _), _| wanted(*of));
    }
}

/// Memory that is counted at a stop and whose role is not known yet.
#[derive(Clone, Copy, Debug)]
struct Counted {
    stop: usize,
    device: DeviceId,
    stack: StackId,
    held: Held,
}

/// Finds the bytes by role and stack at places of a trace. A role is known after the end of an allocation
/// only, so the visitor counts memory, and the observer adds its role.
pub struct RolesAt {
    /// The device of each place, of [`RolesAt::moment`].
    devices: Vec<DeviceId>,
    stops: Vec<Until>,
    level: Level,
    sums: RefCell<Vec<HeldByRole>>,
    /// By key and time of allocation: an address may be used again.
    waiting: RefCell<FxHashMap<(Key, u64), Vec<Counted>>>,
}

impl RolesAt {
    pub fn new(stops: Vec<Until>, level: Level) -> RolesAt {
        let sums = RefCell::new(vec![HeldByRole::default(); stops.len()]);
        RolesAt { devices: Vec::new(), stops, level, sums, waiting: RefCell::default() }
    }

    /// The place of a moment on each device. `end`: the state at the end, which has the peaks.
    pub fn moment(end: &State, moment: Moment, level: Level) -> RolesAt {
        let (devices, stops) = places(end, moment).into_iter().unzip();
        RolesAt { devices, ..RolesAt::new(stops, level) }
    }

    fn count(&self, stop: usize, state: &State) {
        let (mut sums, mut waiting) = (self.sums.borrow_mut(), self.waiting.borrow_mut());
        each_piece(state, self.level, &mut |piece| match piece.allocation {
            Some((key, live)) => {
                let Piece { device, stack, held, .. } = piece;
                let counted = Counted { stop, device, stack, held };
                waiting.entry((key, live.time_ns)).or_default().push(counted);
            }
            None => {
                let role = without_allocation(piece.what);
                sums[stop].add(piece.device, role, piece.stack, piece.held);
            }
        });
    }

    /// The role of an allocation is known.
    pub fn found(&self, of: &Allocation) {
        let found = self.waiting.borrow_mut().remove(&(of.key, of.live.time_ns));
        for Counted { stop, device, stack, held } in found.into_iter().flatten() {
            self.sums.borrow_mut()[stop].add(device, of.role, stack, held);
        }
    }

    /// The sums of each device at its own place, after [`RolesAt::moment`].
    pub fn of_devices(mut self) -> HeldByRole {
        let devices = std::mem::take(&mut self.devices);
        let mut all = HeldByRole::default();
        for (device, mut here) in devices.into_iter().zip(self.finish()) {
            here.retain(|of| of == device);
            all.held.extend(here.held);
        }
        all
    }

    /// The sums, in the order of the places.
    pub fn finish(self) -> Vec<HeldByRole> {
        let mut sums = self.sums.into_inner();
        // Segments at the level of the driver: their blocks have different roles.
        for counted in self.waiting.into_inner().into_values().flatten() {
            let Counted { stop, device, stack, held } = counted;
            sums[stop].add(device, Role::Unknown, stack, held);
        }
        sums
    }
}

impl Visitor for &RolesAt {
    fn stops(&self) -> Vec<Until> {
        self.stops.clone()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        self.count(stop, state);
    }
}
