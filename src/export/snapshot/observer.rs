//! Follows one device through a trace and tells what PyTorch's allocator would have noted.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use rustc_hash::FxHashSet;
use vramtrace_format::{BlockChange, DeviceId, Event, Kind, PoolId, Space, StackId, Stamped};

use super::layout::{Block, Layout, Memory, MemoryRole};
use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping, Observer,
};
use crate::spans::Spans;
use crate::trace::Definitions;

/// What a first reading of the trace found.
#[derive(Debug, Default)]
pub struct SegmentsFound {
    /// Offsets of the events that made memory which blocks were cut from.
    pub segments: FxHashSet<u64>,
    /// What comes before this offset is the state in which the history begins: before it events
    /// are missing.
    pub start: u64,
    /// The highest ordinal.
    pub last_device: Option<u8>,
}

/// One line of a history.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub action: &'static str,
    /// `None`: an out-of-memory, which has what the driver had free instead.
    pub address: Option<u64>,
    pub free: u64,
    pub size: u64,
    pub stream: u64,
    pub time_ns: u64,
    /// Of what is allocated, mapped or refused.
    pub stack: StackId,
    /// It is the stack of this event. A trace has no stacks of frees.
    pub has_stack: bool,
    /// Memory of somebody else than PyTorch.
    pub other: bool,
}

/// Finds segments and the beginning. A block makes a segment of the memory that it lies in.
#[derive(Debug, Default)]
pub struct SegmentObserver {
    pub found: SegmentsFound,
    /// Of all devices: their addresses differ. Offset of the event that made it.
    memory: Spans<u64>,
    /// Where blocks begin that a checkpoint listed before their memory.
    waiting: BTreeSet<u64>,
    /// Nothing but what PyTorch's allocator took is in the trace.
    all_segments: bool,
    /// Events are missing before this place.
    lost: bool,
}

impl SegmentObserver {
    /// `all_segments`: nothing but what PyTorch's allocator took is in the trace.
    pub fn new(all_segments: bool) -> SegmentObserver {
        SegmentObserver { all_segments, ..SegmentObserver::default() }
    }

    fn came(&mut self, range: Range<u64>, offset: u64) {
        self.memory.put(range.clone(), offset);
        if self.all_segments || self.waiting.range(range).next().is_some() {
            self.found.segments.insert(offset);
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
            self.came(range, at.offset);
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
        self.came(address..address.saturating_add(mapping.size), at.offset);
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
        let made = self.memory.over(range).map(|(_, offset)| offset);
        self.found.segments.extend(made);
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.memory.clear();
        self.waiting.clear();
        self.lost = true;
        self.found.start = at.offset;
    }
}

fn how_mapped(at: &Stamped) -> AllocCause {
    match at.event {
        Event::CheckpointMap { .. } => AllocCause::Checkpoint,
        _ => AllocCause::Allocated,
    }
}

/// Where driver memory lies that has an address.
fn place(key: Key, live: &Live) -> Option<Range<u64>> {
    let own = key.space == Space::Device && live.kind != Kind::Imported;
    let end = key.number.checked_add(live.size).filter(|_| own && live.size > 0)?;
    Some(key.number..end)
}

/// Writes the history of one device, by a callback.
pub struct SnapshotObserver<'w> {
    pub device: DeviceId,
    pub found: &'w SegmentsFound,
    pub definitions: &'w Definitions,
    pub write: &'w mut dyn FnMut(&Entry) -> io::Result<()>,
    pub layout: Layout,
    /// Blocks that a checkpoint listed before their memory.
    waiting: BTreeMap<u64, Block>,
    /// Mappings that a checkpoint listed before their object: object, range, offset of the event.
    unplaced: Vec<(u64, Range<u64>, u64)>,
    /// The last event, not written yet: the next may say more of it.
    held: Option<Held>,
    /// What the driver had free when it was last asked.
    driver_free: u64,
    /// Blocks in no memory that is known.
    pub left_out: u64,
    pub error: Option<io::Error>,
}

#[derive(Clone, Copy)]
enum Held {
    Alloc { address: u64, time_ns: u64 },
    Free { address: u64, block: Block, time_ns: u64 },
}

