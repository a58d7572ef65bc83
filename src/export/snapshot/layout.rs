//! One device's memory as PyTorch's viewers see it: segments, and blocks that lie in them. Kept so
//! that the viewers can go back from the end: no block outside of a segment, none over another,
//! none left when its segment goes.

use std::collections::BTreeMap;
use std::ops::Range;

use vramtrace_format::{PoolId, StackId};

use crate::spans::Spans;

/// Driver memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub stream: u64,
    pub pool: PoolId,
    pub stack: StackId,
    pub role: MemoryRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryRole {
    /// A segment of PyTorch's.
    Segment,
    /// Part of one that grows page by page.
    Page,
    /// Of somebody else: a segment with one block.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub size: u64,
    pub requested: u64,
    pub stream: u64,
    pub stack: StackId,
    /// Freed, but waiting for other streams.
    pub pending: bool,
}

#[derive(Debug, Default)]
pub(super) struct Layout {
    pub memory: Spans<Memory>,
    blocks: BTreeMap<u64, Block>,
}

/// A segment at the end, with all its blocks; `None` is a hole.
#[derive(Debug)]
pub(super) struct Whole {
    pub range: Range<u64>,
    pub memory: Memory,
    pub blocks: Vec<(Range<u64>, Option<Block>)>,
}

impl Layout {
    pub(super) fn clear(&mut self) {
        self.memory.clear();
        self.blocks.clear();
    }

    /// Is all of the range PyTorch's memory?
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        !range.is_empty()
            && self.memory.holes(range.clone()).is_empty()
            && self.memory.over(range.clone()).all(|(_, memory)| memory.role != MemoryRole::Other)
    }

    pub(super) fn block(&mut self, address: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&address)
    }

    pub(super) fn put(&mut self, address: u64, block: Block) {
        self.blocks.insert(address, block);
    }

    pub(super) fn take(&mut self, address: u64) -> Option<Block> {
        self.blocks.remove(&address)
    }

    /// Where the blocks begin that reach into the range.
    pub(super) fn in_the_way(&self, range: &Range<u64>) -> Vec<u64> {
        let before = self.blocks.range(..range.start).next_back();
        let before = before.filter(|(start, block)| *start + block.size > range.start);
        let over = self.blocks.range(range.clone());
        before.into_iter().chain(over).map(|(start, _)| *start).collect()
    }

    /// All segments, in order of address; pages that touch are one.
    pub(super) fn segments(&self) -> Vec<Whole> {
        let mut all: Vec<Whole> = Vec::new();
        for (range, memory) in self.memory.iter() {
            if let Some(last) = all.last_mut()
                && (memory.role, last.memory.role) == (MemoryRole::Page, MemoryRole::Page)
                && last.range.end == range.start
                && last.memory.stream == memory.stream
            {
                last.range.end = range.end;
                continue;
            }
            all.push(Whole { range, memory, blocks: Vec::new() });
        }
        for segment in &mut all {
            let mut at = segment.range.start;
            for (start, block) in self.blocks.range(segment.range.clone()) {
                if at < *start {
                    segment.blocks.push((at..*start, None));
                }
                at = start + block.size;
                segment.blocks.push((*start..at, Some(*block)));
            }
            if at < segment.range.end {
                segment.blocks.push((at..segment.range.end, None));
            }
        }
        all
    }
}
