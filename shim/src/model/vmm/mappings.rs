//! Which addresses show which object.

use crate::runtime::fallible::{TryPush, list_of, vec_of};
use crate::runtime::hash_table::NoMemory;
use crate::runtime::sorted_map::SortedMap;

/// A piece of address space that shows `[offset, offset + size)` of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub address: u64,
    pub size: u64,
    pub offset: u64,
    /// Number of the object.
    pub object: u64,
}

impl Mapping {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    /// The part of it inside `[from, to)`, if any.
    fn cut(&self, from: u64, to: u64) -> Option<Mapping> {
        let start = self.address.max(from);
        let end = self.end().min(to);
        (start < end).then(|| Mapping {
            address: start,
            size: end - start,
            offset: self.offset + (start - self.address),
            object: self.object,
        })
    }
}

/// What an unmap took out, enough to put it back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The mappings as they were.
    pub whole: Vec<Mapping>,
    /// What stayed of those that were only partly covered.
    pub rest: Vec<Mapping>,
}

/// Mappings by address; they never overlap.
#[derive(Debug, Default)]
pub struct Mappings {
    by_address: SortedMap<Mapping>,
}

impl Mappings {
    /// The caller has taken out what was there before.
    pub fn put(&mut self, mapping: Mapping) -> Result<(), NoMemory> {
        self.by_address.insert(mapping.address, mapping).map(|_| ())
    }

    /// For one more.
    pub fn make_room(&mut self) -> Result<(), NoMemory> {
        self.by_address.make_room()
    }

    /// The mapping that shows `address`.
    pub fn at(&self, address: u64) -> Option<Mapping> {
        let mapping = self.by_address.at_or_below(address)?;
        (address < mapping.end()).then_some(*mapping)
    }

    /// All mappings that touch `[address, address + size)`.
    pub fn touching(&self, address: u64, size: u64) -> impl Iterator<Item = Mapping> {
        let end = address.saturating_add(size);
        let first = self.at(address).map_or(address, |mapping| mapping.address);
        let all = self.by_address.from(first).map(|(_, mapping)| *mapping);
        all.take_while(move |mapping| mapping.address < end.max(first))
    }

    /// Takes `[address, address + size)` out; mappings that stick out keep what sticks out. Without
    /// memory all stay.
    pub fn take(&mut self, address: u64, size: u64) -> Result<Taken, NoMemory> {
        let end = address.saturating_add(size);
        let count = self.touching(address, size).count();
        let whole = list_of(count, self.touching(address, size))?;
        // The first and the last one stick out at most: two come for one that goes.
        let mut rest = vec_of(2.min(2 * count))?;
        self.make_room()?;
        for mapping in &whole {
            self.by_address.remove(mapping.address);
            for part in [mapping.cut(0, address), mapping.cut(end, u64::MAX)].into_iter().flatten()
            {
                let _ = rest.try_push(part);
            }
        }
        for mapping in &rest {
            let _ = self.put(*mapping);
        }
        Ok(Taken { whole, rest })
    }

    /// Undoes [`Mappings::take`]. What there is no memory for is forgotten; its reference stays, so
    /// that too much is counted and never too little.
    pub fn put_back(&mut self, taken: &Taken) {
        for mapping in &taken.rest {
            self.by_address.remove(mapping.address);
        }
        for mapping in &taken.whole {
            let _ = self.put(*mapping);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.by_address.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(address: u64, size: u64, offset: u64, object: u64) -> Mapping {
        Mapping { address, size, offset, object }
    }

    #[test]
    fn any_address_inside_finds_its_mapping() {
        let mut maps = Mappings::default();
        maps.put(mapping(100, 10, 0, 1)).unwrap();
        assert_eq!(maps.at(99), None);
        assert_eq!(maps.at(100), maps.at(109));
        assert_eq!(maps.at(110), None);
    }

    #[test]
    fn one_take_covers_several_and_splits_at_its_ends() {
        let mut maps = Mappings::default();
        let all = [mapping(0, 10, 5, 1), mapping(10, 10, 0, 2), mapping(20, 10, 0, 3)];
        for each in all {
            maps.put(each).unwrap();
        }
        let taken = maps.take(5, 20).unwrap();
        assert_eq!(taken.whole, all);
        assert_eq!(taken.rest, [mapping(0, 5, 5, 1), mapping(25, 5, 5, 3)]);
        assert_eq!(maps.at(4).map(|m| m.object), Some(1));
        assert_eq!(maps.at(5), None);
        assert_eq!(maps.at(25), Some(mapping(25, 5, 5, 3)));
        maps.put_back(&taken);
        assert_eq!(maps.iter().copied().collect::<Vec<_>>(), all);
    }

    #[test]
    fn a_hole_in_the_middle() {
        let mut maps = Mappings::default();
        maps.put(mapping(0, 30, 0, 1)).unwrap();
        let taken = maps.take(10, 10).unwrap();
        assert_eq!(taken.rest, [mapping(0, 10, 0, 1), mapping(20, 10, 20, 1)]);
        assert!(maps.take(10, 10).unwrap().whole.is_empty());
    }

    #[test]
    fn the_end_of_the_address_space_and_nothing() {
        let mut maps = Mappings::default();
        maps.put(mapping(u64::MAX - 10, 10, 0, 1)).unwrap();
        assert!(maps.take(0, 0).unwrap().whole.is_empty());
        assert_eq!(maps.take(0, u64::MAX).unwrap().whole.len(), 1);
    }
}
