//! Segments, blocks, and the decisions between them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use super::Conf;
use super::rounding::{self, MIN_BLOCK, SMALL};

/// A block, while it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);

const NONE: BlockId = BlockId(u32::MAX);

/// The limit is met even with an empty cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub reserved: u64,
    pub allocated: u64,
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    pub driver_allocations: u64,
    pub driver_frees: u64,
    pub retries: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    size: u64,
    /// Neighbours in the same segment, by address.
    previous: BlockId,
    next: BlockId,
    pool: u32,
    stream: u32,
    allocated: bool,
    /// False for the unmapped parts of an expandable segment.
    mapped: bool,
    expandable: bool,
    /// The pool's count of searches when the block became free (garbage collection's age).
    freed_at: u64,
}

/// One of small and large, of the default or of a private pool.
#[derive(Debug, Default)]
struct Pool {
    small: bool,
    free: BTreeSet<(u32, u64, u64, BlockId)>,
    unmapped: BTreeSet<(u32, u64, BlockId)>,
    searches: u64,
}

/// The caching allocator's state for one device.
#[derive(Debug)]
pub struct Cache {
    conf: Conf,
    limit: Option<u64>,
    blocks: Vec<Block>,
    spare: Vec<BlockId>,
    pools: Vec<Pool>,
    pool_of: HashMap<(u16, bool), u32>,
    next_address: u64,
    totals: Totals,
}

/// Address space of one expandable segment: more than any card has, so that one is never too small.
const EXPANDABLE_SPAN: u64 = 1 << 40;