impl<'w> SnapshotObserver<'w> {
    pub fn new(
        device: DeviceId,
        found: &'w SegmentsFound,
        definitions: &'w Definitions,
        write: &'w mut dyn FnMut(&Entry) -> io::Result<()>,
    ) -> SnapshotObserver<'w> {
        SnapshotObserver {
            device,
            found,
            definitions,
            write,
            layout: Layout::default(),
            waiting: BTreeMap::new(),
            unplaced: Vec::new(),
            held: None,
            driver_free: 0,
            left_out: 0,
            error: None,
        }
    }

    /// After the last event.
    pub fn finish(&mut self) {
        self.settle();
    }

    fn entry(&mut self, entry: Entry) {
        if self.error.is_none()
            && let Err(error) = (self.write)(&entry)
        {
            self.error = Some(error);
        }
    }

    fn of_block(&mut self, action: &'static str, address: u64, block: &Block, time_ns: u64) {
        self.entry(Entry {
            action,
            address: Some(address),
            free: 0,
            size: block.requested,
            stream: block.stream,
            time_ns,
            stack: block.stack,
            has_stack: action == "alloc",
            other: false,
        });
    }

    fn of_memory(&mut self, action: &'static str, range: &Range<u64>, memory: &Memory, at: u64) {
        self.entry(Entry {
            action,
            address: Some(range.start),
            free: 0,
            size: range.end - range.start,
            stream: memory.stream,
            time_ns: at,
            stack: memory.stack,
            has_stack: !action.contains("free") && action != "segment_unmap",
            other: memory.role == MemoryRole::Other,
        });
    }

    /// Writes what was held back.
    fn settle(&mut self) {
        match self.held.take() {
            Some(Held::Alloc { address, time_ns }) => {
                if let Some(block) = self.layout.block(address).copied() {
                    self.of_block("alloc", address, &block, time_ns);
                }
            }
            Some(Held::Free { address, block, time_ns }) => {
                self.of_block("free_requested", address, &block, time_ns);
                self.of_block("free_completed", address, &block, time_ns);
            }
            None => {}
        }
    }

    fn tells(&self, at: &Stamped) -> bool {
        at.offset > self.found.start || self.found.start == 0
    }

    /// Blocks that must go before what comes.
    fn clear(&mut self, at: &Stamped, range: &Range<u64>) {
        for address in self.layout.in_the_way(range) {
            let Some(block) = self.layout.take(address) else { continue };
            if self.tells(at) {
                if !block.pending {
                    self.of_block("free_requested", address, &block, at.time_ns);
                }
                self.of_block("free_completed", address, &block, at.time_ns);
            }
        }
    }

    fn came(&mut self, at: &Stamped, range: Range<u64>, memory: Memory, tell: bool) {
        self.settle();
        let over: Vec<Range<u64>> =
            self.layout.memory.over(range.clone()).map(|(span, _)| span).collect();
        for span in over {
            self.went(at, span);
        }
        if tell && self.tells(at) {
            match memory.role {
                MemoryRole::Page => self.of_memory("segment_map", &range, &memory, at.time_ns),
                MemoryRole::Segment => self.of_memory("segment_alloc", &range, &memory, at.time_ns),
                MemoryRole::Other => {
                    self.of_memory("segment_alloc", &range, &memory, at.time_ns);
                    self.of_memory("alloc", &range, &memory, at.time_ns);
                }
            }
        }
        let end = range.end;
        self.layout.memory.put(range, memory);
        if !self.waiting.is_empty() {
            let ready = |(address, block): (&u64, &Block)| {
                let range = *address..address.saturating_add(block.size);
                self.layout.holds(&range).then_some(*address)
            };
            for address in self.waiting.range(..end).filter_map(ready).collect::<Vec<u64>>() {
                if let Some(block) = self.waiting.remove(&address) {
                    self.layout.put(address, block);
                }
            }
        }
    }

    fn went(&mut self, at: &Stamped, range: Range<u64>) {
        self.settle();
        // A block that stands for driver memory ends as a whole: what stays of it comes again.
        let partly = |(span, memory): &(Range<u64>, Memory)| {
            let inside = range.start <= span.start && span.end <= range.end;
            memory.role == MemoryRole::Other && !inside
        };
        let whole: Vec<_> = self.layout.memory.over(range.clone()).filter(partly).collect();
        for (span, memory) in whole {
            self.went(at, span.clone());
            for rest in [span.start..range.start, range.end..span.end] {
                if !rest.is_empty() {
                    self.came(at, rest, memory, true);
                }
            }
        }
        for (part, memory) in self.layout.memory.cut(range) {
            self.clear(at, &part);
            if !self.tells(at) {
                continue;
            }
            match memory.role {
                MemoryRole::Page => self.of_memory("segment_unmap", &part, &memory, at.time_ns),
                MemoryRole::Segment => self.of_memory("segment_free", &part, &memory, at.time_ns),
                MemoryRole::Other => {
                    for action in ["free_requested", "free_completed", "segment_free"] {
                        self.of_memory(action, &part, &memory, at.time_ns);
                    }
                }
            }
        }
    }

    fn unplaced_of(&self, key: Key) -> Option<usize> {
        let is_of = |(object, ..): &(u64, Range<u64>, u64)| *object == key.number;
        self.unplaced.iter().position(|it| key.space == Space::Vmm && is_of(it))
    }

    fn memory(&self, offset: u64, live: Option<&Live>, segment: MemoryRole) -> Memory {
        let site = live.and_then(|live| self.definitions.site(live.site));
        Memory {
            stream: site.map_or(0, |site| site.stream),
            pool: site.map_or(PoolId(0), |site| site.pool),
            stack: live.map_or(StackId(0), |live| live.stack),
            role: if self.found.segments.contains(&offset) { segment } else { MemoryRole::Other },
        }
    }
}

