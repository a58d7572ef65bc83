//! A log of a program's requests to PyTorch's allocator, in order, without the returned addresses.
//!
//! It takes about three bytes for each request, because every setting and limit reads it once.

use rustc_hash::FxHashMap;

use super::rounding::{MIN_BLOCK, SMALL, SMALL_SEGMENT};

/// One request. A slot is the number of a live allocation; it is used again after the free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Alloc {
        size: u64,
        stream: u32,
        pool: u16,
        slot: u32,
    },
    Free {
        slot: u32,
    },
    /// torch.cuda.empty_cache()
    EmptyCache,
    /// No graph uses the private pool any more: it is emptied with the cache from here on.
    PoolEnds {
        pool: u16,
    },
    /// From here on, this many bytes of the device are in use outside of PyTorch's cache.
    Outside {
        bytes: u64,
    },
}

/// A segment that exists when the log begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSegment {
    pub address: u64,
    pub size: u64,
    pub stream: u32,
    pub pool: u16,
    /// A run of mapped pages.
    pub expandable: bool,
    /// Address and size of what is allocated in it, in order.
    pub blocks: Vec<(u64, u64)>,
}

impl LogSegment {
    /// Whether it belongs to a pool for small blocks.
    pub fn is_small(&self) -> bool {
        self.blocks.first().map_or(self.size <= SMALL_SEGMENT, |(_, size)| *size <= SMALL)
    }
}

/// A recorded run, ready to be replayed under any setting.
#[derive(Clone, Debug, Default)]
pub struct Log {
    start: Vec<LogSegment>,
    bytes: Vec<u8>,
    requests: usize,
    allocations: u64,
    /// Stream and pool of the allocations that follow.
    stream_pool: (u32, u16),
    outside: u64,
    live: FxHashMap<u64, u32>,
    slots: Slots,
    /// Private pools that are another one, by number.
    same_pool: FxHashMap<u16, u16>,
}

/// Assigns slots, in the same order when the log is written and when it is read.
#[derive(Clone, Debug, Default)]
struct Slots {
    spare: Vec<u32>,
    next: u32,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.spare.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// The low bits of a token. The other bits are a number.
mod tag {
    pub(super) const ALLOC: u64 = 0;
    /// A size that is no multiple of 512 B.
    pub(super) const ALLOC_BYTES: u64 = 1;
    pub(super) const FREE: u64 = 2;
    pub(super) const EMPTY_CACHE: u64 = 3;
    pub(super) const OUTSIDE: u64 = 4;
    pub(super) const STREAM: u64 = 5;
    pub(super) const POOL: u64 = 6;
    pub(super) const POOL_ENDS: u64 = 7;
    pub(super) const BITS: u32 = 3;
}

/// More bytes than any device has. Larger numbers come from damaged files.
const MAX_BYTES: u64 = 1 << 56;

impl Log {
    /// Sets the segments and blocks that exist before the first request. Those that overlap others, or lie
    /// outside, are left out. Returns the number of these.
    pub fn begin(&mut self, mut segments: Vec<LogSegment>) -> u64 {
        let mut dropped = 0;
        segments.sort_by_key(|segment| segment.address);
        let mut end = 0;
        segments.retain_mut(|segment| {
            let last = segment.address.saturating_add(segment.size);
            if segment.size == 0 || segment.address < end || last > MAX_BYTES {
                dropped += 1 + segment.blocks.len() as u64;
                return false;
            }
            segment.blocks.sort_unstable();
            let mut at = segment.address;
            segment.blocks.retain(|(address, size)| {
                let end = address.saturating_add(*size);
                let good = *size > 0 && *address >= at && end <= last;
                at = if good { end } else { at };
                dropped += u64::from(!good);
                good
            });
            end = last;
            true
        });
        for (address, _) in segments.iter().flat_map(|segment| &segment.blocks) {
            let slot = self.slots.take();
            self.live.insert(*address, slot);
        }
        self.start = segments;
        dropped
    }

    /// Adds the allocation of a block.
    pub fn alloc(&mut self, address: u64, size: u64, stream: u32, pool: u16) {
        if let Some(lost) = self.live.remove(&address) {
            // The free of the earlier block at this address is missing.
            self.put_free(lost);
        }
        self.put_alloc(size, stream, pool);
        let slot = self.slots.take();
        self.live.insert(address, slot);
    }

