//! Blocks and their neighbours: every segment is a list of blocks in the order of their addresses.

use std::collections::BTreeSet;

/// A block, while it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub(super) u32);

pub(super) const NONE: BlockId = BlockId(u32::MAX);

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub address: u64,
    pub size: u64,
    /// Neighbours in the same segment, by address.
    pub previous: BlockId,
    pub next: BlockId,
    pub pool: u32,
    pub allocated: bool,
    /// False for the unmapped parts of an expandable segment.
    pub mapped: bool,
    pub expandable: bool,
    /// The count of searches when the block became free (garbage collection's age).
    pub freed_at: u64,
}

impl Block {
    /// A free segment.
    pub(super) fn new(address: u64, size: u64, pool: u32) -> Block {
        let (previous, next) = (NONE, NONE);
        let (allocated, mapped, expandable, freed_at) = (false, true, false, 0);
        Block { address, size, previous, next, pool, allocated, mapped, expandable, freed_at }
    }
}

/// One of small and large, of the default or of a private pool, for one stream: none shares with
/// another.
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub small: bool,
    /// Of the program's own making; 0 is the default.
    pub private: u16,
    /// Size, address, block: in the order of the best fit.
    pub free: BTreeSet<(u64, u64, BlockId)>,
    pub unmapped: BTreeSet<(u64, BlockId)>,
}

impl Pool {
    /// Free blocks of this size or more, the best fit first.
    pub(super) fn fitting(&self, size: u64) -> impl Iterator<Item = BlockId> {
        self.free.range((size, 0, BlockId(0))..).map(|(_, _, block)| *block)
    }
}

/// All blocks of all pools.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    all: Vec<Block>,
    spare: Vec<BlockId>,
    pub pools: Vec<Pool>,
}

impl Blocks {
    pub(super) fn at(&self, block: BlockId) -> &Block {
        &self.all[block.0 as usize]
    }

    pub(super) fn at_mut(&mut self, block: BlockId) -> &mut Block {
        &mut self.all[block.0 as usize]
    }

    pub(super) fn pool(&self, block: BlockId) -> &Pool {
        &self.pools[self.at(block).pool as usize]
    }

    pub(super) fn add(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.spare.pop() {
            self.all[id.0 as usize] = block;
            return id;
        }
        let id = BlockId(u32::try_from(self.all.len()).expect("fewer than 2^32 blocks"));
        self.all.push(block);
        id
    }

    pub(super) fn forget(&mut self, block: BlockId) {
        self.spare.push(block);
    }

    /// Adds a block to its pool's list of free blocks, or of unmapped ones.
    pub(super) fn offer(&mut self, id: BlockId) {
        let block = *self.at(id);
        let pool = &mut self.pools[block.pool as usize];
        match block.mapped {
            true => pool.free.insert((block.size, block.address, id)),
            false => pool.unmapped.insert((block.address, id)),
        };
    }

    /// Removes a block from that list.
    pub(super) fn take(&mut self, id: BlockId) {
        let block = *self.at(id);
        let pool = &mut self.pools[block.pool as usize];
        match block.mapped {
            true => pool.free.remove(&(block.size, block.address, id)),
            false => pool.unmapped.remove(&(block.address, id)),
        };
    }

    pub(super) fn is_whole_segment(&self, block: BlockId) -> bool {
        let block = self.at(block);
        block.previous == NONE && block.next == NONE
    }

    /// Cuts `size` bytes off the front of a block. The front is a new block in the same state; the
    /// rest keeps the id. Neither is put into a list.
    pub(super) fn cut_front(&mut self, block: BlockId, size: u64) -> BlockId {
        let whole = *self.at(block);
        let front = self.add(Block { size, next: block, ..whole });
        if whole.previous != NONE {
            self.at_mut(whole.previous).next = front;
        }
        let rest = self.at_mut(block);
        rest.address += size;
        rest.size -= size;
        rest.previous = front;
        front
    }

    /// A block that is in no list takes in its neighbours in the same state.
    pub(super) fn merge(&mut self, block: BlockId) {
        let Block { previous, next, .. } = *self.at(block);
        if self.mergeable(block, previous) {
            self.take(previous);
            let swallowed = *self.at(previous);
            self.forget(previous);
            if swallowed.previous != NONE {
                self.at_mut(swallowed.previous).next = block;
            }
            let entry = self.at_mut(block);
            entry.address = swallowed.address;
            entry.size += swallowed.size;
            entry.previous = swallowed.previous;
        }
        if self.mergeable(block, next) {
            self.take(next);
            let swallowed = *self.at(next);
            self.forget(next);
            if swallowed.next != NONE {
                self.at_mut(swallowed.next).previous = block;
            }
            let entry = self.at_mut(block);
            entry.size += swallowed.size;
            entry.next = swallowed.next;
        }
    }

    fn mergeable(&self, block: BlockId, neighbour: BlockId) -> bool {
        neighbour != NONE && {
            let (block, neighbour) = (self.at(block), self.at(neighbour));
            !neighbour.allocated && neighbour.mapped == block.mapped
        }
    }

    /// Every block that is there.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        let spare: std::collections::HashSet<BlockId> = self.spare.iter().copied().collect();
        let ids = (0..self.all.len() as u32).map(BlockId);
        ids.filter(move |id| !spare.contains(id)).map(|id| (id, self.at(id)))
    }
}
