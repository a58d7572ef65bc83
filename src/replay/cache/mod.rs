//! A framework's cache: blocks cut out of segments.
//!
//! The recorder tells blocks (address, size) and driver memory (allocations, mappings) apart from
//! each other; here they meet. A **segment** is a driver allocation, or a run of adjacent
//! mappings, that holds a block or has held one. It is one from its first block on: frameworks
//! ask the driver for memory only when they have a block for it, so that nothing is missing.
//!
//! Kept at every event, in constant time: bytes of blocks and of segments of each device, and
//! their peaks ([`CacheSums`]). Computed for a wanted moment, in the order of addresses:
//! [`State::segments`](super::State::segments), with blocks, holes and what pins them.

mod ranges;
mod refusals;
mod segments;
mod sums;

pub use ranges::Backing;
pub use segments::{BlockAt, SegmentAt};
pub use sums::{CacheOomAt, CachePeak, CacheSums, ReportedTotals};

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Kind};

use super::live::{Key, Live, LiveSet};
use super::mapping::Mapping;
pub(super) use ranges::{Change, Gone};
use ranges::{Range, Ranges};
pub(super) use refusals::Refusals;

/// What is known of a framework's cache beside its live blocks, which are in the live set.
#[derive(Clone, Debug, Default)]
pub struct CacheState {
    /// Driver memory in which blocks may lie. Filled from the first block on: a trace without
    /// blocks pays nothing.
    ranges: Option<Ranges>,
    /// Blocks of which no driver memory is known: address and size.
    outside: BTreeMap<u64, u64>,
    /// Freed blocks that wait for other streams; only imported traces tell.
    pub pending: FxHashMap<u64, Live>,
    /// What was asked for where a block is larger; only imported traces tell.
    requested: FxHashMap<u64, u64>,
    pub(super) refusals: Refusals,
}

impl CacheState {
    /// Has the trace had any block so far?
    pub fn is_used(&self) -> bool {
        self.ranges.is_some()
    }

    /// Of which device the segment is that this address lies in.
    pub fn segment_of(&self, address: u64) -> Option<DeviceId> {
        self.ranges.as_ref()?.cached_at(address)
    }

    /// Bytes that were asked for the live or pending block at this address, where the trace tells.
    pub fn requested(&self, address: u64) -> Option<u64> {
        self.requested.get(&address).copied()
    }

    pub(super) fn note_requested(&mut self, address: u64, bytes: u64) {
        self.requested.insert(address, bytes);
    }

    pub(super) fn forget_requested(&mut self, address: u64) {
        if !self.requested.is_empty() {
            self.requested.remove(&address);
        }
    }

    /// Before the first block: takes the driver memory that is there already.
    pub(super) fn begin(&mut self, live: &LiveSet, mappings: &BTreeMap<u64, Mapping>) {
        if self.ranges.is_some() {
            return;
        }
        let mut ranges = Ranges::default();
        for (key, live) in live.iter() {
            if let Some((start, range)) = allocated(key, live) {
                ranges.add(start, range);
            }
        }
        for (address, mapping) in mappings {
            ranges.add(*address, mapped(*address, mapping, live));
        }
        self.ranges = Some(ranges);
    }

    /// Places a block. The first value: bytes by which the segments of its device grew; the
    /// second: does it lie in known memory?
    pub(super) fn place(&mut self, address: u64, size: u64, device: DeviceId) -> (u64, bool) {
        let Some(ranges) = &mut self.ranges else { return (0, false) };
        match ranges.take_in(address, size, device) {
            Some(grown) => (grown, true),
            None => {
                self.outside.insert(address, size);
                (0, false)
            }
        }
    }

    /// Was the block outside of known memory? Its bytes there.
    pub(super) fn displace(&mut self, address: u64) -> Option<u64> {
        let placed = self.ranges.as_mut().is_some_and(|ranges| ranges.give_back(address));
        match placed {
            true => None,
            false => self.outside.remove(&address),
        }
    }

    /// Driver memory came. Blocks may have come before it: a checkpoint has no order.
    pub(super) fn came(&mut self, key: Key, live: &Live) -> Vec<(u64, u64)> {
        match allocated(key, live) {
            Some((start, range)) => self.add(start, range).1,
            None => Vec::new(),
        }
    }

    /// A mapping came. The bytes by which its segment grew, and blocks that had waited for it.
    pub(super) fn was_mapped(
        &mut self,
        address: u64,
        mapping: &Mapping,
        live: &LiveSet,
    ) -> (Option<Change>, Vec<(u64, u64)>) {
        if self.ranges.is_none() {
            return (None, Vec::new());
        }
        self.add(address, mapped(address, mapping, live))
    }

    fn add(&mut self, start: u64, range: Range) -> (Option<Change>, Vec<(u64, u64)>) {
        let Some(ranges) = &mut self.ranges else { return (None, Vec::new()) };
        let end = range.end;
        let change = ranges.add(start, range);
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

    /// Where memory became a segment since this was asked last.
    pub(super) fn take_marked(&mut self) -> Vec<u64> {
        self.ranges.as_mut().map_or_else(Vec::new, |ranges| std::mem::take(&mut ranges.marked))
    }

    /// Driver memory that begins here is gone.
    pub(super) fn went(&mut self, start: u64) -> Gone {
        self.ranges.as_mut().map_or_else(Gone::default, |ranges| ranges.remove(start))
    }

    /// Blocks outside of known driver memory, by address: address and bytes.
    pub fn outside(&self) -> impl Iterator<Item = (u64, u64)> {
        self.outside.iter().map(|(address, size)| (*address, *size))
    }

    /// Forgets what is live.
    pub(super) fn clear(&mut self) {
        if let Some(ranges) = &mut self.ranges {
            ranges.clear();
        }
        self.outside.clear();
        self.pending.clear();
        self.requested.clear();
    }
}

/// An allocation as memory in which blocks may lie.
fn allocated(key: Key, live: &Live) -> Option<(u64, Range)> {
    let own = key.space == vramtrace_format::Space::Device && live.kind != Kind::Imported;
    own.then(|| {
        let end = key.number.saturating_add(live.size);
        (key.number, Range::new(end, live.device, Backing::Allocation))
    })
}

fn mapped(address: u64, mapping: &Mapping, live: &LiveSet) -> Range {
    let key = Key { space: vramtrace_format::Space::Vmm, number: mapping.object };
    let device = live.get(key).map_or(DeviceId::UNKNOWN, |object| object.device);
    Range::new(address.saturating_add(mapping.size), device, Backing::Mapping)
}
