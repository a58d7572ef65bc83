//! The lives of the allocations that each device's peak so far had, as they end. With them the roles at the peaks follow
//! from the first pass over a trace: a role is known only after the end of an allocation. Memory is bounded by what is
//! live at the peaks.

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Stamped};

use super::held::without_allocation;
use super::learned::Site;
use super::life::Life;
use super::{HeldByRole, Role, RoleFinder};
use crate::analysis::holdings::{each_piece, places};
use crate::analysis::{Level, Moment};
use crate::replay::{ByDevice, DeviceState, Key, State, Until, Visitor};

/// An allocation whose life has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lived {
    pub key: Key,
    /// The time of its allocation.
    pub time_ns: u64,
    pub site: Site,
    pub life: Life,
}

/// By key and time of the allocation.
type Lives<'l> = FxHashMap<(Key, u64), &'l Lived>;

#[derive(Clone, Debug, Default)]
struct AtPeak {
    /// File offset of the event of the device's highest peak so far.
    offset: u64,
    /// What was allocated up to it and ended after it. Its last entry of a key and a time is the one that was live then.
    ended: Vec<Lived>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct AtPeaks {
    devices: ByDevice<AtPeak>,
    /// Events are missing: a checkpoint lists allocations again.
    missing: bool,
}

impl AtPeaks {
    /// An event changed a device. Each new peak begins anew.
    #[inline]
    pub(super) fn changed(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        if state.peak.offset == Some(at.offset) {
            let of = self.devices.of(device);
            of.offset = at.offset;
            of.ended.clear();
        }
    }

    /// The life of an allocation has ended. `made_offset`: file offset of the event of its allocation.
    #[inline]
    pub(super) fn ended(&mut self, made_offset: u64, lived: impl Fn() -> Lived) {
        for of in self.devices.values_mut() {
            if made_offset <= of.offset {
                of.ended.push(lived());
            }
        }
    }

    pub(super) fn events_are_missing(&mut self) {
        self.missing = true;
        self.devices = ByDevice::default();
    }

    /// The allocations at the peak of a device, by key and time. `None`: its peak is not at this file offset, or events are
    /// missing.
    pub(super) fn of(&self, device: DeviceId, offset: u64) -> Option<Lives<'_>> {
        let of = self.devices.get(&device).filter(|of| of.offset == offset && !self.missing)?;
        Some(of.ended.iter().map(|lived| ((lived.key, lived.time_ns), lived)).collect())
    }
}

/// The bytes by role and stack of each device at its peak, as a visitor of these places.
pub struct RolesAtPeaks<'f> {
    finder: &'f RoleFinder,
    level: Level,
    /// Each device, the place of its peak, and the allocations there.
    places: Vec<(DeviceId, Until, Lives<'f>)>,
    pub found: HeldByRole,
}

impl<'f> RolesAtPeaks<'f> {
    /// `end`: the state at the end, which has the peaks. `None`: the finder did not see the allocations of one of them
    /// to their ends.
    pub fn new(finder: &'f RoleFinder, end: &State, level: Level) -> Option<RolesAtPeaks<'f>> {
        let known = |(device, place)| match place {
            Until::Offset(offset) => Some((device, place, finder.at_peaks().of(device, offset)?)),
            Until::End | Until::Time(_) => None,
        };
        let places: Option<Vec<_>> = places(end, Moment::Peak).into_iter().map(known).collect();
        Some(RolesAtPeaks { finder, level, places: places?, found: HeldByRole::default() })
    }
}

impl Visitor for RolesAtPeaks<'_> {
    fn stops(&self) -> Vec<Until> {
        self.places.iter().map(|(_, place, _)| *place).collect()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        let (device, _, lives) = &self.places[stop];
        each_piece(state, self.level, &mut |piece| {
            if piece.device != *device {
                return;
            }
            let role = match piece.allocation {
                // Segments have no role at the level of the driver: their blocks have different ones.
                Some((key, live)) => {
                    let lived = lives.get(&(key, live.time_ns));
                    lived.map_or(Role::Unknown, |lived| self.finder.role_of(lived))
                }
                None => without_allocation(piece.what),
            };
            self.found.add(piece.device, role, piece.stack, piece.held);
        });
    }
}
