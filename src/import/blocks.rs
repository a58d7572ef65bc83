//! Computes the sizes of blocks. A history has the requested bytes and the address; the size follows from PyTorch's
//! rounding and split rules and the free space at the address.

use std::collections::BTreeMap;
use std::ops::Range;

use super::before::reach;
use super::history::Ground;
use crate::allocator::{Conf, rounding};
use crate::spans::Spans;

/// The memory of one device while its history is replayed.
#[derive(Debug, Default)]
pub(super) struct BlockLayout {
    pub segments: Spans<Ground>,
    blocks: BTreeMap<u64, Placed>,
    /// Bytes of blocks that are in use, and of segments: PyTorch's own totals.
    pub allocated: u64,
    pub reserved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Placed {
    pub size: u64,
    /// Freed, and waiting for other streams before reuse.
    pub pending: bool,
}

impl BlockLayout {
    /// Adds a segment. Returns the overlapping parts that it replaces; none in a consistent history.
    pub(super) fn grow(&mut self, range: Range<u64>, ground: Ground) -> Vec<(Range<u64>, Ground)> {
        let over: Vec<(Range<u64>, Ground)> = self.segments.over(range.clone()).collect();
        let mut replaced = Vec::new();
        for (segment, ground) in over {
            // Only expandable segments are replaced in parts.
            let part = match ground.expandable {
                true => segment.start.max(range.start)..segment.end.min(range.end),
                false => segment,
            };
            replaced.extend(self.shrink(part));
        }
        self.reserved += range.end - range.start;
        self.segments.put(range, ground);
        replaced
    }

    /// Removes a range of segments. Returns the removed parts.
    pub(super) fn shrink(&mut self, range: Range<u64>) -> Vec<(Range<u64>, Ground)> {
        let gone = self.segments.cut(range);
        self.reserved -= gone.iter().map(|(part, _)| part.end - part.start).sum::<u64>();
        gone
    }

    /// The size of the block for a request at this address, bytes.
    pub(super) fn size_of(&self, address: u64, requested: u64, conf: &Conf) -> u64 {
        let size = rounding::block_size(conf, requested);
        let next = self.blocks.range(address + 1..).next().map_or(u64::MAX, |(next, _)| *next);
        let Some((segment, ground)) = self.segments.at(address) else {
            return size.min(next - address);
        };
        let length = segment.end - segment.start;
        let end = match ground.expandable {
            true => {
                let enough = address + size + rounding::MIN_BLOCK;
                reach(&self.segments, segment, ground.stream, enough)
            }
            false => segment.end,
        };
        let room = end.min(next) - address;
        let Some(rest) = room.checked_sub(size) else { return room };
        let small =
            ground.expandable || size <= rounding::SMALL && length == rounding::SMALL_SEGMENT;
        let split = match small {
            true => rest >= rounding::MIN_BLOCK,
            // kSmallSize of the allocator.
            false => size < conf.max_split_size && rest > rounding::SMALL,
        };
        if split { size } else { room }
    }

    /// Adds a block. Returns the overlapping blocks that it replaces; none in a consistent history.
    pub(super) fn put(&mut self, address: u64, size: u64) -> Vec<(u64, Placed)> {
        let before = self.blocks.range(..address).next_back();
        let before = before.filter(|(start, block)| *start + block.size > address);
        let over = self.blocks.range(address..address.saturating_add(size));
        let over = before.into_iter().chain(over).map(|(start, block)| (*start, *block));
        let over: Vec<(u64, Placed)> = over.collect();
        for (start, _) in &over {
            self.request_free(*start);
            self.blocks.remove(start);
        }
        self.blocks.insert(address, Placed { size, pending: false });
        self.allocated += size;
        over
    }

    /// Marks a block as freed. `None`: it was not in use.
    pub(super) fn request_free(&mut self, address: u64) -> Option<()> {
        let block = self.blocks.get_mut(&address).filter(|block| !block.pending)?;
        block.pending = true;
        self.allocated -= block.size;
        Some(())
    }

    /// Removes a freed block. `None`: it was not freed.
    pub(super) fn complete_free(&mut self, address: u64) -> Option<()> {
        self.blocks.get(&address).filter(|block| block.pending)?;
        self.blocks.remove(&address);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::StackId;

    const MIB: u64 = 1 << 20;

    fn layout(size: u64, expandable: bool) -> BlockLayout {
        let mut layout = BlockLayout::default();
        let ground = Ground { stream: 0, pool: 0, expandable, stack: StackId(0) };
        layout.grow(100 * MIB..100 * MIB + size, ground);
        layout
    }

    #[test]
    fn a_remainder_is_split_off_by_the_allocators_rules() {
        let conf = Conf::default();
        let at = 100 * MIB;
        // Small: any 512 bytes. Large: more than 1 MiB.
        assert_eq!(layout(2 * MIB, false).size_of(at, 2 * MIB - 1, &conf), 2 * MIB);
        assert_eq!(layout(2 * MIB, false).size_of(at, MIB, &conf), MIB);
        assert_eq!(layout(20 * MIB, false).size_of(at, 19 * MIB + 512, &conf), 20 * MIB);
        assert_eq!(layout(20 * MIB, false).size_of(at, 19 * MIB - 512, &conf), 19 * MIB - 512);
        assert_eq!(layout(20 * MIB, true).size_of(at, 19 * MIB + 512, &conf), 19 * MIB + 512);
        // In a hole between blocks.
        let mut filled = layout(20 * MIB, false);
        filled.put(at + 4 * MIB, MIB);
        assert_eq!(filled.size_of(at, 3 * MIB + 5, &conf), 4 * MIB);
        assert_eq!(filled.size_of(at, 2 * MIB, &conf), 2 * MIB);
        // A size over the limit of splitting takes all.
        let limited = Conf::parse("max_split_size_mb:20").unwrap();
        assert_eq!(layout(60 * MIB, false).size_of(at, 30 * MIB, &limited), 60 * MIB);
        // Outside of any segment that is known.
        assert_eq!(BlockLayout::default().size_of(at, 700, &conf), 1024);
    }

    #[test]
    fn mapped_ranges_grow_together() {
        let mut layout = layout(20 * MIB, true);
        let ground = Ground { stream: 0, pool: 0, expandable: true, stack: StackId(0) };
        layout.grow(120 * MIB..140 * MIB, ground);
        assert_eq!(layout.size_of(100 * MIB, 40 * MIB - 512, &Conf::default()), 40 * MIB - 512);
        assert_eq!(layout.size_of(100 * MIB, 40 * MIB - 511, &Conf::default()), 40 * MIB);
        assert_eq!(layout.reserved, 40 * MIB);
        layout.shrink(110 * MIB..120 * MIB);
        assert_eq!(layout.reserved, 30 * MIB);
    }

    #[test]
    fn totals_follow_the_blocks() {
        let mut layout = layout(20 * MIB, false);
        assert!(layout.put(100 * MIB, MIB).is_empty());
        assert_eq!((layout.allocated, layout.complete_free(100 * MIB)), (MIB, None));
        assert_eq!((layout.request_free(100 * MIB), layout.allocated), (Some(()), 0));
        assert_eq!(layout.request_free(100 * MIB), None);
        assert_eq!(layout.complete_free(100 * MIB), Some(()));
        layout.put(101 * MIB, 2 * MIB);
        let in_its_way = (101 * MIB, Placed { size: 2 * MIB, pending: false });
        assert_eq!(layout.put(102 * MIB, MIB), [in_its_way]);
        assert_eq!(layout.allocated, MIB);
    }
}
