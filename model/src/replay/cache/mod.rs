//! A framework's cache: segments of driver memory, and the blocks in them.
//!
//! The trace has separate events for blocks (address, size) and for driver memory (allocations,
//! mappings). This module relates them by address. A **segment** is a driver allocation, or a run of
//! adjacent mappings, that holds a block or has held one. It becomes one with its first block.
//! Frameworks request driver memory only when they need it for a block, so no segment is missed; in an imported state a
//! segment may hold nothing: [`BlockChange::Reusable`](vramtrace_format::BlockChange) at its address makes it one.
//!
//! Kept at every event, in constant time: bytes of blocks and of segments of each device, and their
//! peaks ([`CacheSums`]). Computed for a requested moment, in the order of addresses:
//! [`State::segments`](super::State::segments), with blocks and holes.

mod by_start;
mod ranges;
mod segments;
mod sums;

pub use ranges::Backing;
pub use segments::{BlockAt, SegmentAt};
pub use sums::{CacheOomAt, CachePeak, CacheSums, ReportedTotals};

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Kind};

use super::live::{Key, Live, LiveSet};
use super::mapping::{AddressSpace, Asleep, Mapping};
pub(super) use ranges::SegmentChange;
use ranges::{Extent, Ranges};

/// The effect of placing a block. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Placed {
    /// Bytes by which the segments of its device grew, and those of them without memory.
    pub grown: u64,
    pub grown_paused: u64,
    /// Its memory is known.
    pub known: bool,
    /// Bytes of the block whose memory is unmapped.
    pub paused: u64,
}

/// A framework's cache, except for its live blocks, which are in the live set.
#[derive(Clone, Debug, Default)]
pub struct CacheState {
    /// The trace has had a block so far.
    is_used: bool,
    /// Driver memory in which blocks may lie. Filled from the first block on, so that traces without
    /// blocks need no memory for it.
    pub(super) ranges: Ranges,
    /// Blocks that lie in no known driver memory: address and size.
    outside: BTreeMap<u64, u64>,
    /// Freed blocks that wait for other streams; known in imported traces only.
    pub pending: FxHashMap<u64, Live>,
}

impl CacheState {
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// The device of the segment that contains this address.
    pub fn segment_of(&self, address: u64) -> Option<DeviceId> {
        let (_, range) = self.ranges.by_start.last(address)?;
        (range.cached && address < range.end).then_some(range.device)
    }

    /// Called before the first block: adds the driver memory that exists already.
    pub(super) fn begin(&mut self, live: &LiveSet, space: &AddressSpace) {
        if std::mem::replace(&mut self.is_used, true) {
            return;
        }
        for (key, allocation) in live.iter() {
            if let Some((start, range)) = allocated(key, allocation) {
                self.ranges.add(start, range);
            }
        }
        for mapping in space.mappings().filter(|mapping| space.backs(mapping)) {
            self.ranges.add(mapping.address, mapped(mapping, live, space));
        }
        for piece in space.asleep() {
            self.put_asleep(piece, reservation_of(piece.address, space));
        }
    }

    /// Places a block.
    pub(super) fn place(
        &mut self,
        address: u64,
        size: u64,
        device: DeviceId,
        space: &AddressSpace,
    ) -> Placed {
        let ranges = &mut self.ranges;
        ranges.order.add(address, size);
        if ranges.begin_inside(address, size) {
            return Placed { known: true, ..Placed::default() };
        }
        let mut known = ranges.begin_block(address);
        let mut over = match known {
            true => ranges.take_in(address, size, device),
            false => ranges::Over::default(),
        };
        let mut paused = 0;
        if over.resident < size
            && let Some(reservation) = space.reservation_at(address)
        {
            // Unmapped parts have no memory, but belong to the segment.
            let end = address.saturating_add(size).min(reservation.end());
            let range = Extent::new(end, device, Backing::Mapping).inside(reservation.address);
            ranges.cover(address, end, range);
            known = known || ranges.begin_block(address);
            let rest = ranges.take_in(address, size, device);
            over.grown = over.grown.saturating_add(rest.grown);
            over.grown_paused = over.grown_paused.saturating_add(rest.grown_paused);
            paused = size.saturating_sub(rest.resident);
        }
        if !known {
            self.outside.insert(address, size);
        }
        Placed { grown: over.grown, grown_paused: over.grown_paused, known, paused }
    }

