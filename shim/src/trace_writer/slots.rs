//! Allocates slots of the trace's grid: those of erased windows, and new ones at the end.

use crate::runtime::fallible::MakeRoom;
use crate::runtime::hash_table::NoMemory;
use std::ops::Range;

#[derive(Default)]
pub struct Slots {
    end: u32,
    /// In ascending order, with a taken slot between each two.
    free: Vec<Range<u32>>,
}

impl Slots {
    /// Makes room for one more range, before a window is placed or erased.
    pub fn make_room(&mut self) -> Result<(), NoMemory> {
        self.free.make_room()
    }

    /// Takes `count` consecutive slots: from the shortest free range that is long enough, or at the
    /// end.
    pub fn take(&mut self, count: u16) -> u32 {
        let count = u32::from(count);
        let fits = self.free.iter().enumerate().filter(|(_, range)| range.len() as u32 >= count);
        let Some((at, _)) = fits.min_by_key(|(_, range)| range.len()) else {
            let first = self.end;
            self.end += count;
            return first;
        };
        let range = &mut self.free[at];
        let first = range.start;
        range.start += count;
        if range.start == range.end {
            self.free.remove(at);
        }
        first
    }

    /// Forgets free slots behind the last taken one. Returns the end.
    pub fn forget_free_end(&mut self) -> u32 {
        if let Some(last) = self.free.pop_if(|range| range.end == self.end) {
            self.end = last.start;
        }
        self.end
    }

    pub fn give(&mut self, first: u32, count: u16) {
        let mut freed = first..first + u32::from(count);
        let at = self.free.partition_point(|range| range.start < first);
        if self.free.get(at).is_some_and(|next| next.start == freed.end) {
            freed.end = self.free.remove(at).end;
        }
        // There is room for another range: `make_room` comes before.
        let has_room = self.free.make_room().is_ok();
        match at.checked_sub(1).map(|before| &mut self.free[before]) {
            Some(before) if before.end == freed.start => before.end = freed.end,
            #[allow(clippy::disallowed_methods)]
            _ if has_room => self.free.insert(at, freed),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erased_places_are_used_before_the_file_grows() {
        let mut slots = Slots::default();
        assert_eq!([1, 1, 4, 4].map(|count| slots.take(count)), [0, 1, 2, 6]);
        slots.give(2, 4);
        slots.give(0, 1);
        assert_eq!(slots.take(1), 0, "the shortest that fits");
        assert_eq!(slots.take(1), 2);
        assert_eq!(slots.take(4), 10, "three in a row are too few");
        slots.give(6, 4);
        assert_eq!(slots.take(7), 3, "neighbours became one range");
        assert_eq!(slots.take(1), 14);
    }

    #[test]
    fn ranges_join_on_both_sides() {
        let mut slots = Slots::default();
        slots.take(5);
        for slot in [0, 2, 4, 3, 1] {
            slots.give(slot, 1);
        }
        assert_eq!((slots.free.len(), slots.take(5)), (1, 0));
    }
}
