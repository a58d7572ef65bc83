//! Assigns lanes to allocations. A viewer shows a limited number of lanes: where more allocations are live at
//! once, the small ones are only in a counter.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Kind, Stamped};

use crate::replay::{AllocCause, FreeCause, Key, Live, Observer};

/// Device (`None`: host memory), and whether the group has blocks: blocks have separate lanes.
pub(super) type LaneGroup = (Option<DeviceId>, bool);

/// The group of an allocation.
pub(super) fn group(live: &Live) -> LaneGroup {
    ((!live.kind.is_host()).then_some(live.device), live.kind == Kind::Block)
}

/// The lanes of one group. A slice gets the lowest free one.
pub(super) struct Lanes {
    /// How many there are, and the least size that gets one.
    most: u32,
    least: u64,
    free: BinaryHeap<Reverse<u32>>,
    next: u32,
    /// Live bytes without a lane.
    pub small: u64,
}

/// Of a format without lanes: each slice has one.
impl Default for Lanes {
    fn default() -> Lanes {
        Lanes::of(u32::MAX, 0)
    }
}

impl Lanes {
    fn of(most: u32, least: u64) -> Lanes {
        Lanes { most, least, free: BinaryHeap::new(), next: 0, small: 0 }
    }

    /// Takes a lane for so many bytes. `None`: they are too few, or all lanes are in use.
    pub(super) fn take(&mut self, size: u64) -> Option<u32> {
        if size < self.least {
            return None;
        }
        if let Some(Reverse(lane)) = self.free.pop() {
            return Some(lane);
        }
        (self.next < self.most).then(|| {
            self.next += 1;
            self.next
        })
    }

    /// Returns a lane.
    pub(super) fn give_back(&mut self, lane: u32) {
        self.free.push(Reverse(lane));
    }
}

/// Maximum number of lanes of a group: more need much scrolling in a viewer.
pub(super) const MAX_LANES: u32 = 64;

/// Size classes: the power of two at or below the size.
const CLASSES: usize = 64;

/// Counts the allocations of each size class and above that are live at once.
#[derive(Default)]
pub(super) struct LanePlanner {
    groups: BTreeMap<LaneGroup, Counts>,
    live: FxHashMap<Key, (LaneGroup, usize)>,
}

struct Counts {
    live: [u32; CLASSES],
    /// The highest number live at once, of this class and the classes above.
    most: [u32; CLASSES],
}

impl LanePlanner {
    fn allocated(&mut self, key: Key, live: &Live) {
        let (group, class) = (group(live), live.size.max(1).ilog2() as usize);
        self.freed(key);
        self.live.insert(key, (group, class));
        let none = || Counts { live: [0; CLASSES], most: [0; CLASSES] };
        let counts = self.groups.entry(group).or_insert_with(none);
        counts.live[class] += 1;
        let mut above: u32 = counts.live[class + 1..].iter().sum();
        for class in (0..=class).rev() {
            above += counts.live[class];
            counts.most[class] = counts.most[class].max(above);
        }
    }

    fn freed(&mut self, key: Key) {
        if let Some((group, class)) = self.live.remove(&key)
            && let Some(counts) = self.groups.get_mut(&group)
        {
            counts.live[class] -= 1;
        }
    }

    /// The lanes of each group, `lanes` at most.
    pub(super) fn finish(self, lanes: u32) -> BTreeMap<LaneGroup, Lanes> {
        let least = |counts: &Counts| {
            let fits = |class: &usize| counts.most[*class] <= lanes;
            match (0..CLASSES).find(fits) {
                Some(0) => 0,
                Some(class) if counts.most[class] > 0 => 1 << class,
                // Even the largest class has too many: it gets the lanes that there are.
                found => 1 << found.unwrap_or(CLASSES).saturating_sub(1),
            }
        };
        self.groups
            .iter()
            .map(|(group, counts)| (*group, Lanes::of(lanes, least(counts))))
            .collect()
    }
}

impl Observer for LanePlanner {
    fn on_alloc(&mut self, _at: &Stamped, key: Key, live: &Live, _how: AllocCause) {
        self.allocated(key, live);
    }

    fn on_free(&mut self, _at: &Stamped, key: Key, _live: &Live, _how: FreeCause) {
        self.freed(key);
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        self.live.clear();
        self.groups.values_mut().for_each(|counts| counts.live = [0; CLASSES]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_lane_is_taken_up_to_the_most() {
        let mut lanes = Lanes::of(3, 9);
        assert_eq!([9; 4].map(|size| lanes.take(size)), [Some(1), Some(2), Some(3), None]);
        lanes.give_back(3);
        lanes.give_back(1);
        assert_eq!([9, 8, 9].map(|size| lanes.take(size)), [Some(1), None, Some(3)]);
    }

    #[test]
    fn the_least_size_is_one_that_fits_at_every_moment() {
        let plan = |counts: &[(usize, u32)], lanes| {
            let mut planner = LanePlanner::default();
            let mut all = Counts { live: [0; CLASSES], most: [0; CLASSES] };
            for (class, most) in counts {
                (0..=*class).for_each(|below| all.most[below] += most);
            }
            planner.groups.insert((None, true), all);
            planner.finish(lanes)[&(None, true)].least
        };
        assert_eq!(plan(&[(9, 3), (20, 4)], 64), 0, "all fit");
        assert_eq!(plan(&[(9, 100), (20, 4)], 64), 1 << 10);
        assert_eq!(plan(&[(9, 100), (20, 100)], 64), 1 << 20, "not all of the largest fit");
    }
}