impl Cache {
    /// `limit`: the most bytes that may be reserved (the card's or the cap's room for torch).
    pub fn new(conf: Conf, limit: Option<u64>) -> Cache {
        let limit = match (limit, conf.per_process_memory_fraction) {
            (Some(bytes), Some(fraction)) => Some((bytes as f64 * fraction) as u64),
            (limit, _) => limit,
        };
        Cache {
            conf,
            limit,
            blocks: Vec::new(),
            spare: Vec::new(),
            pools: Vec::new(),
            pool_of: HashMap::new(),
            next_address: 1 << 40,
            totals: Totals::default(),
        }
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Address and size of an allocated block.
    pub fn span(&self, block: BlockId) -> (u64, u64) {
        let block = self.at(block);
        (block.address, block.size)
    }

    /// Serves `requested` bytes on `stream` from the pool `pool` (0 = default).
    pub fn alloc(
        &mut self,
        requested: u64,
        stream: u32,
        pool: u16,
    ) -> Result<BlockId, OutOfMemory> {
        let size = rounding::block_size(&self.conf, requested);
        let pool = self.pool(pool, size <= SMALL);
        let block = match self.find_free(pool, stream, size) {
            Some(block) => block,
            None => self.more(pool, stream, size)?,
        };
        let block = if self.should_split(block, size) { self.split(block, size) } else { block };
        self.at_mut(block).allocated = true;
        self.totals.allocated += self.at(block).size;
        self.totals.peak_allocated = self.totals.peak_allocated.max(self.totals.allocated);
        Ok(block)
    }

    /// The block becomes free and merges with free neighbours.
    pub fn free(&mut self, block: BlockId) {
        debug_assert!(self.at(block).allocated);
        self.totals.allocated -= self.at(block).size;
        let freed_at = self.pools[self.at(block).pool as usize].searches;
        let entry = self.at_mut(block);
        entry.allocated = false;
        entry.freed_at = freed_at;
        self.merge_previous(block);
        self.merge_next(block);
        self.insert_free(block);
    }

    /// Releases every segment that is wholly free, and the free pages of expandable ones.
    pub fn empty(&mut self) {
        for pool in (0..self.pools.len()).rev() {
            let free: Vec<BlockId> = self.pools[pool].free.iter().map(|entry| entry.3).collect();
            for block in free {
                if self.at(block).expandable {
                    self.unmap(block);
                } else if self.is_whole_segment(block) {
                    self.release_segment(block);
                }
            }
        }
    }

    // --- finding room -------------------------------------------------------------------------

    fn find_free(&mut self, pool: u32, stream: u32, size: u64) -> Option<BlockId> {
        if self.collects_garbage() {
            self.pools[pool as usize].searches += 1;
        }
        let free = &self.pools[pool as usize].free;
        let from = (stream, size, 0, BlockId(0));
        let mut fitting =
            free.range(from..).take_while(|entry| entry.0 == stream).map(|entry| entry.3);
        let mut found = fitting.next()?;
        if self.at(found).expandable {
            // The best fit counts what could still be mapped behind a block.
            for candidate in fitting {
                if self.with_room_behind(candidate) < self.with_room_behind(found) {
                    found = candidate;
                } else {
                    break;
                }
            }
        }
        let available = self.at(found).size;
        if size < self.conf.max_split_size && available >= self.conf.max_split_size {
            return None;
        }
        if size >= self.conf.max_split_size && available >= size + self.conf.max_non_split_rounding
        {
            return None;
        }
        self.remove_free(found);
        Some(found)
    }

    fn with_room_behind(&self, block: BlockId) -> u64 {
        let block = self.at(block);
        let behind = match block.next {
            NONE => 0,
            next if self.at(next).mapped => 0,
            next => self.at(next).size,
        };
        block.size + behind
    }

    /// Asks the driver, after the cache has given back what torch would give back.
    fn more(&mut self, pool: u32, stream: u32, size: u64) -> Result<BlockId, OutOfMemory> {
        let wanted = rounding::segment_size(&self.conf, size);
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Some(block) = self.take_segment(pool, stream, size, wanted) {
            return Ok(block);
        }
        if self.conf.max_split_size != u64::MAX
            && self.release_oversize(pool, stream, size)
            && let Some(block) = self.take_segment(pool, stream, size, wanted)
        {
            return Ok(block);
        }
        self.empty();
        self.totals.retries += 1;
        self.take_segment(pool, stream, size, wanted).ok_or(OutOfMemory)
    }

    fn room_for(&self, bytes: u64) -> bool {
        self.limit.is_none_or(|limit| self.totals.reserved + bytes <= limit)
    }

    fn reserve(&mut self, bytes: u64) {
        self.totals.reserved += bytes;
        self.totals.peak_reserved = self.totals.peak_reserved.max(self.totals.reserved);
        self.totals.driver_allocations += 1;
    }

    fn take_segment(&mut self, pool: u32, stream: u32, size: u64, wanted: u64) -> Option<BlockId> {
        if !self.room_for(wanted) {
            return None;
        }
        if self.conf.expandable_segments {
            return self.expand(pool, stream, size);
        }
        self.reserve(wanted);
        let address = self.next_address;
        self.next_address += wanted;
        Some(self.new_block(Block {
            address,
            size: wanted,
            previous: NONE,
            next: NONE,
            pool,
            stream,
            allocated: false,
            mapped: true,
            expandable: false,
            freed_at: 0,
        }))
    }

    fn should_split(&self, block: BlockId, size: u64) -> bool {
        let block = self.at(block);
        let rest = block.size - size;
        if self.pools[block.pool as usize].small || self.conf.expandable_segments {
            rest >= MIN_BLOCK
        } else {
            size < self.conf.max_split_size && rest > SMALL
        }
    }

    /// The front of `block` becomes the allocation; the rest goes back to the free ones.
    fn split(&mut self, block: BlockId, size: u64) -> BlockId {
        let whole = *self.at(block);
        let front = self.new_block(Block { size, next: block, ..whole });
        if whole.previous != NONE {
            self.at_mut(whole.previous).next = front;
        }
        let rest = self.at_mut(block);
        rest.address += size;
        rest.size -= size;
        rest.previous = front;
        self.insert_free(block);
        front
    }

    // --- giving back --------------------------------------------------------------------------

    fn is_whole_segment(&self, block: BlockId) -> bool {
        let block = self.at(block);
        block.previous == NONE && block.next == NONE
    }

    fn release_segment(&mut self, block: BlockId) {
        self.remove_free(block);
        self.totals.reserved -= self.at(block).size;
        self.totals.driver_frees += 1;
        self.drop_block(block);
    }

    /// Releases oversize free blocks of the stream until `size` could be had from the driver.
    fn release_oversize(&mut self, pool: u32, stream: u32, size: u64) -> bool {
        let key = size.max(self.conf.max_split_size);
        let free = &self.pools[pool as usize].free;
        let from = (stream, key, 0, BlockId(0));
        if let Some(entry) = free.range(from..).next()
            && entry.0 == stream
            && !self.at(entry.3).expandable
        {
            let block = entry.3;
            self.release_segment(block);
            return true;
        }
        let mut released = 0;
        while released < key {
            let upto = Bound::Excluded((stream, key, 0, BlockId(0)));
            let found = self.pools[pool as usize]
                .free
                .range((Bound::Included((stream, self.conf.max_split_size, 0, BlockId(0))), upto))
                .rev()
                .map(|entry| entry.3)
                .find(|&block| !self.at(block).expandable && self.is_whole_segment(block));
            match found {
                Some(block) => {
                    released += self.at(block).size;
                    self.release_segment(block);
                }
                None => return false,
            }
        }
        true
    }

    fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.conf.garbage_collection_threshold > 0.0
    }

