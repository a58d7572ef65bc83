//! PyTorch's backend `cudaMallocAsync`: each request goes to the driver's memory pool of the device, which keeps what it
//! took (PyTorch sets its release threshold to the maximum).
//!
//! The pool grows by multiples of 32 MiB and places blocks at multiples of 512 B (measured on an H200). Where it places
//! them is not documented, so the result is an interval. At the least it reserves the live bytes, rounded up. The most is
//! that of best fit inside of each growth, with streams that share nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::replay::{Least, ReplayFailure, ReplayOutcome};
use super::rounding::MIN_BLOCK;
use super::{Log, Request};

/// The pool grows by multiples of this.
const STEP: u64 = 32 << 20;
/// More bytes than any device has.
const LARGEST: u64 = 1 << 47;

/// A block, or a free range.
#[derive(Clone, Copy, Debug)]
struct Range {
    address: u64,
    size: u64,
    stream: u32,
}

#[derive(Debug, Default)]
struct Pool {
    /// Stream, size, address of each free range.
    by_size: BTreeSet<(u32, u64, u64)>,
    by_address: BTreeMap<u64, Range>,
    /// Address and size of each growth.
    growths: Vec<(u64, u64)>,
    next: u64,
    reserved: u64,
    live: u64,
}

impl Pool {
    fn take(&mut self, size: u64, stream: u32) -> Range {
        let size = size.max(1).next_multiple_of(MIN_BLOCK);
        self.live += size;
        let fitting = (stream, size, 0)..=(stream, u64::MAX, u64::MAX);
        let found = self.by_size.range(fitting).next().copied();
        let range = match found {
            Some((_, _, address)) => self.remove(address),
            None => {
                let (address, grown) = (self.next, size.next_multiple_of(STEP));
                // Growths do not touch: a range lies in one.
                self.next += grown + MIN_BLOCK;
                self.growths.push((address, grown));
                self.reserved += grown;
                Range { address, size: grown, stream }
            }
        };
        if range.size > size {
            self.add(Range { address: range.address + size, size: range.size - size, stream });
        }
        Range { size, ..range }
    }

    fn give_back(&mut self, mut range: Range) {
        self.live -= range.size;
        let joins = |other: &Range| other.stream == range.stream;
        if let Some(next) =
            self.by_address.get(&(range.address + range.size)).copied().filter(joins)
        {
            self.remove(next.address);
            range.size += next.size;
        }
        let before = self.by_address.range(..range.address).next_back().map(|(_, it)| *it);
        if let Some(before) =
            before.filter(|it| it.stream == range.stream && it.address + it.size == range.address)
        {
            self.remove(before.address);
            range.address = before.address;
            range.size += before.size;
        }
        self.add(range);
    }

    /// The growths without a block go back to the driver.
    fn empty(&mut self) {
        for (address, size) in std::mem::take(&mut self.growths) {
            match self.by_address.get(&address).is_some_and(|range| range.size == size) {
                true => {
                    self.remove(address);
                    self.reserved -= size;
                }
                false => self.growths.push((address, size)),
            }
        }
    }

    fn add(&mut self, range: Range) {
        self.by_size.insert((range.stream, range.size, range.address));
        self.by_address.insert(range.address, range);
    }

    fn remove(&mut self, address: u64) -> Range {
        let range = self.by_address.remove(&address).expect("a free range");
        self.by_size.remove(&(range.stream, range.size, range.address));
        range
    }
}

/// Replays a log. Where `capacity` is less than the most that the pool may reserve, the outcome fails.
pub(super) fn replay(log: &Log, capacity: Option<u64>) -> ReplayOutcome {
    let mut pool = Pool::default();
    let starts = log.start().iter();
    // By slot.
    let mut blocks: Vec<Range> = starts
        .flat_map(|segment| segment.blocks.iter().map(|(_, size)| (*size, segment.stream)))
        .map(|(size, stream)| pool.take(size, stream))
        .collect();
    let (mut outcome, mut least, mut outside) = (ReplayOutcome::default(), Least::default(), 0u64);
    for (at, request) in log.requests().enumerate() {
        match request {
            Request::Alloc { size, stream, slot, .. } => {
                if size > LARGEST || pool.reserved > LARGEST {
                    outcome.failure = Some(ReplayFailure { at, outside: false });
                    break;
                }
                let block = pool.take(size, stream);
                match blocks.get_mut(slot as usize) {
                    Some(place) => *place = block,
                    None => blocks.push(block),
                }
            }
            Request::Free { slot } => pool.give_back(blocks[slot as usize]),
            Request::EmptyCache => pool.empty(),
            Request::PoolEnds { .. } => {}
            Request::Outside { bytes } => outside = bytes,
        }
        let needed = pool.live.next_multiple_of(STEP);
        outcome.peak_allocated = outcome.peak_allocated.max(pool.live);
        outcome.peak_reserved = outcome.peak_reserved.max(pool.reserved);
        outcome.peak_total = outcome.peak_total.max(pool.reserved.saturating_add(outside));
        outcome.peak_needed = outcome.peak_needed.max(pool.live.saturating_add(outside));
        least.reserved = least.reserved.max(needed);
        least.total = least.total.max(needed.saturating_add(outside));
        if outcome.failure.is_none() && capacity.is_some_and(|all| outcome.peak_total > all) {
            let outside = matches!(request, Request::Outside { .. });
            outcome.failure = Some(ReplayFailure { at, outside });
        }
    }
    outcome.driver_allocations = log.allocations();
    outcome.least = Some(least);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn reserved(log: &Log) -> (u64, u64) {
        let outcome = replay(log, None);
        (outcome.least.unwrap().reserved / MIB, outcome.peak_reserved / MIB)
    }

    #[test]
    fn it_grows_by_32_mib_and_keeps_what_it_has() {
        let mut log = Log::default();
        log.alloc(1, 1000, 0, 0);
        assert_eq!(reserved(&log), (32, 32));
        log.alloc(2, 100 * MIB, 0, 0);
        // 100 MiB and 1,024 B need 128 MiB at the least.
        assert_eq!(reserved(&log), (128, 160));
        log.free(2);
        log.alloc(3, 20 * MIB, 0, 0);
        log.alloc(4, 80 * MIB, 0, 0);
        assert_eq!(reserved(&log), (128, 160), "the smaller rest of 32 MiB serves the 20");
    }

    #[test]
    fn neighbours_join_inside_of_a_growth_and_streams_stay_apart() {
        let mut log = Log::default();
        for address in 0..4 {
            log.alloc(address, 8 * MIB, 0, 0);
        }
        for address in [1, 3, 2, 0] {
            log.free(address);
        }
        log.alloc(7, 32 * MIB, 0, 0);
        assert_eq!(reserved(&log), (32, 32));
        log.free(7);
        log.alloc(8, 8 * MIB, 1, 0);
        assert_eq!(reserved(&log), (32, 64));
        log.empty_cache();
        log.alloc(9, 64 * MIB, 0, 0);
        assert_eq!(reserved(&log), (96, 96), "the first 32 MiB went back");
    }

    #[test]
    fn a_capacity_below_the_most_fails_and_one_below_the_least_is_certain() {
        let mut log = Log::default();
        log.outside(100 * MIB);
        log.alloc(1, 20 * MIB, 0, 0);
        log.alloc(2, 20 * MIB, 0, 0);
        let at = |capacity: u64| replay(&log, Some(capacity * MIB)).failure.map(|it| it.at);
        assert_eq!((at(164), at(163)), (None, Some(2)));
        assert_eq!(replay(&log, None).least, Some(Least { reserved: 64 * MIB, total: 164 * MIB }));
    }
}
