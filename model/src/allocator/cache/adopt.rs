//! A cache that begins with what another one held.

use super::Cache;
use super::blocks::{Block, BlockId};
use crate::allocator::log::LogSegment;

impl Cache {
    /// Takes segments with their allocated blocks, in the order of their addresses; what lies
    /// between the blocks is free. Answers with the blocks in the same order.
    pub(in crate::allocator) fn adopt(&mut self, segments: &[LogSegment]) -> Vec<BlockId> {
        let mut taken = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let next = segments[index + 1..].iter().find(|next| next.expandable);
            self.adopt_one(segment, next.map(|next| next.address), &mut taken);
        }
        self.note_peaks();
        taken
    }

    fn adopt_one(&mut self, segment: &LogSegment, next: Option<u64>, taken: &mut Vec<BlockId>) {
        let pool = self.pool(segment.pool, segment.stream, segment.is_small());
        // Without the setting, no page comes to it or goes from it: a plain segment.
        let expandable = segment.expandable && self.conf.expandable_segments;
        let (mut start, mut behind) = (segment.address, 0);
        if expandable {
            let end = segment.address + segment.size;
            behind = next.map_or(super::expandable::SPAN, |next| next.saturating_sub(end));
            start = self.address_space(pool, segment.size + behind);
        }
        let plain = Block { expandable, ..Block::new(start, segment.size, pool) };
        let rest = self.blocks.add(plain);
        if behind > 0 {
            let address = start + segment.size;
            let tail = Block { address, size: behind, previous: rest, mapped: false, ..plain };
            let tail = self.blocks.add(tail);
            self.blocks.at_mut(rest).next = tail;
            self.blocks.offer(tail);
        }
        self.totals.reserved += segment.size;
        let mut at = segment.address;
        for (address, size) in &segment.blocks {
            if *address > at {
                let free = self.blocks.cut_front(rest, address - at);
                self.blocks.offer(free);
            }
            at = address + size;
            let whole = self.blocks.at(rest).size == *size;
            let block = if whole { rest } else { self.blocks.cut_front(rest, *size) };
            self.blocks.at_mut(block).allocated = true;
            self.totals.allocated += size;
            taken.push(block);
            if whole {
                return;
            }
        }
        self.blocks.offer(rest);
    }
}
