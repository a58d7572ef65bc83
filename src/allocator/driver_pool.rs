//! PyTorch's backend `cudaMallocAsync`: each request goes to the driver's memory pool of the device, which keeps what it
//! took (PyTorch sets its release threshold to the maximum).
//!
//! The pool grows by multiples of 32 MiB, each growth behind the one before, and places blocks at multiples of 512 B
//! (measured on an H200 and an H100). Which free piece it takes is not documented and depends on how far the card is, so
//! the result is an interval. At the least it reserves the live bytes, rounded up. The most is that of best fit among the
//! pieces as they were freed, which join with their neighbours only when the pool grows, and of streams that share nothing:
//! the addresses of 4,800 requests on an H100 show that the pool often grows although neighbours would have been enough.

use std::collections::{BTreeMap, BTreeSet};

use super::rounding::MIN_BLOCK;
use super::{Log, ReplayFailure, ReplayOutcome, Request};

/// The pool grows by multiples of this.
const STEP: u64 = 32 << 20;
/// More bytes than any device has.
const LARGEST: u64 = 1 << 47;

/// A block, or a free piece.
#[derive(Clone, Copy, Debug)]
struct Range {
    address: u64,
    size: u64,
    stream: u32,
}

impl Range {
    fn end(&self) -> u64 {
        self.address + self.size
    }
}

#[derive(Debug, Default)]
struct Pool {
    /// Stream, size, address of each free piece.
    by_size: BTreeSet<(u32, u64, u64)>,
    by_address: BTreeMap<u64, Range>,
    /// Address and size of each growth.
    growths: Vec<(u64, u64)>,
    /// What no block has had yet, of the latest growth: `used..end`.
    used: u64,
    end: u64,
    reserved: u64,
    live: u64,
}

impl Pool {
    fn take(&mut self, size: u64, stream: u32) -> Range {
        let size = size.max(1).next_multiple_of(MIN_BLOCK);
        self.live += size;
        let fitting = (stream, size, 0)..=(stream, u64::MAX, u64::MAX);
        let found = self.by_size.range(fitting).next().copied();
        let Some((_, _, address)) = found else { return self.take_new(size, stream) };
        let piece = self.remove(address);
        if piece.size > size {
            self.add(Range { address: piece.address + size, size: piece.size - size, stream });
        }
        Range { size, ..piece }
    }

    /// A block that no piece is large enough for.
    fn take_new(&mut self, size: u64, stream: u32) -> Range {
        let missing = size.saturating_sub(self.end - self.used);
        if missing > 0 {
            let grown = missing.next_multiple_of(STEP);
            self.growths.push((self.end, grown));
            self.end += grown;
            self.reserved += grown;
            self.join();
        }
        let address = self.used;
        self.used += size;
        Range { address, size, stream }
    }

    fn give_back(&mut self, block: Range) {
        self.live -= block.size;
        self.add(block);
    }

    /// Neighbouring pieces of a stream become one.
    fn join(&mut self) {
        let mut joined: Vec<Range> = Vec::with_capacity(self.by_address.len());
        for (_, piece) in std::mem::take(&mut self.by_address) {
            match joined.last_mut() {
                Some(last) if last.end() == piece.address && last.stream == piece.stream => {
                    last.size += piece.size;
                }
                _ => joined.push(piece),
            }
        }
        self.by_size.clear();
        joined.into_iter().for_each(|piece| self.add(piece));
    }

    /// The growths without a block go back to the driver.
    fn empty(&mut self) {
        self.join();
        for (address, size) in std::mem::take(&mut self.growths) {
            let is_last = address + size == self.end;
            let end = if is_last { self.used.max(address) } else { address + size };
            let piece = self.by_address.range(..=address).next_back().map(|(_, piece)| *piece);
            match piece.filter(|piece| piece.end() >= end) {
                Some(piece) => {
                    self.remove(piece.address);
                    if piece.address < address {
                        self.add(Range { size: address - piece.address, ..piece });
                    }
                    if piece.end() > end {
                        self.add(Range { address: end, size: piece.end() - end, ..piece });
                    }
                }
                None if end == address => {}
                None => {
                    self.growths.push((address, size));
                    continue;
                }
            }
            self.reserved -= size;
            if is_last {
                // Addresses are not used again: what lies behind is another growth.
                self.used = self.end;
            }
        }
    }

