//! Free address ranges: best fit, lowest address first among equals, so that the same program
//! gets the same addresses in every run.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Ranges {
    by_address: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// Neighbours are joined only inside one block of this size; 0: always.
    block: u64,
}

impl Ranges {
    pub(crate) fn new(block: u64) -> Ranges {
        Ranges { by_address: BTreeMap::new(), by_size: BTreeSet::new(), block }
    }

    fn insert(&mut self, address: u64, size: u64) {
        self.by_address.insert(address, size);
        self.by_size.insert((size, address));
    }

    fn remove(&mut self, address: u64, size: u64) {
        self.by_address.remove(&address);
        self.by_size.remove(&(size, address));
    }

    /// Takes `size` bytes at a multiple of `align`; None: nothing fits.
    pub(crate) fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let (length, start, address) =
            self.by_size.range((size, 0)..).find_map(|&(length, start)| {
                let address = start.checked_next_multiple_of(align)?;
                (address - start <= length - size).then_some((length, start, address))
            })?;
        self.carve(start, length, address, size);
        Some(address)
    }

    /// Takes exactly this range if all of it is free.
    pub(crate) fn take_at(&mut self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else { return false };
        let Some((&start, &length)) = self.by_address.range(..=address).next_back() else {
            return false;
        };
        if end > start + length {
            return false;
        }
        self.carve(start, length, address, size);
        true
    }

    fn carve(&mut self, start: u64, length: u64, address: u64, size: u64) {
        self.remove(start, length);
        if address > start {
            self.insert(start, address - start);
        }
        if start + length > address + size {
            self.insert(address + size, start + length - address - size);
        }
    }

    /// Gives a range back; returns the joined free range that now holds it.
    pub(crate) fn give(&mut self, address: u64, size: u64) -> (u64, u64) {
        let (mut start, mut end) = (address, address + size);
        if let Some((&before, &length)) = self.by_address.range(..address).next_back()
            && before + length == start
            && self.same_block(before, start)
        {
            self.remove(before, length);
            start = before;
        }
        if let Some(&length) = self.by_address.get(&end)
            && self.same_block(start, end)
        {
            self.remove(end, length);
            end += length;
        }
        self.insert(start, end - start);
        (start, end - start)
    }

    fn same_block(&self, low: u64, high: u64) -> bool {
        self.block == 0 || low / self.block == high / self.block
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_address.iter().map(|(&address, &size)| (address, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_again() {
        let mut free = Ranges::new(0);
        free.give(0x1000, 0x1000);
        let a = free.take(0x200, 0x200).unwrap();
        let b = free.take(0x200, 0x200).unwrap();
        assert_eq!((a, b), (0x1000, 0x1200));
        free.give(a, 0x200);
        assert_eq!(free.take(0x100, 0x100), Some(0x1000), "best fit, not the large rest");
        free.give(0x1000, 0x100);
        assert_eq!(free.give(b, 0x200), (0x1000, 0x1000));
    }

    #[test]
    fn blocks_are_not_joined() {
        let mut free = Ranges::new(0x1000);
        free.give(0x1000, 0x1000);
        assert_eq!(free.give(0x2000, 0x1000), (0x2000, 0x1000));
    }

    #[test]
    fn exact_places() {
        let mut free = Ranges::new(0);
        free.give(0x1000, 0x3000);
        assert!(free.take_at(0x2000, 0x1000));
        assert!(!free.take_at(0x2000, 0x1000));
        assert!(!free.take_at(0x1000, 0x2000));
        assert_eq!(free.iter().count(), 2);
    }
}
