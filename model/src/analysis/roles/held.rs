//! The roles of what is live at a moment, and bytes by role and stack there.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, StackId};

use super::{Allocation, Role, RoleFinder, RoleLearner};
use crate::analysis::StackClassifier;
use crate::analysis::holders::{Holder, HolderSum, shared_out};
use crate::analysis::holdings::{Holding, Owner, Piece, each_piece, places};
use crate::analysis::{Level, Moment};
use crate::replay::{Key, Live, State, Until, Visitor};
use crate::symbols::FREE_CACHE;
use crate::trace::{Definitions, Trace};

/// The roles of the allocations that are live at a moment, by key and time of the allocation: an address may be used again.
#[derive(Clone, Debug, Default)]
pub struct LiveRoles(pub(super) FxHashMap<(Key, u64), Role>);

impl LiveRoles {
    /// If the trace ended here. `learner` has followed the replay to the moment.
    pub fn now(learner: &RoleLearner) -> LiveRoles {
        let mut live = LiveRoles::default();
        learner.live(&mut |of| live.add(of));
        live
    }

    fn add(&mut self, of: &Allocation) {
        self.0.insert((of.key, of.live.time_ns), of.role);
    }

    pub fn of(&self, key: Key, live: &Live) -> Role {
        self.0.get(&(key, live.time_ns)).copied().unwrap_or(Role::Unknown)
    }

    /// Segments have no role at the level of the driver: their blocks have different ones.
    pub fn of_piece(&self, piece: &Piece) -> Role {
        match (piece.allocation, piece.owner) {
            (Some((key, live)), _) => self.of(key, live),
            (None, Owner { stack: FREE_CACHE, .. }) => Role::FreeCache,
            (None, Owner { cause, .. }) => cause.map_or(Role::Unknown, Role::of_cause),
        }
    }

    /// Live bytes of each device by role, by [`Role::index`].
    pub fn sums(&self, state: &State) -> FxHashMap<DeviceId, [u64; Role::ALL.len()]> {
        let mut sums: FxHashMap<DeviceId, [u64; Role::ALL.len()]> = FxHashMap::default();
        each_piece(state, Level::of(state), &mut |piece| {
            let sum =
                &mut sums.entry(piece.owner.device).or_default()[self.of_piece(&piece).index()];
            *sum = sum.saturating_add(piece.held.bytes);
        });
        sums
    }
}

/// The memory held at one moment, by device, role and stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldByRole {
    pub held: FxHashMap<(DeviceId, Role, StackId), Holding>,
}

impl HeldByRole {
    /// The sums of a device by role, without roles that hold nothing.
    pub fn of_device(&self, device: DeviceId) -> BTreeMap<Role, Holding> {
        let mut sums: BTreeMap<Role, Holding> = BTreeMap::new();
        for ((of, role, _), held) in &self.held {
            if *of == device {
                sums.entry(*role).or_default().add(*held);
            }
        }
        sums
    }

    /// Adds held memory.
    pub fn add(&mut self, device: DeviceId, role: Role, stack: StackId, held: Holding) {
        self.held.entry((device, role, stack)).or_default().add(held);
    }

    /// Keeps the memory of some devices.
    pub fn retain(&mut self, wanted: impl Fn(DeviceId) -> bool) {
        self.held.retain(|(of, _, _), _| wanted(*of));
    }

    /// Each role with the stack that holds the most of it, largest first.
    pub fn holders(&self, classifier: &StackClassifier, level: Level) -> Vec<Holder> {
        let mut all: FxHashMap<(DeviceId, Role), HolderSum> = FxHashMap::default();
        for ((device, role, stack), held) in &self.held {
            all.entry((*device, *role)).or_default().add(*stack, *held);
        }
        let holder = |((device, role), mut group): (_, HolderSum)| {
            group.key_frames = classifier.key_frames_at(group.stack, level);
            group.of_cache = level == Level::Tensor;
            classifier.holder(device, None, Some(role), group)
        };
        shared_out(all.into_iter().map(holder).collect())
    }
}

/// Finds the bytes by role and stack of each device at its own place of a trace, as a visitor of these places.
pub struct RolesAt {
    level: Level,
    places: Vec<(DeviceId, Until, LiveRoles)>,
    /// In the order of the places.
    pub(super) found: Vec<HeldByRole>,
}

/// Times of two threads differ by less.
const SKEW_NS: u64 = 1_000_000_000;

impl RolesAt {
    /// The place of a moment on each device. `end`: the state at the end, which has the peaks. Reads the trace once, but for
    /// peaks at which the first pass saw all allocations.
    pub fn new(
        finder: &RoleFinder,
        (trace, definitions): (&Trace, &Definitions),
        end: &State,
        moment: Moment,
        level: Level,
    ) -> RolesAt {
        let places = places(end, moment);
        let known = |(device, place): &(DeviceId, Until)| {
            Some((*device, *place, finder.at_peak(*device, *place)?))
        };
        match places.iter().map(known).collect::<Option<Vec<_>>>() {
            Some(places) => RolesAt { level, places, found: Vec::new() },
            None => RolesAt::followed(finder, (trace, definitions), places, level),
        }
    }

    /// From a pass that follows all allocations to their ends.
    pub(super) fn followed(
        finder: &RoleFinder,
        (trace, definitions): (&Trace, &Definitions),
        places: Vec<(DeviceId, Until)>,
        level: Level,
    ) -> RolesAt {
        let mut places: Vec<(DeviceId, Until, LiveRoles)> = places
            .into_iter()
            .map(|(device, place)| (device, place, LiveRoles::default()))
            .collect();
        finder.follow(trace, definitions, &mut |of| {
            let is_on = |device| [device, DeviceId::UNKNOWN].contains(&of.live.device);
            let may_live = |place: Until| match place {
                Until::End => of.freed.is_none(),
                Until::Offset(offset) => {
                    of.made_offset <= offset && of.freed.is_none_or(|at| at.offset > offset)
                }
                Until::Time(time_ns) => {
                    of.live.time_ns <= time_ns
                        && of.freed.is_none_or(|at| at.time_ns.saturating_add(SKEW_NS) > time_ns)
                }
            };
            for (_, _, roles) in
                places.iter_mut().filter(|(device, place, _)| is_on(*device) && may_live(*place))
            {
                roles.add(of);
            }
        });
        RolesAt { level, places, found: Vec::new() }
    }

    /// In a state that all devices have at their places.
    pub fn in_state(mut self, state: &State) -> HeldByRole {
        (0..self.places.len()).for_each(|stop| self.visit(stop, state));
        self.of_devices()
    }

    pub fn of_devices(self) -> HeldByRole {
        HeldByRole { held: self.found.into_iter().flat_map(|found| found.held).collect() }
    }
}

impl Visitor for RolesAt {
    fn stops(&self) -> Vec<Until> {
        self.places.iter().map(|(_, place, _)| *place).collect()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        let (device, _, roles) = &self.places[stop];
        self.found.resize_with(self.places.len(), HeldByRole::default);
        let found = &mut self.found[stop];
        each_piece(state, self.level, &mut |piece| {
            if piece.owner.device == *device {
                found.add(*device, roles.of_piece(&piece), piece.owner.stack, piece.held);
            }
        });
    }
}
