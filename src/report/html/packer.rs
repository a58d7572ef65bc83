//! Where blocks are drawn: ranges of bytes that no other live block has, as low as they fit.

use std::collections::{BTreeMap, BTreeSet};

/// Units of 512 bytes.
const UNIT: u64 = 512;

/// Hands out ranges: the smallest gap that fits, or the top. Memory is bounded by the live blocks.
#[derive(Debug, Default)]
pub struct Packer {
    /// Free ranges below the top: start and length.
    gaps: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    top: u64,
    highest: u64,
}

impl Packer {
    /// The start of a range for so many bytes, in units.
    pub fn take(&mut self, bytes: u64) -> u64 {
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

    /// Gives back what [`Packer::take`] gave.
    pub fn give(&mut self, start: u64, bytes: u64) {
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

    /// Bytes up to the highest range that was ever handed out.
    pub fn highest(&self) -> u64 {
        self.highest.saturating_mul(UNIT)
    }

    /// Forgets all that is live.
    pub fn clear(&mut self) {
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

/// A file may claim any size: the sum of all stays below what a number holds.
pub fn units(bytes: u64) -> u64 {
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
