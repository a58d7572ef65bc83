//! References that are neither handles nor mappings: memory bound to a multicast object, and tiles
//! of sparse arrays backed by an object.

use crate::runtime::fallible::{TryPush, list_of};

/// The holder of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A multicast object, by its number.
    Multicast(u64),
    /// A sparse array or mipmapped array, by its handle.
    Array(u64),
}

/// The part of the owner that is backed. Regions of different `lane`s never overlap (the device of a
/// multicast bind; level and layer of an array). The box is half-open in up to three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub lane: u64,
    pub from: [u64; 3],
    pub to: [u64; 3],
}

impl Region {
    pub fn span(lane: u64, offset: u64, size: u64) -> Region {
        Region { lane, from: [offset, 0, 0], to: [offset.saturating_add(size), 1, 1] }
    }

    fn covers(&self, other: &Region) -> bool {
        self.lane == other.lane
            && (0..3).all(|d| self.from[d] <= other.from[d] && other.to[d] <= self.to[d])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tie {
    pub region: Region,
    /// Number of the object.
    pub object: u64,
}

/// In the order in which they were made.
#[derive(Debug, Default)]
pub struct Ties(Vec<(Owner, Tie)>);

impl Ties {
    /// Without host memory the tie is dropped and its reference stays: the count is then too high,
    /// never too low.
    pub fn put(&mut self, owner: Owner, tie: Tie) {
        let _ = self.0.try_push((owner, tie));
    }

    /// Removes and returns the ties of `owner` in `region`, or all of them without one. Empty without
    /// host memory for the list.
    pub fn take(&mut self, owner: Owner, region: Option<Region>) -> Vec<Tie> {
        let is_taken = |(of, tie): &(Owner, Tie)| {
            *of == owner && region.is_none_or(|region| region.covers(&tie.region))
        };
        let taken = || self.0.iter().filter(|one| is_taken(one)).map(|(_, tie)| *tie);
        let Ok(list) = list_of(taken().count(), taken()) else { return Vec::new() };
        self.0.retain(|one| !is_taken(one));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_takes_what_it_covers_and_no_more() {
        let mut ties = Ties::default();
        let owner = Owner::Multicast(7);
        for (lane, offset) in [(0, 0), (0, 10), (1, 0)] {
            ties.put(owner, Tie { region: Region::span(lane, offset, 10), object: offset });
        }
        assert!(ties.take(owner, Some(Region::span(0, 5, 10))).is_empty());
        assert_eq!(ties.take(owner, Some(Region::span(0, 0, 20))).len(), 2);
        assert!(ties.take(Owner::Array(7), None).is_empty());
        assert_eq!(ties.take(owner, None).len(), 1);
        assert!(ties.0.is_empty());
    }
}
