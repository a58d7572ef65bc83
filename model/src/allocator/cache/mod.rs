//! Segments, blocks, and the decisions between them.

mod addresses;
mod adopt;
mod blocks;
mod expandable;
mod segments;
#[cfg(test)]
mod tests;

pub use blocks::BlockId;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::Conf;
use super::rounding::{self, MIN_BLOCK, SMALL};
use addresses::Addresses;
use blocks::{Blocks, Pool};
use segments::Limits;

/// The limit is met even with an empty cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// No device has so much: what asks for more gets nothing, whatever the limit.
const LARGEST: u64 = 1 << 47;

/// Where the addresses of expandable segments begin: above those of others.
const FIRST_ADDRESS: u64 = 1 << 51;

/// What a replay needs. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct ReplayOutcome {
    #[serde(rename = "peak_reserved_bytes")]
    pub peak_reserved: u64,
    #[serde(rename = "peak_allocated_bytes")]
    pub peak_allocated: u64,
    /// Calls of cudaMalloc, or mappings of pages with expandable segments.
    pub driver_allocations: u64,
    pub driver_frees: u64,
    /// Times that the cache was emptied to serve a request.
    pub retries: u64,
    /// Highest sum of the reserved bytes and the bytes outside of the cache.
    #[serde(skip)]
    pub peak_total: u64,
    /// Highest sum of the allocated bytes and the bytes outside of the cache: no setting needs less.
    #[serde(skip)]
    pub peak_needed: u64,
    /// At its end.
    #[serde(skip)]
    pub reserved: u64,
    #[serde(skip)]
    pub allocated: u64,
    #[serde(skip)]
    pub failure: Option<ReplayFailure>,
}

/// The request at which a replay ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayFailure {
    /// Index of the request that could not be served.
    pub at: usize,
    /// The bytes outside of the cache did not fit: no request of PyTorch failed.
    pub outside: bool,
}

impl ReplayOutcome {
    /// Whether all requests were served.
    pub fn fits(&self) -> bool {
        self.failure.is_none()
    }
}

/// The caching allocator's state for one device.
#[derive(Debug)]
pub struct Cache {
    conf: Conf,
    room: Limits,
    blocks: Blocks,
    pool_of: FxHashMap<(u16, u32, bool), u32>,
    /// Private pools that no graph uses any more.
    ended: FxHashSet<u16>,
    /// Searches for a free block in the default pool for large ones: the clock of garbage collection.
    searches: u64,
    addresses: Addresses,
    /// Of the next expandable segment.
    next_address: u64,
    totals: ReplayOutcome,
}

impl Cache {
    /// `capacity`: the bytes of the card or the cap, for this cache and all others.
    pub fn new(conf: Conf, capacity: Option<u64>) -> Cache {
        Cache {
            room: Limits::new(capacity, conf.per_process_memory_fraction),
            conf,
            blocks: Blocks::default(),
            pool_of: FxHashMap::default(),
            ended: FxHashSet::default(),
            searches: 0,
            addresses: Addresses::default(),
            next_address: FIRST_ADDRESS,
            totals: ReplayOutcome::default(),
        }
    }

    /// So far.
    pub fn totals(&self) -> &ReplayOutcome {
        &self.totals
    }

    /// Address and size of an allocated block.
    pub fn span(&self, block: BlockId) -> (u64, u64) {
        let block = self.blocks.at(block);
        (block.address, block.size)
    }

    /// Serves `requested` bytes on `stream` from the pool `pool` (0 = default).
    pub fn alloc(
        &mut self,
        requested: u64,
        stream: u32,
        pool: u16,
    ) -> Result<BlockId, OutOfMemory> {
        if requested > LARGEST {
            return Err(OutOfMemory);
        }
        let size = rounding::block_size(&self.conf, requested);
        let pool = self.pool(pool, stream, size <= SMALL);
        let block = match self.find_free(pool, size) {
            Some(block) => block,
            None => self.more(pool, size)?,
        };
        let block = match self.should_split(block, size) {
            true => {
                let front = self.blocks.cut_front(block, size);
                self.blocks.offer(block);
                front
            }
            false => block,
        };
        let taken = self.blocks.at_mut(block);
        taken.allocated = true;
        self.totals.allocated += taken.size;
        self.note_peaks();
        Ok(block)
    }

    /// The block becomes free and merges with free neighbours.
    pub fn free(&mut self, block: BlockId) {
        let searches = self.searches;
        let freed = self.blocks.at_mut(block);
        debug_assert!(freed.allocated);
        freed.allocated = false;
        freed.freed_at = searches;
        self.totals.allocated -= freed.size;
        self.blocks.merge(block);
        self.blocks.offer(block);
    }

    /// No graph uses the private pool any more: it is emptied as the default one is.
    pub fn pool_ends(&mut self, private: u16) {
        self.ended.insert(private);
    }

    fn pool(&mut self, private: u16, stream: u32, small: bool) -> u32 {
        let pools = &mut self.blocks.pools;
        *self.pool_of.entry((private, stream, small)).or_insert_with(|| {
            pools.push(Pool { small, private, ..Pool::default() });
            (pools.len() - 1) as u32
        })
    }

    /// A free block that serves `size`, taken out of its list.
    fn find_free(&mut self, pool: u32, size: u64) -> Option<BlockId> {
        let from = &self.blocks.pools[pool as usize];
        if self.collects_garbage() && !from.small && from.private == 0 {
            self.searches += 1;
        }
        let mut found = from.fitting(size).next()?;
        if self.blocks.at(found).expandable {
            found = match self.conf.expandable_segments {
                true => self.fullest(found, from.fitting(size)),
                false => from.fitting(size).find(|block| !self.blocks.at(*block).expandable)?,
            };
        }
        let available = self.blocks.at(found).size;
        if size < self.conf.max_split_size && available >= self.conf.max_split_size {
            return None;
        }
        if size >= self.conf.max_split_size && available >= size + self.conf.max_non_split_rounding
        {
            return None;
        }
        self.blocks.take(found);
        Some(found)
    }

    /// The best fit counts what could still be mapped behind a block: from the first one on, for
    /// as long as it gets less.
    fn fullest(&self, first: BlockId, fitting: impl Iterator<Item = BlockId>) -> BlockId {
        let mut found = first;
        for candidate in fitting.skip(1) {
            if self.with_room_behind(candidate) >= self.with_room_behind(found) {
                break;
            }
            found = candidate;
        }
        found
    }

    /// Asks the driver, after the cache has given back what torch would give back.
    fn more(&mut self, pool: u32, size: u64) -> Result<BlockId, OutOfMemory> {
        let wanted = rounding::segment_size(&self.conf, size);
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Ok(block) = self.take_segment(pool, size, wanted) {
            return Ok(block);
        }
        if self.conf.max_split_size != u64::MAX
            && self.release_oversize(pool, size)
            && let Ok(block) = self.take_segment(pool, size, wanted)
        {
            return Ok(block);
        }
        self.empty();
        self.totals.retries += 1;
        self.take_segment(pool, size, wanted)
    }

    fn should_split(&self, block: BlockId, size: u64) -> bool {
        let rest = self.blocks.at(block).size - size;
        if self.blocks.pool(block).small || self.conf.expandable_segments {
            rest >= MIN_BLOCK
        } else {
            size < self.conf.max_split_size && rest > SMALL
        }
    }
}