    /// Adds a free. Returns false, and adds nothing, for an address without a live block.
    pub fn free(&mut self, address: u64) -> bool {
        let slot = self.live.remove(&address);
        if let Some(slot) = slot {
            self.put_free(slot);
        }
        slot.is_some()
    }

    /// Whether a block at this address is live.
    pub fn is_live(&self, address: u64) -> bool {
        self.live.contains_key(&address)
    }

    /// Adds a call of torch.cuda.empty_cache().
    pub fn empty_cache(&mut self) {
        self.put(tag::EMPTY_CACHE, 0);
        self.requests += 1;
    }

    /// Adds the end of a private pool.
    pub fn pool_ends(&mut self, pool: u16) {
        self.put(tag::POOL_ENDS, u64::from(pool));
        self.requests += 1;
    }

    /// The two private pools are one, also in what was added before.
    pub fn merge_pools(&mut self, one: u16, other: u16) {
        let (one, other) = (same(&self.same_pool, one), same(&self.same_pool, other));
        if one != other {
            self.same_pool.insert(one.max(other), one.min(other));
            for segment in &mut self.start {
                segment.pool = same(&self.same_pool, segment.pool);
            }
        }
    }

    /// Adds a change of the bytes outside of the cache.
    pub fn outside(&mut self, bytes: u64) {
        if bytes != self.outside {
            self.outside = bytes;
            self.put(tag::OUTSIDE, bytes);
            self.requests += 1;
        }
    }

    /// Adds the request that failed and ended the run.
    pub fn refused(&mut self, size: u64) {
        self.put_alloc(size, self.stream_pool.0, self.stream_pool.1);
    }

    /// The segments that exist when the log begins.
    pub fn start(&self) -> &[LogSegment] {
        &self.start
    }

    pub fn allocations(&self) -> u64 {
        self.allocations
    }

    pub fn requests(&self) -> Requests<'_> {
        let next = self.start.iter().map(|segment| segment.blocks.len() as u32).sum();
        let slots = Slots { spare: Vec::new(), next };
        Requests { bytes: &self.bytes, stream_pool: (0, 0), slots, same_pool: &self.same_pool }
    }

    fn put_alloc(&mut self, size: u64, stream: u32, pool: u16) {
        if stream != self.stream_pool.0 {
            self.put(tag::STREAM, u64::from(stream));
        }
        if pool != self.stream_pool.1 {
            self.put(tag::POOL, u64::from(pool));
        }
        self.stream_pool = (stream, pool);
        let size = size.min(MAX_BYTES);
        match size.is_multiple_of(MIN_BLOCK) {
            true => self.put(tag::ALLOC, size / MIN_BLOCK),
            false => self.put(tag::ALLOC_BYTES, size),
        }
        self.requests += 1;
        self.allocations += 1;
    }

    fn put_free(&mut self, slot: u32) {
        self.put(tag::FREE, u64::from(slot));
        self.slots.spare.push(slot);
        self.requests += 1;
    }

    /// Writes a token as LEB128: seven bits in each byte, the high bit set in all but the last.
    fn put(&mut self, tag: u64, number: u64) {
        let mut word = number.min(MAX_BYTES) << tag::BITS | tag;
        while word >= 0x80 {
            self.bytes.push(word as u8 | 0x80);
            word >>= 7;
        }
        self.bytes.push(word as u8);
    }
}

/// The requests of a log, in order.
#[derive(Clone, Debug)]
pub struct Requests<'l> {
    bytes: &'l [u8],
    stream_pool: (u32, u16),
    slots: Slots,
    same_pool: &'l FxHashMap<u16, u16>,
}

/// The number that stands for a pool and all that are the same.
fn same(pools: &FxHashMap<u16, u16>, mut pool: u16) -> u16 {
    // Each entry leads to a lower number.
    while let Some(lower) = pools.get(&pool) {
        pool = *lower;
    }
    pool
}

impl Requests<'_> {
    fn word(&mut self) -> Option<u64> {
        let (mut word, mut shift) = (0, 0);
        loop {
            let (byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            word |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(word);
            }
            shift += 7;
        }
    }
}

