//! Bytes by role and stack at moments of a trace.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, StackId};

use super::{Role, RoleFinder};
use crate::analysis::holdings::{Held, Piece, What, each_piece, places};
use crate::analysis::{Level, Moment};
use crate::replay::{Key, State, Until};
use crate::trace::{Definitions, Trace};

/// What is held at one moment, by device, role and stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldByRole {
    pub held: FxHashMap<(DeviceId, Role, StackId), Held>,
}

impl HeldByRole {
    /// Those of a device that hold something, in the order of [`Role::ALL`].
    pub fn of_device(&self, device: DeviceId) -> BTreeMap<Role, Held> {
        let mut sums: BTreeMap<Role, Held> = BTreeMap::new();
        for ((of, role, _), held) in &self.held {
            if *of == device {
                sums.entry(*role).or_default().add(*held);
            }
        }
        sums
    }

    pub fn bytes_on(&self, device: DeviceId) -> u64 {
        let here = self.held.iter().filter(|((of, _, _), _)| *of == device);
        here.map(|(_, held)| held.bytes).fold(0, u64::saturating_add)
    }

    pub fn add(&mut self, device: DeviceId, role: Role, stack: StackId, held: Held) {
        self.held.entry((device, role, stack)).or_default().add(held);
    }

    /// Leaves those of some devices.
    pub fn retain(&mut self, wanted: impl Fn(DeviceId) -> bool) {
        self.held.retain(|(of, _, _), _| wanted(*of));
    }
}

/// One that waits for its role: what is counted for it at a moment.
#[derive(Clone, Copy, Debug)]
struct Counted {
    stop: usize,
    device: DeviceId,
    stack: StackId,
    held: Held,
}

impl RoleFinder {
    /// At each of several places of the trace, in the order given. Sums of [`HeldByRole`] are those
    /// of [`Holdings`](crate::analysis::Holdings) at the same place.
    pub fn at(
        &self,
        trace: &Trace,
        definitions: &Definitions,
        stops: &[Until],
        level: Level,
    ) -> Vec<HeldByRole> {
        let sums = RefCell::new(vec![HeldByRole::default(); stops.len()]);
        // By key and time of birth: an address is given out again.
        let waiting = RefCell::new(FxHashMap::<(Key, u64), Vec<Counted>>::default());
        let mut show = |stop: usize, state: &State| {
            let (mut sums, mut waiting) = (sums.borrow_mut(), waiting.borrow_mut());
            each_piece(state, level, &mut |piece| match piece.allocation {
                Some((key, live)) => {
                    let Piece { device, stack, held, .. } = piece;
                    let counted = Counted { stop, device, stack, held };
                    waiting.entry((key, live.time_ns)).or_default().push(counted);
                }
                None if piece.what == What::Free => {
                    sums[stop].add(piece.device, Role::FreeCache, piece.stack, piece.held);
                }
                None => sums[stop].add(piece.device, Role::Unknown, piece.stack, piece.held),
            });
        };
        self.visit(trace, definitions, stops, &mut show, &mut |of| {
            let found = waiting.borrow_mut().remove(&(of.key, of.live.time_ns));
            for Counted { stop, device, stack, held } in found.into_iter().flatten() {
                sums.borrow_mut()[stop].add(device, of.role, stack, held);
            }
        });
        let mut sums = sums.into_inner();
        // Segments, at the level of the driver: their blocks decide what they are for.
        for counted in waiting.into_inner().into_values().flatten() {
            let Counted { stop, device, stack, held } = counted;
            sums[stop].add(device, Role::Unknown, stack, held);
        }
        sums
    }

    /// Each device at the moment that is asked for. `end`: the state at the end of the trace, which
    /// tells the peaks.
    pub fn at_moment(
        &self,
        trace: &Trace,
        definitions: &Definitions,
        end: &State,
        moment: Moment,
        level: Level,
    ) -> HeldByRole {
        let places = places(end, moment);
        let stops: Vec<Until> = places.iter().map(|(_, until)| *until).collect();
        let mut all = HeldByRole::default();
        let found = self.at(trace, definitions, &stops, level);
        for ((device, _), mut here) in places.into_iter().zip(found) {
            here.retain(|of| of == device);
            all.held.extend(here.held);
        }
        all
    }
}
