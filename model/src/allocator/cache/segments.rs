//! What the cache takes from the driver and gives back: how much room there is, whole segments,
//! oversize blocks, garbage collection.

use super::blocks::{Block, BlockId};
use super::{Cache, OutOfMemory, ReplayOutcome};

/// How much may be reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Of the card or the cap.
    capacity: Option<u64>,
    /// Of it taken by others than this cache.
    outside: u64,
    /// What torch allows itself by a memory fraction.
    allowed: Option<u64>,
}

impl Limits {
    pub(super) fn new(capacity: Option<u64>, fraction: Option<f64>) -> Limits {
        let allowed = match (capacity, fraction) {
            (Some(bytes), Some(fraction)) => Some((bytes as f64 * fraction) as u64),
            _ => None,
        };
        Limits { capacity, outside: 0, allowed }
    }

    pub(super) fn has(&self, bytes: u64, totals: &ReplayOutcome) -> bool {
        let reserved = totals.reserved.saturating_add(bytes);
        if reserved > super::LARGEST {
            return false;
        }
        self.allowed.is_none_or(|allowed| reserved <= allowed)
            && self.capacity.is_none_or(|all| reserved.saturating_add(self.outside) <= all)
    }
}

impl Cache {
    /// Others hold `bytes` of the capacity from now on.
    pub fn set_outside(&mut self, bytes: u64) -> Result<(), OutOfMemory> {
        self.room.outside = bytes;
        self.note_peaks();
        if self.room.has(0, &self.totals) { Ok(()) } else { Err(OutOfMemory) }
    }

    pub(super) fn note_peaks(&mut self) {
        let totals = &mut self.totals;
        totals.peak_reserved = totals.peak_reserved.max(totals.reserved);
        totals.peak_total =
            totals.peak_total.max(totals.reserved.saturating_add(self.room.outside));
        totals.peak_allocated = totals.peak_allocated.max(totals.allocated);
        totals.peak_needed =
            totals.peak_needed.max(totals.allocated.saturating_add(self.room.outside));
    }

    pub(super) fn count_reserved(&mut self, bytes: u64) {
        self.totals.reserved += bytes;
        self.totals.driver_allocations += 1;
        self.note_peaks();
    }

    pub(super) fn count_released(&mut self, bytes: u64) {
        self.totals.reserved -= bytes;
        self.totals.driver_frees += 1;
    }

    /// A separate segment for `wanted` bytes, or the growing of one. The block is in no list.
    pub(super) fn take_segment(
        &mut self,
        pool: u32,
        size: u64,
        wanted: u64,
    ) -> Result<BlockId, OutOfMemory> {
        if !self.room.has(wanted, &self.totals) {
            return Err(OutOfMemory);
        }
        if self.conf.expandable_segments {
            return self.expand(pool, size);
        }
        self.count_reserved(wanted);
        let address = self.addresses.take(wanted);
        Ok(self.blocks.add(Block::new(address, wanted, pool)))
    }

    fn release_segment(&mut self, block: BlockId) {
        self.blocks.take(block);
        let Block { address, size, .. } = *self.blocks.at(block);
        self.count_released(size);
        self.addresses.give_back(address, size);
        self.blocks.forget(block);
    }

    /// Releases every segment that is wholly free, and the free pages of expandable ones. Private pools keep theirs for as
    /// long as a graph uses them: the addresses are in it.
    pub fn empty(&mut self) {
        for pool in (0..self.blocks.pools.len()).rev() {
            let private = self.blocks.pools[pool].private;
            if private != 0 && !self.ended.contains(&private) {
                continue;
            }
            let free: Vec<BlockId> =
                self.blocks.pools[pool].free.iter().map(|(_, _, block)| *block).collect();
            for block in free {
                if self.blocks.at(block).expandable {
                    self.unmap(block);
                } else if self.blocks.is_whole_segment(block) {
                    self.release_segment(block);
                }
            }
        }
    }

    fn is_releasable(&self, block: BlockId) -> bool {
        !self.blocks.at(block).expandable && self.blocks.is_whole_segment(block)
    }

    /// Releases oversize free blocks of the stream until `size` could be had from the driver.
    pub(super) fn release_oversize(&mut self, pool: u32, size: u64) -> bool {
        let key = size.max(self.conf.max_split_size);
        let fitting = self.blocks.pools[pool as usize].fitting(key).next();
        if let Some(block) = fitting
            && !self.blocks.at(block).expandable
        {
            self.release_segment(block);
            return true;
        }
        let mut released = 0;
        while released < key {
            let free = &self.blocks.pools[pool as usize].free;
            let least = self.conf.max_split_size;
            let mut oversize = free.range((least, 0, BlockId(0))..(key, 0, BlockId(0))).rev();
            let block = oversize.find(|(_, _, block)| self.is_releasable(*block));
            let Some((_, _, block)) = block.copied() else { return false };
            released += self.blocks.at(block).size;
            self.release_segment(block);
        }
        true
    }

    /// Only under a memory fraction: torch looks at the threshold nowhere else.
    pub(super) fn collects_garbage(&self) -> bool {
        self.room.allowed.is_some() && self.conf.garbage_collection_threshold > 0.0
    }

    /// Releases the unsplit large blocks of the default pool that were free for the longest.
    pub(super) fn collect_garbage(&mut self) {
        let Some(allowed) = self.room.allowed else { return };
        let threshold = (self.conf.garbage_collection_threshold * allowed as f64) as u64;
        if self.totals.reserved <= threshold {
            return;
        }
        let target = self.totals.reserved - threshold;
        let mut reclaimed = 0;
        // A round ends when all blocks of the average age or more are gone, whatever the target.
        while reclaimed < target {
            let large = self.blocks.pools.iter().filter(|pool| !pool.small && pool.private == 0);
            let aged: Vec<(BlockId, u64)> = large
                .flat_map(|pool| pool.free.iter().map(|(_, _, block)| *block))
                .filter(|block| self.is_releasable(*block))
                .map(|block| (block, self.searches - self.blocks.at(block).freed_at))
                .collect();
            if aged.is_empty() {
                return;
            }
            let average = aged.iter().map(|(_, age)| age).sum::<u64>() as f64 / aged.len() as f64;
            let mut freed = false;
            for (block, age) in aged {
                if age as f64 >= average {
                    reclaimed += self.blocks.at(block).size;
                    self.release_segment(block);
                    freed = true;
                }
            }
            if !freed {
                return;
            }
        }
    }
}
