//! The free blocks of one pool and stream, found by best fit: least size, then least address.
//!
//! Blocks are binned by size, 64 bins to a power of two, with a bitmap of the bins that hold any.
//! A bin orders its own, so that the answer is exact.

use std::collections::BTreeSet;

use super::blocks::BlockId;

/// Sizes below this many units have a bin of their own.
const EXACT: u64 = 64;
/// Bits of the bin's number that tell sizes of one power of two apart.
const FINE: u32 = EXACT.ilog2();
/// Blocks are multiples of 512 B.
const UNIT: u32 = 9;

/// Size, address, block: ordered as they are chosen.
type Entry = (u64, u64, BlockId);

/// Before all entries of this size and address.
fn place(size: u64, address: u64) -> Entry {
    (size, address, BlockId(0))
}

#[derive(Debug, Default)]
pub(super) struct FreeList {
    bins: Vec<Bin>,
    /// A bit for each bin that holds any.
    filled: Vec<u64>,
}

/// Nearly all bins hold a few blocks, in order; a program may leave tens of thousands of one size.
#[derive(Debug)]
enum Bin {
    Few(Vec<Entry>),
    Many(BTreeSet<Entry>),
}

/// Above this, moving the later ones costs more than a tree.
const FEW: usize = 256;

impl Bin {
    fn insert(&mut self, entry: Entry) {
        match self {
            Bin::Many(tree) => {
                tree.insert(entry);
            }
            Bin::Few(list) if list.len() < FEW => {
                list.insert(list.partition_point(|other| *other < entry), entry);
            }
            Bin::Few(list) => {
                list.push(entry);
                *self = Bin::Many(list.drain(..).collect());
            }
        }
    }

    fn remove(&mut self, entry: Entry) {
        match self {
            Bin::Few(list) => {
                if let Ok(at) = list.binary_search(&entry) {
                    list.remove(at);
                }
            }
            Bin::Many(tree) => {
                tree.remove(&entry);
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Bin::Few(list) => list.is_empty(),
            Bin::Many(tree) => tree.is_empty(),
        }
    }

    fn first(&self, from: Entry) -> Option<BlockId> {
        match self {
            Bin::Few(list) => list.get(list.partition_point(|other| *other < from)),
            Bin::Many(tree) => tree.range(from..).next(),
        }
        .map(|entry| entry.2)
    }

    fn from(&self, from: Entry) -> Box<dyn DoubleEndedIterator<Item = Entry> + '_> {
        match self {
            Bin::Few(list) => {
                Box::new(list[list.partition_point(|other| *other < from)..].iter().copied())
            }
            Bin::Many(tree) => Box::new(tree.range(from..).copied()),
        }
    }
}

fn bin_of(size: u64) -> usize {
    let units = size >> UNIT;
    if units < EXACT {
        return units as usize;
    }
    let power = units.ilog2();
    ((u64::from(power - FINE + 1) << FINE) + ((units >> (power - FINE)) & (EXACT - 1))) as usize
}

impl FreeList {
    pub(super) fn insert(&mut self, size: u64, address: u64, block: BlockId) {
        let bin = bin_of(size);
        if bin >= self.bins.len() {
            self.bins.resize_with(bin + 1, || Bin::Few(Vec::new()));
            self.filled.resize(bin / 64 + 1, 0);
        }
        self.bins[bin].insert((size, address, block));
        self.filled[bin / 64] |= 1 << (bin % 64);
    }

    /// Nothing happens where it is not in the list.
    pub(super) fn remove(&mut self, size: u64, address: u64, block: BlockId) {
        let bin = bin_of(size);
        if let Some(blocks) = self.bins.get_mut(bin) {
            blocks.remove((size, address, block));
            if blocks.is_empty() {
                self.filled[bin / 64] &= !(1 << (bin % 64));
            }
        }
    }

    /// The best fit.
    pub(super) fn first(&self, size: u64) -> Option<BlockId> {
        let bin = bin_of(size);
        self.bins.get(bin)?.first(place(size, 0)).or_else(|| {
            let bin = self.next_filled(bin + 1)?;
            self.bins[bin].first(place(0, 0))
        })
    }

    /// Of this size or more, in the order of the best fit.
    pub(super) fn from(&self, size: u64) -> impl Iterator<Item = BlockId> {
        let mut next = bin_of(size);
        let bins = std::iter::from_fn(move || {
            let bin = self.next_filled(next)?;
            next = bin + 1;
            Some(self.bins[bin].from(place(size, 0)))
        });
        bins.flatten().map(|entry| entry.2)
    }

    /// From `least` to below `below`, largest first.
    pub(super) fn down(&self, least: u64, below: u64) -> impl Iterator<Item = BlockId> {
        let last = (bin_of(below) + 1).min(self.bins.len());
        let bins = self.bins.get(bin_of(least)..last).unwrap_or_default();
        bins.iter()
            .rev()
            .flat_map(move |bin| bin.from(place(least, 0)).rev())
            .filter(move |entry| entry.0 < below)
            .map(|entry| entry.2)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = BlockId> {
        self.bins.iter().flat_map(|bin| bin.from(place(0, 0))).map(|entry| entry.2)
    }

    fn next_filled(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.filled.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.filled.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_best_fit_is_the_least_size_then_address(
            held in prop::collection::btree_map(0u64..1 << 20, 0u64..1 << 40, 0..600),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
            wanted in 0u64..1 << 41,
            least in 0u64..1 << 38,
        ) {
            let mut list = FreeList::default();
            let mut model: BTreeSet<Entry> = BTreeSet::new();
            for (n, (address, size)) in held.iter().enumerate() {
                // Most are of one size, some are close together, as it is.
                let size = if n % 4 == 0 { *size >> (n % 40) } else { 512 };
                list.insert(size, *address, BlockId(n as u32));
                model.insert((size, *address, BlockId(n as u32)));
            }
            for index in gone {
                if let Some(&entry) = model.iter().nth(index.index(model.len().max(1))) {
                    model.remove(&entry);
                    list.remove(entry.0, entry.1, entry.2);
                }
            }
            for wanted in [wanted, wanted >> 20, 512, 513] {
                let ids = |from: &Entry| from.2;
                let fitting: Vec<BlockId> = model.range(place(wanted, 0)..).map(ids).collect();
                prop_assert_eq!(list.first(wanted), fitting.first().copied());
                prop_assert_eq!(list.from(wanted).collect::<Vec<_>>(), fitting);
                let least = least.min(wanted);
                let below = model.range(place(least, 0)..place(wanted, 0)).rev().map(ids);
                prop_assert_eq!(list.down(least, wanted).collect::<Vec<_>>(), below.collect::<Vec<_>>());
            }
            prop_assert_eq!(list.all().count(), model.len());
        }
    }
}
