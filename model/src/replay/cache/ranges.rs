//! Driver memory by address, with the ranges that are segments.
//!
//! The memory of a paused range is unmapped without the framework's knowledge: the range stays a part of
//! its segment.

use vramtrace_format::DeviceId;

use super::super::residency::BlockOrder;
use super::by_start::ByStart;

/// The kind of driver memory of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// One allocation, at the segment's address.
    Allocation,
    /// Physical objects (cuMemCreate), mapped to adjacent addresses.
    Mapping,
}

/// Bytes by which the segments of a device grew or shrank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::replay) struct SegmentChange {
    pub device: DeviceId,
    pub reserved: i128,
    /// Change of the paused bytes.
    pub paused: i128,
}

/// The effect of the end of an allocation.
#[derive(Debug, Default)]
pub(in crate::replay) struct Gone {
    pub change: Option<SegmentChange>,
    /// It still held blocks.
    pub blocks: bool,
}

/// The memory that a block covers. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Over {
    /// Bytes that became segments by it, and those of them that are paused.
    pub grown: u64,
    pub grown_paused: u64,
    /// Resident bytes of the block.
    pub resident: u64,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::replay) struct Extent {
    pub end: u64,
    pub device: DeviceId,
    pub backing: Backing,
    /// Start of its reservation; 0: none.
    pub reservation: u64,
    /// It is a segment: it contains a block or has done so, or continues such a range.
    pub cached: bool,
    /// Its memory is mapped.
    pub resident: bool,
    /// Number of live blocks that begin in it, at most: both parts of a range that was split have those of the whole.
    blocks: u32,
}

impl Extent {
    pub(super) fn new(end: u64, device: DeviceId, backing: Backing) -> Extent {
        Extent { end, device, backing, reservation: 0, cached: false, resident: true, blocks: 0 }
    }

    pub(super) fn inside(self, reservation: u64) -> Extent {
        Extent { reservation, ..self }
    }

    fn change(&self, start: u64, reserved: bool, paused: i128) -> Option<SegmentChange> {
        let bytes = i128::from(self.end.saturating_sub(start));
        let reserved = if reserved { -bytes } else { 0 };
        let change = SegmentChange { device: self.device, reserved, paused: paused * bytes };
        self.cached.then_some(change)
    }
}

/// Allocations and mappings, by address. Those of a device never overlap.
#[derive(Clone, Debug, Default)]
pub(in crate::replay) struct Ranges {
    pub(super) by_start: ByStart<Extent>,
    /// Starts of the ranges that became segments and were not reported yet.
    pub marked: Vec<u64>,
    pub order: BlockOrder,
    /// Number of paused ranges.
    paused: usize,
}

impl Ranges {
    /// Adds memory. A mapping that continues a segment belongs to it. Paused ranges at its addresses become
    /// resident. Returns the changes of the segments' bytes.
    pub(super) fn add(&mut self, start: u64, range: Extent) -> Vec<SegmentChange> {
        if range.backing == Backing::Allocation || self.paused == 0 {
            return self.add_new(start, range).into_iter().collect();
        }
        self.split(start);
        self.split(range.end);
        let inside = self.by_start.range(start..range.end);
        let paused: Vec<(u64, Extent)> = inside
            .filter(|(_, old)| old.backing == Backing::Mapping && !old.resident)
            .map(|(start, old)| (start, *old))
            .collect();
        let mut changes = Vec::new();
        let mut from = start;
        for (at, old) in paused {
            if from < at {
                changes.extend(self.add_new(from, Extent { end: at, ..range }));
            }
            self.by_start.insert(at, Extent { resident: true, ..old });
            self.paused -= 1;
            if old.cached {
                self.marked.push(at);
            }
            changes.extend(old.change(at, false, -1));
            from = old.end;
        }
        if from < range.end {
            changes.extend(self.add_new(from, range));
        }
        changes
    }

    fn add_new(&mut self, start: u64, range: Extent) -> Option<SegmentChange> {
        self.by_start.insert(start, range);
        if range.backing != Backing::Mapping {
            return None;
        }
        let size = range.end.saturating_sub(start);
        let continued = |(other, next): (u64, Extent)| {
            next.cached
                && next.reservation == range.reservation
                && next.end.saturating_sub(other) == size
        };
        let before = self.ends_at(start).filter(|other| continued(*other));
        let near = before.or_else(|| self.mapping_at(range.end).filter(|other| continued(*other)));
        let device = near?.1.device;
        let taken = self.by_start.get_mut(start)?;
        (taken.cached, taken.device) = (true, device);
        self.marked.push(start);
        Some(SegmentChange { device, reserved: i128::from(size), paused: 0 })
    }

