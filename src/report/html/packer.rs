//! The vertical position of each block in the drawing: a range that no other live block has.

use std::collections::{BTreeMap, BTreeSet};

/// The unit of ranges, in bytes.
const UNIT: u64 = 512;

/// A best-fit allocator of ranges: the smallest gap that fits, else above the highest range. Its
/// memory is bounded by the number of live blocks.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// Free ranges below the top: start and length.
    gaps: BTreeMap<u64, u64>,
    /// The same gaps: length and start.
    by_length: BTreeSet<(u64, u64)>,
    /// The end of the highest live range.
    top: u64,
    /// The highest value that `top` ever had.
    highest: u64,
}

impl Packer {
    /// Allocates a range for so many bytes. Returns its start in units.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let length = units(bytes);
        if let Some(&(found, start)) = self.by_length.range((length, 0)..).next() {
            self.remove(start, found);
            if found > length {
                self.insert(start + length, found - length);
            }
            return start;
        }
        let start = self.top;
        self.top = self.top.saturating_add(length);
        self.highest = self.highest.max(self.top);
        start
    }

    /// Frees a range from [`Packer::take`], and joins it with adjacent gaps.
    pub(super) fn give(&mut self, start: u64, bytes: u64) {
        let (mut start, mut length) = (start, units(bytes));
        if let Some((&before, &free)) = self.gaps.range(..start).next_back()
            && before + free == start
        {
            self.remove(before, free);
            (start, length) = (before, free + length);
        }
        if let Some(&free) = self.gaps.get(&(start + length)) {
            self.remove(start + length, free);
            length += free;
        }
        match start + length == self.top {
            true => self.top = start,
            false => self.insert(start, length),
        }
    }

    /// The end of the highest range that was ever allocated, in bytes.
    pub(super) fn highest(&self) -> u64 {
        self.highest.saturating_mul(UNIT)
    }

    /// Frees all ranges.
    pub(super) fn clear(&mut self) {
        *self = Packer { highest: self.highest, ..Packer::default() };
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.gaps.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.gaps.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

/// The units for so many bytes, at least 1. A damaged file may contain any size: it is limited to
/// 2^56 bytes, so that sums of 100,000 such sizes do not overflow.
pub(super) fn units(bytes: u64) -> u64 {
    bytes.min(1 << 56).div_ceil(UNIT).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn ranges_never_overlap(steps in proptest::collection::vec((any::<bool>(), 1..9000u64, 0..64usize), 1..200)) {
            let mut packer = Packer::default();
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (take, bytes, which) in steps {
                if take || live.is_empty() {
                    let start = packer.take(bytes);
                    let end = start + units(bytes);
                    for (other, size) in &live {
                        prop_assert!(end <= *other || start >= other + units(*size));
                    }
                    live.push((start, bytes));
                } else {
                    let (start, bytes) = live.swap_remove(which % live.len());
                    packer.give(start, bytes);
                }
                let sum: u64 = live.iter().map(|(_, bytes)| units(*bytes)).sum();
                let gaps: u64 = packer.gaps.values().sum();
                prop_assert_eq!(sum + gaps, packer.top);
                prop_assert_eq!(packer.gaps.len(), packer.by_length.len());
            }
            for (start, bytes) in live {
                packer.give(start, bytes);
            }
            prop_assert_eq!(packer.top, 0);
        }
    }
}