impl Iterator for Requests<'_> {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        loop {
            let word = self.word()?;
            let (tag, number) = (word & ((1 << tag::BITS) - 1), word >> tag::BITS);
            return Some(match tag {
                tag::STREAM => {
                    self.stream_pool.0 = number as u32;
                    continue;
                }
                tag::POOL => {
                    self.stream_pool.1 = number as u16;
                    continue;
                }
                tag::FREE => {
                    self.slots.spare.push(number as u32);
                    Request::Free { slot: number as u32 }
                }
                tag::EMPTY_CACHE => Request::EmptyCache,
                tag::OUTSIDE => Request::Outside { bytes: number },
                tag::POOL_ENDS => Request::PoolEnds { pool: same(self.same_pool, number as u16) },
                tag => {
                    let size = if tag == tag::ALLOC { number * MIN_BLOCK } else { number };
                    let (stream, pool) =
                        (self.stream_pool.0, same(self.same_pool, self.stream_pool.1));
                    Request::Alloc { size, stream, pool, slot: self.slots.take() }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pools_that_turn_out_to_be_one_are_one_from_the_beginning() {
        let mut log = Log::default();
        let segment = LogSegment { address: 4096, size: 4096, pool: 9, ..LogSegment::default() };
        log.begin(vec![segment]);
        for pool in [3, 5, 7, 9] {
            log.alloc(u64::from(pool), 512, 1, pool);
        }
        log.merge_pools(9, 5);
        log.merge_pools(3, 9);
        log.merge_pools(5, 3);
        log.pool_ends(9);
        let pools: Vec<u16> = log
            .requests()
            .filter_map(|request| match request {
                Request::Alloc { pool, .. } | Request::PoolEnds { pool } => Some(pool),
                _ => None,
            })
            .collect();
        assert_eq!(pools, [3, 3, 7, 3, 3]);
        assert_eq!(log.start()[0].pool, 3);
    }

    #[test]
    fn what_went_in_comes_out() {
        let mut log = Log::default();
        let segment = LogSegment {
            address: 4096,
            size: 4096,
            blocks: vec![(4608, 512)],
            ..LogSegment::default()
        };
        assert_eq!(log.begin(vec![segment]), 0);
        log.alloc(1, 700, 0, 0);
        log.outside(9);
        log.outside(9);
        log.alloc(2, 1 << 40, 3, 0);
        assert!(log.free(4608));
        assert!(!log.free(4608), "freed already");
        log.alloc(3, 512, 3, 2);
        log.empty_cache();
        log.refused(1024);
        let alloc = |size, stream, pool, slot| Request::Alloc { size, stream, pool, slot };
        let expected = [
            alloc(700, 0, 0, 1),
            Request::Outside { bytes: 9 },
            alloc(1 << 40, 3, 0, 2),
            Request::Free { slot: 0 },
            alloc(512, 3, 2, 0),
            Request::EmptyCache,
            alloc(1024, 3, 2, 3),
        ];
        assert_eq!(log.requests().collect::<Vec<_>>(), expected);
        assert_eq!((log.requests, log.allocations()), (7, 4));
    }

    #[test]
    fn a_beginning_that_does_not_fit_together_is_left_out() {
        let segment = |address, size, blocks: &[(u64, u64)]| LogSegment {
            address,
            size,
            blocks: blocks.to_vec(),
            ..LogSegment::default()
        };
        let mut log = Log::default();
        let dropped = log.begin(vec![
            segment(8192, 4096, &[(8192, 512), (8500, 512), (12_000, 512)]),
            segment(9000, 512, &[(9000, 512)]),
            segment(u64::MAX - 5, 512, &[]),
            segment(0, 0, &[]),
        ]);
        assert_eq!(dropped, 6);
        assert_eq!(log.start(), [segment(8192, 4096, &[(8192, 512)])]);
    }

    proptest! {
        /// Slots name what is live, never two at once.
        #[test]
        fn slots_are_of_one_at_a_time(steps in prop::collection::vec((0u64..20, any::<bool>()), 0..200)) {
            let mut log = Log::default();
            for (address, allocates) in steps {
                match allocates {
                    true => log.alloc(address, 512, 0, 0),
                    false => { log.free(address); }
                }
            }
            let mut live = std::collections::HashSet::new();
            for request in log.requests() {
                match request {
                    Request::Alloc { slot, .. } => prop_assert!(live.insert(slot)),
                    Request::Free { slot } => prop_assert!(live.remove(&slot)),
                    _ => prop_assert!(false),
                }
            }
            prop_assert_eq!(live.len(), log.live.len());
        }
    }
}
