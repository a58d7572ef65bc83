//! Driver memory by address, and which of it is a segment.

use std::collections::BTreeMap;

use vramtrace_format::DeviceId;

/// What gives a segment its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// One allocation, at the segment's address.
    Allocation,
    /// Physical objects (cuMemCreate), mapped one behind the other.
    Mapping,
}

/// Bytes by which the segments of devices grew or shrank.
pub(in crate::replay) type Change = (DeviceId, i128);

/// What a range that is gone takes with it.
#[derive(Debug, Default)]
pub(in crate::replay) struct Gone {
    pub change: Option<Change>,
    /// It still held blocks.
    pub blocks: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub end: u64,
    pub device: DeviceId,
    pub backing: Backing,
    /// It holds a block or has held one, or continues what does.
    pub cached: bool,
    /// Live blocks that begin here.
    blocks: u32,
}

impl Range {
    pub fn new(end: u64, device: DeviceId, backing: Backing) -> Range {
        Range { end, device, backing, cached: false, blocks: 0 }
    }
}

/// Allocations and mappings, by address. Those of a device never overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    by_start: BTreeMap<u64, Range>,
    /// Ranges that became segments and were not reported yet.
    pub marked: Vec<u64>,
}

impl Ranges {
    /// Adds memory. A mapping that continues a segment belongs to it: the bytes that it grew by.
    pub fn add(&mut self, start: u64, range: Range) -> Option<Change> {
        self.by_start.insert(start, range);
        if range.backing != Backing::Mapping {
            return None;
        }
        let size = range.end.saturating_sub(start);
        let continued =
            |(other, next): (u64, Range)| next.cached && next.end.saturating_sub(other) == size;
        let before = self.ends_at(start).filter(|other| continued(*other));
        let near = before.or_else(|| self.mapping_at(range.end).filter(|other| continued(*other)));
        let device = near?.1.device;
        let taken = self.by_start.get_mut(&start)?;
        (taken.cached, taken.device) = (true, device);
        self.marked.push(start);
        Some((device, i128::from(size)))
    }

    /// Takes a block in: the bytes by which segments grew by it. `None`: no memory is known there.
    pub fn take_in(&mut self, address: u64, size: u64, device: DeviceId) -> Option<u64> {
        let (start, range) = self.by_start.range_mut(..=address).next_back()?;
        if address >= range.end {
            return None;
        }
        range.blocks = range.blocks.saturating_add(1);
        let (start, range) = (*start, *range);
        let mut grown = 0;
        if !range.cached {
            grown += self.mark(start, device);
        }
        // It may lie across several mappings.
        let (end, mut from) = (address.saturating_add(size), range.end);
        while range.backing == Backing::Mapping && from < end {
            let Some((_, next)) = self.mapping_at(from) else { break };
            if !next.cached {
                grown += self.mark(from, device);
            }
            from = next.end;
        }
        Some(grown)
    }

    /// A block that began here is gone. False: it was in no known memory.
    pub fn give_back(&mut self, address: u64) -> bool {
        let Some((_, range)) = self.by_start.range_mut(..=address).next_back() else {
            return false;
        };
        if address >= range.end || range.blocks == 0 {
            return false;
        }
        range.blocks -= 1;
        true
    }

    pub fn remove(&mut self, start: u64) -> Gone {
        let Some(range) = self.by_start.remove(&start) else { return Gone::default() };
        let bytes = i128::from(range.end.saturating_sub(start));
        Gone { change: range.cached.then_some((range.device, -bytes)), blocks: range.blocks > 0 }
    }

    pub fn clear(&mut self) {
        self.by_start.clear();
        self.marked.clear();
    }

    /// Segments, by address: start and range. Mappings are not joined.
    pub fn cached(&self) -> impl Iterator<Item = (u64, Range)> {
        self.by_start
            .iter()
            .filter(|(_, range)| range.cached)
            .map(|(start, range)| (*start, *range))
    }

    /// The device of the segment at this address.
    pub fn cached_at(&self, address: u64) -> Option<DeviceId> {
        let (_, range) = self.by_start.range(..=address).next_back()?;
        (range.cached && address < range.end).then_some(range.device)
    }

    /// Makes a range a segment, with the mappings of its size before and behind it: they are its
    /// pages, though no block was seen in them (the beginning of a trace may be gone). Mappings
    /// of other sizes may be somebody else's. The bytes that became segments.
    fn mark(&mut self, start: u64, device: DeviceId) -> u64 {
        let Some(range) = self.by_start.get_mut(&start) else { return 0 };
        (range.cached, range.device) = (true, device);
        let range = *range;
        self.marked.push(start);
        let size = range.end.saturating_sub(start);
        let mut grown = size;
        if range.backing != Backing::Mapping || size == 0 {
            return grown;
        }
        let page =
            |(other, next): &(u64, Range)| !next.cached && next.end.saturating_sub(*other) == size;
        let mut at = range.end;
        while let Some((other, next)) = self.mapping_at(at).filter(page) {
            self.by_start.insert(other, Range { cached: true, device, ..next });
            self.marked.push(other);
            grown += size;
            at = next.end;
        }
        at = start;
        while let Some((other, next)) = self.ends_at(at).filter(page) {
            self.by_start.insert(other, Range { cached: true, device, ..next });
            self.marked.push(other);
            grown += size;
            at = other;
        }
        grown
    }

    fn mapping_at(&self, start: u64) -> Option<(u64, Range)> {
        let range = *self.by_start.get(&start)?;
        (range.backing == Backing::Mapping).then_some((start, range))
    }

    /// The mapping that ends here.
    fn ends_at(&self, end: u64) -> Option<(u64, Range)> {
        let (start, range) = self.by_start.range(..end).next_back()?;
        (range.backing == Backing::Mapping && range.end == end).then_some((*start, *range))
    }
}
