//! Expandable segments: address space of which pages are mapped as they are needed. A segment is
//! one list of mapped and unmapped blocks.

use super::blocks::{Block, BlockId, NONE};
use super::{Cache, OutOfMemory};

/// Address space of one expandable segment: more than any card has, so that one is never too small.
pub(super) const SPAN: u64 = 1 << 40;

impl Cache {
    fn page(&self, pool: u32) -> u64 {
        if self.blocks.pools[pool as usize].small { 2 << 20 } else { self.conf.large_segment_size }
    }

    /// What a block and the unmapped part behind it have room for.
    pub(super) fn with_room_behind(&self, block: BlockId) -> u64 {
        let block = self.blocks.at(block);
        let behind = match block.next {
            NONE => 0,
            next if self.blocks.at(next).mapped => 0,
            next => self.blocks.at(next).size,
        };
        block.size + behind
    }

    /// Maps as many pages as `size` needs at the end of a segment that can grow. The block is in
    /// no list.
    pub(super) fn expand(&mut self, pool: u32, size: u64) -> Result<BlockId, OutOfMemory> {
        let mut candidate = self.growable(pool, size);
        if !self.blocks.at(candidate).mapped {
            let bytes = self.blocks.at(candidate).size.min(size);
            candidate = self.map(candidate, bytes)?;
        }
        while self.blocks.at(candidate).size < size {
            let missing = size - self.blocks.at(candidate).size;
            let next = self.blocks.at(candidate).next;
            let bytes = self.blocks.at(next).size.min(missing);
            candidate = self.map(next, bytes)?;
        }
        self.blocks.take(candidate);
        Ok(candidate)
    }

    /// A run of free and unmapped blocks of at least `size`, the first free or unmapped.
    fn growable(&mut self, pool: u32, size: u64) -> BlockId {
        for (_, unmapped) in &self.blocks.pools[pool as usize].unmapped {
            let mut first = *unmapped;
            let before = self.blocks.at(first).previous;
            if before != NONE && !self.blocks.at(before).allocated {
                first = before;
            }
            let (mut room, mut block) = (0, first);
            while block != NONE && !self.blocks.at(block).allocated && room < size {
                room += self.blocks.at(block).size;
                block = self.blocks.at(block).next;
            }
            if room >= size {
                return first;
            }
        }
        let size = SPAN.max(size).next_multiple_of(self.page(pool));
        let address = self.address_space(pool, size);
        let unmapped = Block { mapped: false, expandable: true, ..Block::new(address, size, pool) };
        let block = self.blocks.add(unmapped);
        self.blocks.offer(block);
        block
    }

    /// Aligned to its pages, so that addresses alone give the page borders. After as good as endless use they begin
    /// again: they order blocks, and need not be of one alone.
    pub(super) fn address_space(&mut self, pool: u32, size: u64) -> u64 {
        if self.next_address > 1 << 62 {
            self.next_address = super::FIRST_ADDRESS;
        }
        let address = self.next_address.next_multiple_of(self.page(pool));
        self.next_address = address + size;
        address
    }

    /// Maps whole pages for the first `bytes` of an unmapped block and merges it with its free
    /// neighbours.
    fn map(&mut self, block: BlockId, bytes: u64) -> Result<BlockId, OutOfMemory> {
        let whole = *self.blocks.at(block);
        let mapped = bytes.next_multiple_of(self.page(whole.pool)).min(whole.size);
        if !self.room.has(mapped, &self.totals) {
            return Err(OutOfMemory);
        }
        self.blocks.take(block);
        let front = match mapped < whole.size {
            true => {
                let front = self.blocks.cut_front(block, mapped);
                self.blocks.offer(block);
                front
            }
            false => block,
        };
        self.blocks.at_mut(front).mapped = true;
        self.blocks.merge(front);
        self.blocks.offer(front);
        self.count_reserved(mapped);
        Ok(front)
    }

    /// Unmaps the whole pages inside a free block; what is left before and behind stays mapped.
    pub(super) fn unmap(&mut self, block: BlockId) {
        let whole = *self.blocks.at(block);
        let page = self.page(whole.pool);
        let from = whole.address.next_multiple_of(page);
        let to = (whole.address + whole.size) / page * page;
        if from >= to {
            return;
        }
        self.blocks.take(block);
        if from > whole.address {
            let before = self.blocks.cut_front(block, from - whole.address);
            self.blocks.offer(before);
        }
        let mut middle = block;
        if to < whole.address + whole.size {
            middle = self.blocks.cut_front(block, to - from);
            self.blocks.offer(block);
        }
        self.blocks.at_mut(middle).mapped = false;
        self.count_released(to - from);
        self.blocks.merge(middle);
        self.blocks.offer(middle);
    }
}
