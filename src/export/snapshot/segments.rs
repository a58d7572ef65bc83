//! The first pass over a trace: which memory PyTorch's allocator took as segments, and where the known
//! history begins.

use std::collections::BTreeSet;
use std::ops::Range;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Event, Kind, SiteId, Space, Stamped};

use crate::replay::{AllocCause, Asleep, FreeCause, Key, Live, Mapping, Observer};
use crate::spans::Spans;

/// The result of the first pass.
#[derive(Debug, Default)]
pub(super) struct SegmentsFound {
    /// File offsets of the events that allocated or mapped memory of segments, with the site of the first block in it,
    /// which has the segment's stream and pool; 0: that of the memory.
    pub segments: FxHashMap<u64, SiteId>,
    /// File offset of the begin of the history. Events before it are missing; earlier records give the
    /// initial state.
    pub start: u64,
    /// The highest ordinal.
    pub last_device: Option<u8>,
}

/// Finds the segments, and the begin of the history. Memory with a block in it is a segment.
#[derive(Debug, Default)]
pub(super) struct SegmentObserver {
    pub found: SegmentsFound,
    /// Driver memory of all devices, with the file offset of its event. Addresses of devices differ.
    memory: Spans<u64>,
    /// Addresses of blocks that a checkpoint listed before their memory.
    waiting: BTreeSet<u64>,
    /// The trace contains only memory of PyTorch's allocator.
    all_segments: bool,
    /// Events before the current one are missing.
    lost: bool,
}

impl SegmentObserver {
    /// `all_segments`: the trace contains only memory of PyTorch's allocator.
    pub(super) fn new(all_segments: bool) -> SegmentObserver {
        SegmentObserver { all_segments, ..SegmentObserver::default() }
    }

    fn add_memory(&mut self, range: Range<u64>, offset: u64) {
        self.memory.put(range.clone(), offset);
        if self.all_segments || self.waiting.range(range).next().is_some() {
            self.found.segments.insert(offset, SiteId(0));
        }
    }

    fn note(&mut self, at: &Stamped, device: DeviceId, how: AllocCause) {
        if device != DeviceId::UNKNOWN {
            self.found.last_device = self.found.last_device.max(Some(device.0));
        }
        if how == AllocCause::Checkpoint && self.lost {
            self.found.start = self.found.start.max(at.offset);
        }
    }
}

impl Observer for SegmentObserver {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.note(at, live.device, how);
        if let Some(range) = place(key, live) {
            self.add_memory(range, at.offset);
        }
    }

    fn on_free(&mut self, _at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if let Some(range) = place(key, live) {
            self.memory.cut(range);
        }
    }

    fn on_map(&mut self, at: &Stamped, address: u64, mapping: &Mapping, object: Option<&Live>) {
        let device = object.map_or(DeviceId::UNKNOWN, |object| object.device);
        self.note(at, device, how_mapped(at));
        self.add_memory(address..address.saturating_add(mapping.size), at.offset);
    }

    fn on_unmap(&mut self, _at: &Stamped, address: u64, mapping: &Mapping) {
        self.memory.cut(address..address.saturating_add(mapping.size));
    }

    fn on_sleep_end(&mut self, _at: &Stamped, asleep: &Asleep) {
        self.memory.cut(asleep.address..asleep.end());
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        self.note(at, live.device, how);
        let range = address..address.saturating_add(live.size);
        if !self.memory.holes(range.clone()).is_empty() {
            if self.lost {
                self.waiting.insert(address);
            }
            return;
        }
        for (_, offset) in self.memory.over(range) {
            self.found.segments.entry(offset).or_insert(live.site);
        }
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.memory.clear();
        self.waiting.clear();
        self.lost = true;
        self.found.start = at.offset;
    }
}

pub(super) fn how_mapped(at: &Stamped) -> AllocCause {
    match at.event {
        Event::CheckpointMap { .. } => AllocCause::Checkpoint,
        _ => AllocCause::Allocated,
    }
}

/// The address range of driver memory. `None`: it has none, or is another process's.
pub(super) fn place(key: Key, live: &Live) -> Option<Range<u64>> {
    let own = key.space == Space::Device && live.kind != Kind::Imported;
    let end = key.number.checked_add(live.size).filter(|_| own && live.size > 0)?;
    Some(key.number..end)
}
