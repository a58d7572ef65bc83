//! Which addresses show which object.

use std::collections::BTreeMap;

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
    by_address: BTreeMap<u64, Mapping>,
}

impl Mappings {
    /// The caller has taken out what was there before.
    pub fn put(&mut self, mapping: Mapping) {
        self.by_address.insert(mapping.address, mapping);
    }

    /// The mapping that shows `address`.
    pub fn at(&self, address: u64) -> Option<Mapping> {
        let (_, mapping) = self.by_address.range(..=address).next_back()?;
        (address < mapping.end()).then_some(*mapping)
    }

    /// All mappings that touch `[address, address + size)`.
    pub fn touching(&self, address: u64, size: u64) -> Vec<Mapping> {
        let end = address.saturating_add(size);
        let first = self.at(address).map_or(address, |mapping| mapping.address);
        self.by_address.range(first..end.max(first)).map(|(_, mapping)| *mapping).collect()
    }

    /// Takes `[address, address + size)` out; mappings that stick out keep what sticks out.
    pub fn take(&mut self, address: u64, size: u64) -> Taken {
        let end = address.saturating_add(size);
        let whole = self.touching(address, size);
        let mut rest = Vec::new();
        for mapping in &whole {
            self.by_address.remove(&mapping.address);
            rest.extend(mapping.cut(0, address));
            rest.extend(mapping.cut(end, u64::MAX));
        }
        for mapping in &rest {
            self.put(*mapping);
        }
        Taken { whole, rest }
    }

    /// Undoes [`Mappings::take`].
    pub fn put_back(&mut self, taken: &Taken) {
        for mapping in &taken.rest {
            self.by_address.remove(&mapping.address);
        }
        for mapping in &taken.whole {
            self.put(*mapping);
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
        maps.put(mapping(100, 10, 0, 1));
        assert_eq!(maps.at(99), None);
        assert_eq!(maps.at(100), maps.at(109));
        assert_eq!(maps.at(110), None);
    }

    #[test]
    fn one_take_covers_several_and_splits_at_its_ends() {
        let mut maps = Mappings::default();
        let all = [mapping(0, 10, 5, 1), mapping(10, 10, 0, 2), mapping(20, 10, 0, 3)];
        for each in all {
            maps.put(each);
        }
        let taken = maps.take(5, 20);
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
        maps.put(mapping(0, 30, 0, 1));
        let taken = maps.take(10, 10);
        assert_eq!(taken.rest, [mapping(0, 10, 0, 1), mapping(20, 10, 20, 1)]);
        assert!(maps.take(10, 10).whole.is_empty());
    }

    #[test]
    fn the_end_of_the_address_space_and_nothing() {
        let mut maps = Mappings::default();
        maps.put(mapping(u64::MAX - 10, 10, 0, 1));
        assert!(maps.take(0, 0).whole.is_empty());
        assert_eq!(maps.take(0, u64::MAX).whole.len(), 1);
    }
}