    /// Removes a block that was outside of known memory. Returns its bytes.
    pub(super) fn displace(&mut self, address: u64) -> Option<u64> {
        self.ranges.order.remove(address);
        self.ranges.give_back(address);
        self.outside.remove(&address)
    }

    /// The bytes of a block whose memory is unmapped. 0 for a block outside of reservations.
    pub(super) fn paused_of(&self, address: u64, size: u64) -> u64 {
        match self.ranges.is_reserved(address) {
            true => size.saturating_sub(self.ranges.resident_in(address, size)),
            false => 0,
        }
    }

    /// Adds driver memory. Returns blocks that were recorded before it (a checkpoint has no order).
    pub(super) fn came(&mut self, key: Key, live: &Live) -> Vec<(u64, u64)> {
        allocated(key, live).map_or(Vec::new(), |(start, range)| self.add(start, range).1)
    }

    /// Returns the bytes by which its segment grew, and blocks that were recorded before it.
    pub(super) fn add(
        &mut self,
        start: u64,
        range: Extent,
    ) -> (Vec<SegmentChange>, Vec<(u64, u64)>) {
        if !self.is_used {
            return (Vec::new(), Vec::new());
        }
        let end = range.end;
        let change = self.ranges.add(start, range);
        if self.outside.is_empty() || end <= start {
            return (change, Vec::new());
        }
        let waiting: Vec<(u64, u64)> =
            self.outside.range(start..end).map(|(address, size)| (*address, *size)).collect();
        for (address, _) in &waiting {
            self.outside.remove(address);
        }
        (change, waiting)
    }

    /// Adds an unmapped part of a reservation.
    pub(super) fn put_asleep(&mut self, piece: &Asleep, reservation: u64) {
        if self.is_used {
            let range = Extent::new(piece.end(), piece.owner.device, Backing::Mapping);
            self.ranges.add_paused(piece.address, range.inside(reservation));
        }
    }

    /// Live blocks that overlap `[start, end)`: address, and bytes inside it.
    pub(super) fn blocks_over(&mut self, start: u64, end: u64, live: &LiveSet) -> Vec<(u64, u64)> {
        if !self.is_used {
            return Vec::new();
        }
        self.ranges.order.make(live);
        self.ranges.order.over(start, end)
    }

    /// Blocks outside of known driver memory, by address: address and bytes.
    pub fn outside(&self) -> impl Iterator<Item = (u64, u64)> {
        self.outside.iter().map(|(address, size)| (*address, *size))
    }

    /// Forgets what is live.
    pub(super) fn clear(&mut self) {
        self.ranges = Ranges::default();
        self.outside.clear();
        self.pending.clear();
    }
}

/// An allocation as memory in which blocks may lie.
fn allocated(key: Key, live: &Live) -> Option<(u64, Extent)> {
    let own = key.space == vramtrace_format::Space::Device && live.kind != Kind::Imported;
    own.then(|| {
        let end = key.number.saturating_add(live.size);
        (key.number, Extent::new(end, live.device, Backing::Allocation))
    })
}

/// A mapping as memory in which blocks may lie.
pub(super) fn mapped(mapping: &Mapping, live: &LiveSet, space: &AddressSpace) -> Extent {
    let object = live.get(Key::object(mapping.object));
    let device = object.map_or(DeviceId::UNKNOWN, |object| object.device);
    let range = Extent::new(mapping.end(), device, Backing::Mapping);
    range.inside(reservation_of(mapping.address, space))
}

/// The start of the reservation of an address; 0: there is none.
fn reservation_of(address: u64, space: &AddressSpace) -> u64 {
    space.reservation_at(address).map_or(0, |reservation| reservation.address)
}