    /// Adds an unmapped part of a reservation, unless another range overlaps it.
    pub(super) fn add_paused(&mut self, start: u64, range: Extent) {
        let range = Extent { resident: false, ..range };
        let near = self.before(range.end);
        if start < range.end && near.is_none_or(|(_, near)| near.end <= start) {
            self.paused += 1;
            self.by_start.insert(start, range);
        }
    }

    /// Fills the gaps in `[start, end)` of a reservation with paused ranges.
    pub(super) fn cover(&mut self, start: u64, end: u64, range: Extent) {
        let mut from = self.by_start.last(start).map_or(start, |(_, near)| near.end.max(start));
        let inside: Vec<(u64, u64)> =
            self.by_start.range(start..end).map(|(s, range)| (s, range.end)).collect();
        for (next, to) in inside.into_iter().chain([(end, end)]) {
            if from < next {
                self.add_paused(from, Extent { end: next, ..range });
            }
            from = from.max(to);
        }
    }

    /// Counts a block that lies in one resident range of a segment, as most do. False: it does not.
    pub(super) fn begin_inside(&mut self, address: u64, size: u64) -> bool {
        let inside = |range: &&mut Extent| {
            let ends = address.saturating_add(size) <= range.end;
            range.cached && range.resident && address < range.end && ends
        };
        let range = self.by_start.last_mut(address).filter(inside);
        range.map(|range| range.blocks = range.blocks.saturating_add(1)).is_some()
    }

    /// Counts a block that begins at `address`. False: no memory is known there.
    pub(super) fn begin_block(&mut self, address: u64) -> bool {
        let range = self.by_start.last_mut(address).filter(|range| address < range.end);
        range.map(|range| range.blocks = range.blocks.saturating_add(1)).is_some()
    }

    /// Makes the ranges that a block covers segments.
    pub(super) fn take_in(&mut self, address: u64, size: u64, device: DeviceId) -> Over {
        let mut over = Over::default();
        let Some((start, range)) = self.by_start.last(address) else { return over };
        let (mut start, mut range) = (start, *range);
        let end = address.saturating_add(size);
        let mut from = address;
        // It may lie across several mappings.
        while from < range.end {
            if !range.cached {
                self.mark(start, device, &mut over);
            }
            if range.resident {
                over.resident += range.end.min(end).saturating_sub(from);
            }
            from = range.end;
            if range.backing != Backing::Mapping || from >= end {
                break;
            }
            let Some(next) = self.mapping_at(from) else { break };
            (start, range) = next;
        }
        over
    }

    /// Makes the range at this address a segment, which need not hold a block. Returns its device, and the bytes that became
    /// segments; `None`: it is one, or no memory is known there.
    pub(in crate::replay) fn take(&mut self, address: u64) -> Option<(DeviceId, u64)> {
        let range = self.by_start.last(address).map(|(_, range)| *range);
        let device = range.filter(|range| address < range.end && !range.cached)?.device;
        Some((device, self.take_in(address, 0, device).grown))
    }

    /// Whether the range at this address belongs to a reservation.
    pub(super) fn is_reserved(&self, address: u64) -> bool {
        let near = self.by_start.last(address);
        near.is_some_and(|(_, range)| address < range.end && range.reservation != 0)
    }

    /// Resident bytes in `[address, address + size)`.
    pub(super) fn resident_in(&self, address: u64, size: u64) -> u64 {
        let end = address.saturating_add(size);
        let first = self.by_start.last(address).map_or(address, |(start, _)| start);
        let touching = self.by_start.range(first..end);
        let part =
            |(start, range): (u64, &Extent)| range.end.min(end).saturating_sub(start.max(address));
        touching.filter(|(_, range)| range.resident).map(part).fold(0, u64::saturating_add)
    }

    /// Removes a block that began here.
    pub(super) fn give_back(&mut self, address: u64) {
        let range = self.by_start.last_mut(address).filter(|range| address < range.end);
        if let Some(range) = range {
            range.blocks = range.blocks.saturating_sub(1);
        }
    }

    /// Whether a range that overlaps `[start, end)` contains blocks.
    pub(in crate::replay) fn may_hold_blocks(&self, start: u64, end: u64) -> bool {
        let first = self.by_start.last(start).map_or(start, |(first, _)| first);
        self.by_start.range(first..end).any(|(_, range)| range.blocks > 0)
    }

