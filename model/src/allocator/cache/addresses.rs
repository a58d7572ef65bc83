//! The addresses of segments. They decide which of several free blocks of one size is taken.
//!
//! The driver takes address space in chunks, multiples of 32 MiB, each below the one before. A segment lies at the
//! start of a chunk, or of the rest of one: of the newest chunk whose rest is large enough. A chunk without segments
//! goes back, and the highest gap that is large enough serves the next chunk. (Found from the addresses of two recorded
//! runs of torch 2.11 on an H200, tests/integration/torch/allocator_truth.rs.)

use std::collections::BTreeMap;

const CHUNK: u64 = 32 << 20;

/// Where chunks begin, downwards.
const TOP: u64 = 1 << 50;
/// Below it, chunks begin at [`TOP`] again: addresses only order blocks, and two may then be equal.
const BOTTOM: u64 = 1 << 49;

#[derive(Debug)]
struct Chunk {
    size: u64,
    /// Chunks are numbered as they are made.
    number: u64,
    /// Address and size of what no segment takes, in order.
    rest: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Addresses {
    /// By address.
    chunks: BTreeMap<u64, Chunk>,
    /// Address and largest rest of each chunk that has one, by the chunk's number.
    open: BTreeMap<u64, (u64, u64)>,
    /// Address and size of what lies between chunks.
    gaps: BTreeMap<u64, u64>,
    bottom: u64,
    made: u64,
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses {
            chunks: BTreeMap::new(),
            open: BTreeMap::new(),
            gaps: BTreeMap::new(),
            bottom: TOP,
            made: 0,
        }
    }
}

impl Addresses {
    /// The address of a new segment.
    pub(super) fn take(&mut self, size: u64) -> u64 {
        let open = self.open.values().rev().find(|(_, largest)| *largest >= size);
        let start = match open.map(|(start, _)| *start) {
            Some(start) => start,
            None => self.new_chunk(size),
        };
        let chunk = self.chunks.get_mut(&start).expect("it is open, or new");
        let index =
            chunk.rest.iter().position(|(_, rest)| *rest >= size).expect("the largest is enough");
        let (address, rest) = chunk.rest[index];
        if rest == size {
            chunk.rest.remove(index);
        } else {
            chunk.rest[index] = (address + size, rest - size);
        }
        self.note_rest(start);
        address
    }

    /// A segment at an address of [`Addresses::take`] goes. Nothing happens for other addresses.
    pub(super) fn give_back(&mut self, address: u64, size: u64) {
        let Some((&start, chunk)) = self.chunks.range_mut(..=address).next_back() else { return };
        if address + size > start + chunk.size {
            return;
        }
        let index = chunk.rest.partition_point(|(other, _)| *other < address);
        chunk.rest.insert(index, (address, size));
        chunk.rest.dedup_by(|later, earlier| {
            let joins = earlier.0 + earlier.1 == later.0;
            earlier.1 += if joins { later.1 } else { 0 };
            joins
        });
        if chunk.rest[0].1 == chunk.size {
            let Chunk { size, number, .. } = self.chunks.remove(&start).expect("it was found");
            self.open.remove(&number);
            self.add_gap(start, size);
        } else {
            self.note_rest(start);
        }
    }

    fn note_rest(&mut self, start: u64) {
        let chunk = &self.chunks[&start];
        match chunk.rest.iter().map(|(_, size)| *size).max() {
            Some(largest) => self.open.insert(chunk.number, (start, largest)),
            None => self.open.remove(&chunk.number),
        };
    }

    fn new_chunk(&mut self, size: u64) -> u64 {
        let size = size.next_multiple_of(CHUNK);
        let gap = self.gaps.iter().rev().find(|(_, gap)| **gap >= size);
        let start = match gap.map(|(start, gap)| (*start, *gap)) {
            Some((start, gap)) => {
                self.gaps.remove(&start);
                if gap > size {
                    self.gaps.insert(start, gap - size);
                }
                start + gap - size
            }
            None => {
                if self.bottom < BOTTOM + size {
                    *self = Addresses { made: self.made, ..Addresses::default() };
                }
                self.bottom -= size;
                self.bottom
            }
        };
        let number = self.made;
        self.made += 1;
        self.chunks.insert(start, Chunk { size, number, rest: vec![(start, size)] });
        start
    }

    fn add_gap(&mut self, mut start: u64, mut size: u64) {
        if let Some(after) = self.gaps.remove(&(start + size)) {
            size += after;
        }
        if let Some((&before, &gap)) = self.gaps.range(..start).next_back()
            && before + gap == start
        {
            (start, size) = (before, gap + size);
        }
        self.gaps.insert(start, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// In MiB below the top.
    fn below(address: u64) -> u64 {
        (TOP - address) / MIB
    }

    #[test]
    fn chunks_go_down_and_their_rests_are_used_newest_first() {
        let mut addresses = Addresses::default();
        let places: Vec<u64> =
            [20, 20, 12, 62, 2, 20, 16].map(|mib| below(addresses.take(mib * MIB))).to_vec();
        assert_eq!(places, [32, 64, 44, 128, 66, 160, 192]);
    }

    #[test]
    fn a_chunk_without_segments_goes_and_the_highest_gap_serves() {
        let mut addresses = Addresses::default();
        let all: Vec<u64> = (0..4).map(|_| addresses.take(20 * MIB)).collect();
        addresses.take(2 * MIB);
        for address in [all[3], all[0], all[1]] {
            addresses.give_back(address, 20 * MIB);
        }
        // The rest of a chunk in use comes before a gap.
        assert_eq!(below(addresses.take(20 * MIB)), 128);
        assert_eq!(below(addresses.take(20 * MIB)), 32);
        assert_eq!(below(addresses.take(60 * MIB)), 192, "the gap of 32 MiB is too small");
        assert_eq!(below(addresses.take(20 * MIB)), 64);
        addresses.give_back(1, 2);
    }
}