    /// Releases the unsplit large blocks that were free for the longest.
    fn collect_garbage(&mut self) {
        let Some(limit) = self.limit else { return };
        let threshold = (self.conf.garbage_collection_threshold * limit as f64) as u64;
        if self.totals.reserved <= threshold {
            return;
        }
        let target = self.totals.reserved - threshold;
        let Some(&pool) = self.pool_of.get(&(0, false)) else { return };
        let mut reclaimed = 0;
        while reclaimed < target {
            let searches = self.pools[pool as usize].searches;
            let aged: Vec<(BlockId, u64)> = self.pools[pool as usize]
                .free
                .iter()
                .map(|entry| entry.3)
                .filter(|&block| !self.at(block).expandable && self.is_whole_segment(block))
                .map(|block| (block, searches - self.at(block).freed_at))
                .collect();
            if aged.is_empty() {
                return;
            }
            let average = aged.iter().map(|(_, age)| age).sum::<u64>() as f64 / aged.len() as f64;
            let mut freed = false;
            for (block, age) in aged {
                if age as f64 >= average && reclaimed < target {
                    reclaimed += self.at(block).size;
                    self.release_segment(block);
                    freed = true;
                }
            }
            if !freed {
                return;
            }
        }
    }

    // --- expandable segments ------------------------------------------------------------------

    fn page(&self, pool: u32) -> u64 {
        if self.pools[pool as usize].small { 2 << 20 } else { self.conf.large_segment_size }
    }

    /// Maps as many pages as `size` needs at the end of a segment that can grow.
    fn expand(&mut self, pool: u32, stream: u32, size: u64) -> Option<BlockId> {
        let mut candidate = self.growable(pool, stream, size);
        if !self.at(candidate).mapped {
            let bytes = self.at(candidate).size.min(size);
            candidate = self.map(candidate, bytes)?;
        }
        while self.at(candidate).size < size {
            let missing = size - self.at(candidate).size;
            let next = self.at(candidate).next;
            let bytes = self.at(next).size.min(missing);
            candidate = self.map(next, bytes)?;
        }
        self.remove_free(candidate);
        Some(candidate)
    }