    /// Removes an allocation.
    pub(in crate::replay) fn remove(&mut self, start: u64) -> Gone {
        let Some(range) = self.by_start.remove(start) else { return Gone::default() };
        self.paused -= usize::from(!range.resident);
        let paused = if range.resident { 0 } else { -1 };
        Gone { change: range.change(start, true, paused), blocks: range.blocks > 0 }
    }

    /// Removes mappings, or parts of them.
    pub(in crate::replay) fn remove_in(&mut self, start: u64, end: u64) -> Vec<SegmentChange> {
        let inside = self.mappings_in(start, end);
        inside.into_iter().filter_map(|(start, _)| self.remove(start).change).collect()
    }

    /// Pauses mappings, or parts of them.
    pub(in crate::replay) fn pause(&mut self, start: u64, end: u64) -> Vec<SegmentChange> {
        let mut changes = Vec::new();
        for (start, range) in self.mappings_in(start, end) {
            if range.resident {
                self.by_start.insert(start, Extent { resident: false, ..range });
                self.paused += 1;
                changes.extend(range.change(start, false, 1));
            }
        }
        changes
    }

    /// Ranges of mappings in `[start, end)`, split at both ends.
    fn mappings_in(&mut self, start: u64, end: u64) -> Vec<(u64, Extent)> {
        self.split(start);
        self.split(end);
        let inside = self.by_start.range(start..end);
        inside
            .filter(|(_, range)| range.backing == Backing::Mapping)
            .map(|(start, range)| (start, *range))
            .collect()
    }

    /// Splits the mapping at `at`, if there is one.
    fn split(&mut self, at: u64) {
        let Some((start, range)) = self.before(at) else { return };
        if range.end <= at || range.backing != Backing::Mapping {
            return;
        }
        self.by_start.insert(start, Extent { end: at, ..range });
        self.by_start.insert(at, range);
        self.paused += usize::from(!range.resident);
    }

    /// Adds a reservation: the ranges in it belong to it.
    pub(in crate::replay) fn reserved(&mut self, start: u64, end: u64) {
        let inside: Vec<u64> = self.by_start.range(start..end).map(|(at, _)| at).collect();
        for at in inside {
            if let Some(range) = self.by_start.get_mut(at) {
                range.reservation = start;
            }
        }
    }

    /// Segments, by address: start and range. Mappings are not joined.
    pub(super) fn cached(&self) -> impl Iterator<Item = (u64, Extent)> {
        self.by_start.iter().filter(|(_, range)| range.cached).map(|(start, range)| (start, *range))
    }

    /// Makes a range a segment, together with the adjacent mappings of the same size: they are its pages,
    /// even without a block (the begin of a trace may be erased). Mappings of another size, or of another
    /// reservation, may belong to another library.
    fn mark(&mut self, start: u64, device: DeviceId, over: &mut Over) {
        let Some(range) = self.by_start.get_mut(start) else { return };
        (range.cached, range.device) = (true, device);
        let range = *range;
        self.marked.push(start);
        let size = range.end.saturating_sub(start);
        let mut grow = |range: &Extent| {
            over.grown = over.grown.saturating_add(size);
            over.grown_paused += if range.resident { 0 } else { size };
        };
        grow(&range);
        if range.backing != Backing::Mapping || size == 0 {
            return;
        }
        let page = |(other, next): &(u64, Extent)| {
            !next.cached
                && next.reservation == range.reservation
                && next.end.saturating_sub(*other) == size
        };
        let (mut first, mut last) = (start, range.end);
        while let Some((other, next)) =
            self.mapping_at(last).filter(page).or_else(|| self.ends_at(first).filter(page))
        {
            self.by_start.insert(other, Extent { cached: true, device, ..next });
            self.marked.push(other);
            grow(&next);
            (first, last) = (first.min(other), last.max(next.end));
        }
    }

    /// The last range that starts before an address.
    fn before(&self, address: u64) -> Option<(u64, Extent)> {
        let (start, range) = self.by_start.last(address.checked_sub(1)?)?;
        Some((start, *range))
    }

    fn mapping_at(&self, start: u64) -> Option<(u64, Extent)> {
        let range = *self.by_start.get(start)?;
        (range.backing == Backing::Mapping).then_some((start, range))
    }

    /// The mapping that ends here.
    fn ends_at(&self, end: u64) -> Option<(u64, Extent)> {
        let (start, range) = self.before(end)?;
        (range.backing == Backing::Mapping && range.end == end).then_some((start, range))
    }
}
