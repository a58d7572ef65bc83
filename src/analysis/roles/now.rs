//! The roles of what is live now, in a trace that still grows.

use rustc_hash::FxHashMap;
use vramtrace_format::DeviceId;

use super::held::without_allocation;
use super::{Role, RoleLearner};
use crate::analysis::{Level, Piece, each_piece};
use crate::replay::{Key, Live, State};

/// The role of each live allocation, if the trace ended here.
pub struct RolesNow {
    /// By key and time of the allocation.
    live: FxHashMap<(Key, u64), Role>,
}

impl RolesNow {
    /// `learner` has followed the replay to the moment.
    pub fn new(learner: &RoleLearner) -> RolesNow {
        let mut live = FxHashMap::default();
        learner.live(&mut |of| {
            live.insert((of.key, of.live.time_ns), of.role);
        });
        RolesNow { live }
    }

    pub fn of(&self, key: Key, live: &Live) -> Role {
        self.live.get(&(key, live.time_ns)).copied().unwrap_or(Role::Unknown)
    }

    pub fn of_piece(&self, piece: &Piece) -> Role {
        match piece.allocation {
            Some((key, live)) => self.of(key, live),
            None => without_allocation(piece.what),
        }
    }

    /// Live bytes of each device by role, by [`Role::index`].
    pub fn sums(&self, state: &State) -> FxHashMap<DeviceId, [u64; Role::ALL.len()]> {
        let mut sums: FxHashMap<DeviceId, [u64; Role::ALL.len()]> = FxHashMap::default();
        each_piece(state, Level::of(state), &mut |piece| {
            let sum = &mut sums.entry(piece.device).or_default()[self.of_piece(&piece).index()];
            *sum = sum.saturating_add(piece.held.bytes);
        });
        sums
    }
}