    /// A run of free and unmapped blocks of at least `size`, the first free or unmapped.
    fn growable(&mut self, pool: u32, stream: u32, size: u64) -> BlockId {
        let from = (stream, 0, BlockId(0));
        let unmapped = self.pools[pool as usize].unmapped.range(from..);
        for entry in unmapped.take_while(|entry| entry.0 == stream) {
            let mut first = entry.2;
            let before = self.at(first).previous;
            if before != NONE && !self.at(before).allocated {
                first = before;
            }
            let (mut room, mut block) = (0, first);
            while block != NONE && !self.at(block).allocated && room < size {
                room += self.at(block).size;
                block = self.at(block).next;
            }
            if room >= size {
                return first;
            }
        }
        // Aligned to its pages, so that page borders can be told from addresses alone.
        let page = self.page(pool);
        let address = self.next_address.next_multiple_of(page);
        let span = EXPANDABLE_SPAN.next_multiple_of(page);
        self.next_address = address + span;
        let block = self.new_block(Block {
            address,
            size: span,
            previous: NONE,
            next: NONE,
            pool,
            stream,
            allocated: false,
            mapped: false,
            expandable: true,
            freed_at: 0,
        });
        self.pools[pool as usize].unmapped.insert((stream, address, block));
        block
    }

    /// Maps whole pages for the first `bytes` of an unmapped block and merges it with its free
    /// neighbours; `None` at the limit.
    fn map(&mut self, block: BlockId, bytes: u64) -> Option<BlockId> {
        let whole = *self.at(block);
        let mapped = bytes.next_multiple_of(self.page(whole.pool)).min(whole.size);
        if !self.room_for(mapped) {
            return None;
        }
        self.pools[whole.pool as usize].unmapped.remove(&(whole.stream, whole.address, block));
        if mapped < whole.size {
            let rest = self.new_block(Block {
                address: whole.address + mapped,
                size: whole.size - mapped,
                previous: block,
                next: whole.next,
                ..whole
            });
            if whole.next != NONE {
                self.at_mut(whole.next).previous = rest;
            }
            self.at_mut(block).next = rest;
            self.pools[whole.pool as usize].unmapped.insert((
                whole.stream,
                whole.address + mapped,
                rest,
            ));
        }
        let entry = self.at_mut(block);
        entry.mapped = true;
        entry.size = mapped;
        self.merge_previous(block);
        self.merge_next(block);
        self.insert_free(block);
        self.reserve(mapped);
        Some(block)
    }

    /// Unmaps the whole pages inside a free block; what is left before and behind stays mapped.
    fn unmap(&mut self, block: BlockId) {
        let whole = *self.at(block);
        let page = self.page(whole.pool);
        let from = whole.address.next_multiple_of(page);
        let to = (whole.address + whole.size) / page * page;
        if from >= to {
            return;
        }
        self.remove_free(block);
        if from > whole.address {
            let before = self.new_block(Block { size: from - whole.address, next: block, ..whole });
            if whole.previous != NONE {
                self.at_mut(whole.previous).next = before;
            }
            self.at_mut(block).previous = before;
            self.insert_free(before);
        }
        if to < whole.address + whole.size {
            let behind = self.new_block(Block {
                address: to,
                size: whole.address + whole.size - to,
                previous: block,
                ..whole
            });
            if whole.next != NONE {
                self.at_mut(whole.next).previous = behind;
            }
            self.at_mut(block).next = behind;
            self.insert_free(behind);
        }
        let entry = self.at_mut(block);
        entry.address = from;
        entry.size = to - from;
        entry.mapped = false;
        self.totals.reserved -= to - from;
        self.totals.driver_frees += 1;
        self.merge_previous(block);
        self.merge_next(block);
        let entry = *self.at(block);
        self.pools[entry.pool as usize].unmapped.insert((entry.stream, entry.address, block));
    }

    // --- the list of blocks -------------------------------------------------------------------

    fn at(&self, block: BlockId) -> &Block {
        &self.blocks[block.0 as usize]
    }

    fn at_mut(&mut self, block: BlockId) -> &mut Block {
        &mut self.blocks[block.0 as usize]
    }