impl Observer for SnapshotObserver<'_> {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        if live.device != self.device {
            return;
        }
        if let Some(range) = place(key, live) {
            let memory = self.memory(at.offset, Some(live), MemoryRole::Segment);
            self.came(at, range, memory, how != AllocCause::Checkpoint);
        }
        while let Some(index) = self.unplaced_of(key) {
            let (_, range, offset) = self.unplaced.swap_remove(index);
            let memory = self.memory(offset, Some(live), MemoryRole::Page);
            self.came(at, range, memory, false);
        }
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if live.device == self.device
            && let Some(range) = place(key, live)
        {
            self.went(at, range);
        }
    }

    fn on_map(&mut self, at: &Stamped, address: u64, mapping: &Mapping, object: Option<&Live>) {
        let range = address..address.saturating_add(mapping.size);
        match object {
            _ if range.is_empty() => {}
            None => self.unplaced.push((mapping.object, range, at.offset)),
            Some(object) if object.device == self.device => {
                let memory = self.memory(at.offset, Some(object), MemoryRole::Page);
                self.came(at, range, memory, how_mapped(at) != AllocCause::Checkpoint);
            }
            Some(_) => {}
        }
    }

    fn on_unmap(&mut self, at: &Stamped, address: u64, mapping: &Mapping) {
        // Of another device, nothing is there.
        self.went(at, address..address.saturating_add(mapping.size));
    }

    /// PyTorch knows nothing of it: its segments stay. Others' memory goes.
    fn on_sleep(&mut self, at: &Stamped, asleep: &Asleep, _by: StackId) {
        let over = self.layout.memory.over(asleep.address..asleep.end());
        let others: Vec<Range<u64>> = over
            .filter(|(_, memory)| memory.role == MemoryRole::Other)
            .map(|(span, _)| span.start.max(asleep.address)..span.end.min(asleep.end()))
            .collect();
        for range in others {
            self.went(at, range);
        }
    }

    /// Of the one who had it before.
    fn on_wake(&mut self, at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        let range = mapping.address..mapping.end();
        let Some(object) = object.filter(|object| object.device == self.device) else { return };
        let stack = mapping.woken.map_or(object.stack, |woken| woken.owner.stack);
        let role = MemoryRole::Other;
        let memory = Memory { stack, role, ..self.memory(at.offset, Some(object), role) };
        for hole in self.layout.memory.holes(range) {
            self.came(at, hole, memory, true);
        }
    }

    fn on_sleep_end(&mut self, at: &Stamped, asleep: &Asleep) {
        self.went(at, asleep.address..asleep.end());
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        if live.device != self.device {
            return;
        }
        self.settle();
        let site = self.definitions.site(live.site);
        let block = Block {
            size: live.size,
            requested: live.size,
            stream: site.map_or(0, |site| site.stream),
            stack: live.stack,
            pending: false,
        };
        let range = address..address.saturating_add(live.size);
        self.clear(at, &range);
        let tells = how != AllocCause::Checkpoint && self.tells(at);
        if !self.layout.holds(&range) {
            match tells {
                true => self.left_out += 1,
                false => drop(self.waiting.insert(address, block)),
            }
            return;
        }
        self.layout.put(address, block);
        if tells {
            self.held = Some(Held::Alloc { address, time_ns: at.time_ns });
        }
    }

    fn on_block_free(&mut self, at: &Stamped, address: u64, live: &Live, _how: FreeCause) {
        if live.device != self.device {
            return;
        }
        self.settle();
        self.waiting.remove(&address);
        if let Some(block) = self.layout.take(address)
            && self.tells(at)
        {
            self.held = Some(Held::Free { address, block, time_ns: at.time_ns });
        }
    }

    fn on_block_change(&mut self, at: &Stamped, address: u64, change: BlockChange) {
        match (change, self.held) {
            (BlockChange::Requested(bytes), _) => {
                if let Some(block) = self.layout.block(address) {
                    block.requested = bytes.min(block.size);
                }
                self.settle();
            }
            (BlockChange::Pending, Some(Held::Free { address: freed, block, time_ns }))
                if freed == address =>
            {
                self.held = None;
                self.of_block("free_requested", address, &block, time_ns);
                self.layout.put(address, Block { pending: true, ..block });
            }
            (BlockChange::Pending, _) => {}
            (BlockChange::Reusable, _) => {
                self.settle();
                if self.layout.block(address).is_some_and(|block| block.pending)
                    && let Some(block) = self.layout.take(address)
                    && self.tells(at)
                {
                    self.of_block("free_completed", address, &block, at.time_ns);
                }
            }
        }
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        if device != self.device || !self.tells(at) {
            return;
        }
        self.settle();
        self.entry(Entry {
            action: "oom",
            address: None,
            free: self.driver_free,
            size: oom.size,
            stream: 0,
            time_ns: at.time_ns,
            stack: oom.stack,
            has_stack: true,
            other: false,
        });
    }

    fn on_device_change(&mut self, _at: &Stamped, device: DeviceId, state: &DeviceState) {
        if device == self.device
            && let Some(free) = state.sample.and_then(|at| at.sample.driver_free)
        {
            self.driver_free = free;
        }
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        self.held = None;
        self.waiting.clear();
        self.unplaced.clear();
        self.layout.clear();
    }
}
