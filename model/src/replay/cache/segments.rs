//! The segments of a moment, with their blocks and holes.

use vramtrace_format::holes::holes;
use vramtrace_format::{DeviceId, Space};

use super::super::live::{Key, Live};
use super::super::state::State;
use super::{Backing, CacheState};

/// A live block in its segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockAt<'s> {
    pub address: u64,
    /// Bytes of the segment that are this block's. `live.size`, except in a trace that
    /// contradicts itself: what an earlier block covers, or what is beyond the end, is not its.
    pub bytes: u64,
    /// Of these, without memory below them.
    pub paused: u64,
    pub live: &'s Live,
}

/// A segment at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentAt<'s> {
    pub start: u64,
    pub bytes: u64,
    pub device: DeviceId,
    pub backing: Backing,
    /// Bytes without memory below them.
    pub paused: u64,
    /// Where the reservation begins that it lies in; 0: in none.
    reservation: u64,
    /// Live blocks by address; they do not overlap.
    pub blocks: Vec<BlockAt<'s>>,
}

impl<'s> SegmentAt<'s> {
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// Bytes in blocks.
    pub fn allocated(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).fold(0, u64::saturating_add)
    }

    pub fn free(&self) -> u64 {
        self.bytes.saturating_sub(self.allocated())
    }

    /// Ranges that no block covers, by address: start and bytes.
    pub fn holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let blocks = self.blocks.iter().map(|block| (block.address, block.bytes));
        holes(self.start..self.end(), blocks)
    }

    pub fn largest_hole(&self) -> u64 {
        self.holes().map(|(_, bytes)| bytes).max().unwrap_or(0)
    }

    /// Is nearly all of it free, and yet held by one block?
    pub fn is_pinned_by_one(&self) -> bool {
        matches!(self.blocks[..], [only] if only.bytes < self.bytes / 2)
    }

    /// The driver allocation that it is, with its key; `None` for mappings.
    pub fn allocation(&self, state: &'s State) -> Option<(Key, &'s Live)> {
        let key = Key { space: Space::Device, number: self.start };
        if self.backing != Backing::Allocation {
            return None;
        }
        Some((key, state.live.get(key)?))
    }

    /// The physical objects mapped into it, each with its key and mapped range; none for an
    /// allocation.
    pub fn objects(&self, state: &'s State) -> impl Iterator<Item = (Key, &'s Live)> {
        let range = match self.backing {
            Backing::Allocation => 0..0,
            Backing::Mapping => self.start..self.end(),
        };
        let mapped = state.space.touching(range.start, range.end - range.start);
        let mapped = mapped.filter(|mapping| state.space.backs(mapping));
        mapped.filter_map(|mapping| {
            let key = Key::object(mapping.object);
            Some((key, state.live.get(key)?))
        })
    }
}

impl State {
    /// The segments as they are now, by address, each with its blocks. Takes time in proportion
    /// to the live blocks.
    pub fn segments(&self) -> Vec<SegmentAt<'_>> {
        let mut segments = self.cache.extents();
        let mut blocks: Vec<(u64, &Live)> = self.live.blocks().collect();
        blocks.sort_unstable_by_key(|(address, _)| *address);
        let mut blocks = blocks.into_iter().peekable();
        for segment in &mut segments {
            let end = segment.end();
            let mut from = segment.start;
            while let Some((address, live)) = blocks.next_if(|(address, _)| *address < end) {
                if address < segment.start {
                    continue;
                }
                let start = address.max(from);
                let to = address.saturating_add(live.size).min(end).max(start);
                let bytes = to - start;
                let paused = match segment.paused {
                    0 => 0,
                    _ => self.cache.paused_of(start, bytes),
                };
                segment.blocks.push(BlockAt { address: start, bytes, paused, live });
                from = to;
            }
        }
        segments
    }
}

impl CacheState {
    /// Segments without their blocks: mappings joined to runs.
    pub fn extents<'s>(&self) -> Vec<SegmentAt<'s>> {
        let mut segments: Vec<SegmentAt> = Vec::new();
        for (start, range) in self.ranges.cached() {
            let bytes = range.end.saturating_sub(start);
            let paused = if range.resident { 0 } else { bytes };
            match segments.last_mut() {
                Some(last)
                    if last.backing == Backing::Mapping
                        && range.backing == Backing::Mapping
                        && last.end() == start
                        && last.device == range.device
                        && last.reservation == range.reservation =>
                {
                    last.bytes = last.bytes.saturating_add(bytes);
                    last.paused = last.paused.saturating_add(paused);
                }
                _ => segments.push(SegmentAt {
                    start,
                    bytes,
                    device: range.device,
                    backing: range.backing,
                    paused,
                    reservation: range.reservation,
                    blocks: Vec::new(),
                }),
            }
        }
        segments
    }
}