    fn new_block(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.spare.pop() {
            self.blocks[id.0 as usize] = block;
            return id;
        }
        let id = BlockId(u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks"));
        self.blocks.push(block);
        id
    }

    fn drop_block(&mut self, block: BlockId) {
        self.spare.push(block);
    }

    fn pool(&mut self, private: u16, small: bool) -> u32 {
        let pools = &mut self.pools;
        *self.pool_of.entry((private, small)).or_insert_with(|| {
            pools.push(Pool { small, ..Pool::default() });
            (pools.len() - 1) as u32
        })
    }

    fn insert_free(&mut self, id: BlockId) {
        let block = *self.at(id);
        self.pools[block.pool as usize].free.insert((block.stream, block.size, block.address, id));
    }

    fn remove_free(&mut self, id: BlockId) {
        let block = *self.at(id);
        self.pools[block.pool as usize].free.remove(&(block.stream, block.size, block.address, id));
    }

    fn mergeable(&self, block: BlockId, neighbour: BlockId) -> bool {
        neighbour != NONE
            && !self.at(neighbour).allocated
            && self.at(neighbour).mapped == self.at(block).mapped
    }

    /// Takes a neighbour out of its pool's lists, as `block` swallows it.
    fn swallow(&mut self, neighbour: BlockId) {
        let entry = *self.at(neighbour);
        if entry.mapped {
            self.remove_free(neighbour);
        } else {
            self.pools[entry.pool as usize].unmapped.remove(&(
                entry.stream,
                entry.address,
                neighbour,
            ));
        }
        self.drop_block(neighbour);
    }

    fn merge_previous(&mut self, block: BlockId) {
        let previous = self.at(block).previous;
        if !self.mergeable(block, previous) {
            return;
        }
        self.swallow(previous);
        let swallowed = *self.at(previous);
        if swallowed.previous != NONE {
            self.at_mut(swallowed.previous).next = block;
        }
        let entry = self.at_mut(block);
        entry.address = swallowed.address;
        entry.size += swallowed.size;
        entry.previous = swallowed.previous;
    }

    fn merge_next(&mut self, block: BlockId) {
        let next = self.at(block).next;
        if !self.mergeable(block, next) {
            return;
        }
        self.swallow(next);
        let swallowed = *self.at(next);
        if swallowed.next != NONE {
            self.at_mut(swallowed.next).previous = block;
        }
        let entry = self.at_mut(block);
        entry.size += swallowed.size;
        entry.next = swallowed.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    impl Cache {
        /// Every segment is tiled by its blocks, neighbours agree, totals are the sums, and no two
        /// free neighbours in the same state lie side by side.
        fn check(&self) {
            let spare: std::collections::HashSet<BlockId> = self.spare.iter().copied().collect();
            let (mut reserved, mut allocated) = (0, 0);
            for (index, block) in self.blocks.iter().enumerate() {
                let id = BlockId(index as u32);
                if spare.contains(&id) {
                    continue;
                }
                if block.mapped {
                    reserved += block.size;
                }
                if block.allocated {
                    allocated += block.size;
                }
                if block.next != NONE {
                    let next = self.at(block.next);
                    assert_eq!(next.previous, id);
                    assert_eq!(next.address, block.address + block.size, "a gap or an overlap");
                    assert!(
                        block.allocated || next.allocated || block.mapped != next.mapped,
                        "free neighbours were not merged"
                    );
                }
                let pool = &self.pools[block.pool as usize];
                let listed = pool.free.contains(&(block.stream, block.size, block.address, id));
                assert_eq!(listed, block.mapped && !block.allocated);
                let waiting = pool.unmapped.contains(&(block.stream, block.address, id));
                assert_eq!(waiting, !block.mapped);
            }
            assert_eq!(reserved, self.totals.reserved);
            assert_eq!(allocated, self.totals.allocated);
        }
    }

    /// (block size, bytes reserved) of one request in an empty cache.
    fn one(requested: u64) -> (u64, u64) {
        let mut cache = Cache::new(Conf::default(), None);
        let block = cache.alloc(requested, 0, 0).unwrap();
        cache.check();
        (cache.span(block).1, cache.totals().reserved)
    }

    #[test]
    fn one_request_in_an_empty_cache() {
        assert_eq!(one(1), (512, 2 * MIB));
        assert_eq!(one(MIB), (MIB, 2 * MIB));
        assert_eq!(one(MIB + 1), (1_049_088, 20 * MIB));
        assert_eq!(one(10 * MIB - 512), (10 * MIB - 512, 20 * MIB));
        assert_eq!(one(10 * MIB), (10 * MIB, 10 * MIB));
        assert_eq!(one(19 * MIB + MIB / 2), (20 * MIB, 20 * MIB), "half a MiB is not split off");
        assert_eq!(one(21 * MIB + 1), (22 * MIB, 22 * MIB));
    }

    #[test]
    fn an_expandable_segment_grows_by_pages() {
        let conf = Conf { expandable_segments: true, ..Conf::default() };
        let mut cache = Cache::new(conf, None);
        cache.alloc(3 * MIB, 0, 0).unwrap();
        assert_eq!(cache.totals().reserved, 20 * MIB);
        let second = cache.alloc(30 * MIB, 0, 0).unwrap();
        assert_eq!(cache.totals().reserved, 40 * MIB);
        assert_eq!(cache.span(second).1, 30 * MIB);
        cache.check();
    }

    #[test]
    fn streams_and_private_pools_do_not_share() {
        let mut cache = Cache::new(Conf::default(), None);
        let block = cache.alloc(MIB, 0, 0).unwrap();
        cache.free(block);
        cache.alloc(MIB, 1, 0).unwrap();
        cache.alloc(MIB, 0, 7).unwrap();
        assert_eq!(cache.totals().reserved, 6 * MIB);
    }

    #[test]
    fn at_the_limit_the_cache_is_emptied_once_then_it_is_out_of_memory() {
        let mut cache = Cache::new(Conf::default(), Some(40 * MIB));
        let first = cache.alloc(30 * MIB, 0, 0).unwrap();
        cache.free(first);
        cache.alloc(40 * MIB, 0, 0).unwrap();
        assert_eq!(cache.totals().retries, 1);
        assert_eq!(cache.alloc(1, 0, 0), Err(OutOfMemory));
        cache.check();
    }

    mod properties {
        use super::*;
        use proptest::prelude::*;

        fn confs() -> impl Strategy<Value = Conf> {
            prop_oneof![
                Just(""),
                Just("expandable_segments:True"),
                Just("max_split_size_mb:64"),
                Just("roundup_power2_divisions:4,max_split_size_mb:20"),
                Just("large_segment_size_mb:64"),
                Just("garbage_collection_threshold:0.6"),
            ]
            .prop_map(|text| Conf::parse(text).unwrap())
        }

        proptest! {
            #[test]
            fn blocks_tile_segments_and_all_merges_back(
                conf in confs(),
                limit in prop_oneof![Just(None), Just(Some(256 * MIB))],
                steps in prop::collection::vec((0u64..80 * MIB, 0u32..3, any::<prop::sample::Index>(), 0u8..10), 1..200),
            ) {
                let mut cache = Cache::new(conf, limit);
                let mut live: Vec<BlockId> = Vec::new();
                for (size, stream, which, choice) in steps {
                    match choice {
                        0..6 => {
                            let size = if choice < 3 { size % (2 * MIB) } else { size };
                            if let Ok(block) = cache.alloc(size, stream, 0) {
                                prop_assert!(cache.span(block).1 >= size);
                                live.push(block);
                            }
                        }
                        6..9 if !live.is_empty() => cache.free(live.swap_remove(which.index(live.len()))),
                        _ => cache.empty(),
                    }
                    cache.check();
                    if let Some(limit) = limit {
                        prop_assert!(cache.totals().reserved <= limit);
                    }
                }
                for block in live {
                    cache.free(block);
                }
                cache.empty();
                cache.check();
                prop_assert_eq!(cache.totals().reserved, 0, "everything merges to whole segments");
            }
        }
    }
}