    fn add(&mut self, piece: Range) {
        self.by_size.insert((piece.stream, piece.size, piece.address));
        self.by_address.insert(piece.address, piece);
    }

    fn remove(&mut self, address: u64) -> Range {
        let piece = self.by_address.remove(&address).expect("a free piece");
        self.by_size.remove(&(piece.stream, piece.size, piece.address));
        piece
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
    let (mut outcome, mut outside) = (ReplayOutcome::default(), 0u64);
    let (mut least_reserved, mut least_total) = (0, 0);
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
        least_reserved = needed.max(least_reserved);
        least_total = needed.saturating_add(outside).max(least_total);
        if outcome.failure.is_none() && capacity.is_some_and(|all| outcome.peak_total > all) {
            let outside = matches!(request, Request::Outside { .. });
            outcome.failure = Some(ReplayFailure { at, outside });
        }
    }
    outcome.driver_allocations = log.allocations();
    (outcome.least_reserved, outcome.least_total) = (Some(least_reserved), Some(least_total));
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn reserved(log: &Log) -> (u64, u64) {
        let outcome = replay(log, None);
        (outcome.least_reserved.unwrap() / MIB, outcome.peak_reserved / MIB)
    }

    #[test]
    fn it_grows_by_32_mib_behind_what_it_has_and_keeps_it() {
        let mut log = Log::default();
        log.alloc(1, 1000, 0, 0);
        assert_eq!(reserved(&log), (32, 32));
        log.alloc(2, 100 * MIB, 0, 0);
        // 100 MiB and 1,024 B: the rest of the first growth serves a part.
        assert_eq!(reserved(&log), (128, 128));
        log.free(2);
        log.alloc(3, 20 * MIB, 0, 0);
        log.alloc(4, 80 * MIB, 0, 0);
        assert_eq!(reserved(&log), (128, 128), "the piece of 100 MiB serves both");
        log.free(3);
        log.alloc(5, 27 * MIB, 0, 0);
        assert_eq!(reserved(&log), (128, 128), "the rest that no block has had yet");
        log.alloc(6, 21 * MIB, 0, 0);
        assert_eq!(reserved(&log), (160, 160));
    }

    #[test]
    fn neighbours_join_when_the_pool_grows_and_streams_stay_apart() {
        let mut log = Log::default();
        for address in 0..4 {
            log.alloc(address, 8 * MIB, 0, 0);
        }
        for address in [1, 3, 2, 0] {
            log.free(address);
        }
        log.alloc(7, 30 * MIB, 0, 0);
        assert_eq!(reserved(&log), (32, 64), "no piece of 8 MiB is enough");
        log.alloc(8, 32 * MIB, 0, 0);
        assert_eq!(reserved(&log), (64, 64), "then they are one");
        log.free(7);
        log.alloc(9, 8 * MIB, 1, 0);
        assert_eq!(reserved(&log), (64, 96));
        log.free(8);
        log.empty_cache();
        log.alloc(10, 64 * MIB, 0, 0);
        // The first growth went back; a block is at the end of the second one.
        assert_eq!(reserved(&log), (96, 128));
    }

    #[test]
    fn a_capacity_below_the_most_fails_and_one_below_the_least_is_certain() {
        let mut log = Log::default();
        log.outside(100 * MIB);
        log.alloc(1, 20 * MIB, 0, 0);
        log.alloc(2, 20 * MIB, 0, 0);
        let at = |capacity: u64| replay(&log, Some(capacity * MIB)).failure.map(|it| it.at);
        assert_eq!((at(164), at(163)), (None, Some(2)));
        let free = replay(&log, None);
        assert_eq!((free.least_reserved, free.least_total), (Some(64 * MIB), Some(164 * MIB)));
    }
}
