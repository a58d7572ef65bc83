//! Values by address: the order of a B-tree, and a hint for the value at each address, which a replay looks up for each
//! block that is made or freed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Addresses of 2 MiB share a hint: the smallest segment of PyTorch has this size.
const HINT_SHIFT: u32 = 21;
/// Hints for 128 GiB. Addresses this far apart share them.
const HINTS: usize = 1 << 16;

#[derive(Clone, Debug)]
struct Entry<T> {
    start: u64,
    /// The start of the next one; the greatest number if there is none.
    until: u64,
    value: T,
}

#[derive(Clone, Debug)]
pub(super) struct ByStart<T> {
    /// The place of each value in `entries`.
    order: BTreeMap<u64, u32>,
    entries: Vec<Entry<T>>,
    /// Places that may be taken.
    free: Vec<u32>,
    /// By address: the place of the last value that was found. It may hold another one, or none, by now. Empty before the
    /// first search.
    hints: Vec<u32>,
}

impl<T> Default for ByStart<T> {
    fn default() -> ByStart<T> {
        let (order, entries, free, hints) = Default::default();
        ByStart { order, entries, free, hints }
    }
}

impl<T: Copy> ByStart<T> {
    /// Adds a value, in place of an earlier one with this start.
    pub(super) fn insert(&mut self, start: u64, value: T) {
        if let Some(place) = self.order.get(&start) {
            self.entries[*place as usize].value = value;
            return;
        }
        let next = self.order.range(start..).next();
        let entry = Entry { start, until: next.map_or(u64::MAX, |(next, _)| *next), value };
        if let Some((_, before)) = self.order.range(..start).next_back() {
            self.entries[*before as usize].until = start;
        }
        // More than u32 can number would take more memory than machines have.
        let place = self.free.pop().unwrap_or(self.entries.len() as u32);
        match self.entries.get_mut(place as usize) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        self.order.insert(start, place);
    }

    pub(super) fn remove(&mut self, start: u64) -> Option<T> {
        let place = self.order.remove(&start)?;
        self.free.push(place);
        let gone = &mut self.entries[place as usize];
        let until = std::mem::replace(&mut gone.until, 0);
        let value = gone.value;
        if let Some((_, before)) = self.order.range(..start).next_back() {
            self.entries[*before as usize].until = until;
        }
        Some(value)
    }

    pub(super) fn get(&self, start: u64) -> Option<&T> {
        Some(&self.entries[*self.order.get(&start)? as usize].value)
    }

    pub(super) fn get_mut(&mut self, start: u64) -> Option<&mut T> {
        Some(&mut self.entries[*self.order.get(&start)? as usize].value)
    }

    /// The last value that starts at this address or before it, and its start.
    pub(super) fn last(&self, address: u64) -> Option<(u64, &T)> {
        let (start, place) = self.order.range(..=address).next_back()?;
        Some((*start, &self.entries[*place as usize].value))
    }

    /// As [`ByStart::last`].
    #[inline]
    pub(super) fn last_mut(&mut self, address: u64) -> Option<&mut T> {
        if self.hints.is_empty() {
            self.hints.resize(HINTS, 0);
        }
        let hint = (address >> HINT_SHIFT) as usize % HINTS;
        let hinted = self.entries.get(self.hints[hint] as usize);
        if !hinted.is_some_and(|entry| entry.start <= address && address < entry.until) {
            self.hints[hint] = *self.order.range(..=address).next_back()?.1;
        }
        Some(&mut self.entries[self.hints[hint] as usize].value)
    }

    /// The values that start in a range, in order.
    pub(super) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &T)> {
        let value = |(start, place): (&u64, &u32)| (*start, &self.entries[*place as usize].value);
        self.order.range(range.start..range.end.max(range.start)).map(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.order.iter().map(|(start, place)| (*start, &self.entries[*place as usize].value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_by_address(all in proptest::collection::vec((0..4u8, 0..20u64), 0..200)) {
            let mut by_start = ByStart::<usize>::default();
            let mut expected = BTreeMap::<u64, usize>::new();
            for (number, (what, start)) in all.into_iter().enumerate() {
                let start = start << (HINT_SHIFT - 1);
                if what == 0 {
                    prop_assert_eq!(by_start.remove(start), expected.remove(&start));
                } else if what == 1 {
                    by_start.insert(start, number);
                    expected.insert(start, number);
                }
                for address in [start, start + 1, start.wrapping_sub(1)] {
                    let last = expected.range(..=address).next_back().map(|(at, of)| (*at, *of));
                    prop_assert_eq!(by_start.last(address).map(|(at, of)| (at, *of)), last);
                    prop_assert_eq!(by_start.last_mut(address).copied(), last.map(|(_, of)| of));
                }
                prop_assert_eq!(by_start.get(start), expected.get(&start));
                prop_assert_eq!(by_start.get_mut(start).copied(), expected.get(&start).copied());
                prop_assert!(by_start.range(start..1 << 23).eq(
                    expected.range(start..start.max(1 << 23)).map(|(at, of)| (*at, of))));
            }
            prop_assert!(by_start.iter().eq(expected.iter().map(|(at, of)| (*at, of))));
        }
    }
}
