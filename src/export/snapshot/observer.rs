//! The second pass: writes the history of one device with the entries that PyTorch's allocator would have
//! recorded.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use vramtrace_format::{BlockChange, DeviceId, PoolId, Space, StackId, Stamped};

use super::layout::{Block, Layout, Memory, MemoryRole, Whole};
use super::segments::{SegmentsFound, how_mapped, place};
use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping, Observer,
};
use crate::trace::Definitions;

/// One entry of a history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub action: &'static str,
    /// `None`: an out-of-memory.
    pub address: Option<u64>,
    /// Free bytes of the driver at an out-of-memory; else 0.
    pub free: u64,
    pub size: u64,
    pub stream: u64,
    pub time_ns: u64,
    /// The stack of the allocation, mapping or refusal.
    pub stack: StackId,
    /// The memory is not PyTorch's.
    pub other: bool,
}

/// Writes the history of one device through the callback `write`.
pub(super) struct SnapshotObserver<'w> {
    device: DeviceId,
    found: &'w SegmentsFound,
    definitions: &'w Definitions,
    write: &'w mut dyn FnMut(&Entry) -> io::Result<()>,
    layout: Layout,
    /// Blocks that a checkpoint listed before their memory.
    waiting: BTreeMap<u64, Block>,
    /// Mappings that a checkpoint listed before their object: object, range, offset of the event.
    unplaced: Vec<(u64, Range<u64>, u64)>,
    /// The last event, not written yet: the next one may add to it.
    held: Option<Held>,
    /// Free bytes by the driver's last figure.
    driver_free: u64,
    /// Number of blocks whose memory is not in the trace: they are left out.
    left_out: u64,
    error: Option<io::Error>,
}

#[derive(Clone, Copy)]
enum Held {
    Alloc { address: u64, time_ns: u64 },
    Free { address: u64, block: Block, time_ns: u64 },
}

impl<'w> SnapshotObserver<'w> {
    pub(super) fn new(
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

    /// After the last event. Returns what is there then, and the number of blocks that were left out.
    pub(super) fn finish(mut self) -> io::Result<(Vec<Whole>, u64)> {
        self.settle();
        self.error.map_or(Ok(()), Err)?;
        Ok((self.layout.segments(), self.left_out))
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
            other: false,
        });
    }

    /// Writes an entry for each action, unless its event is before the history.
    fn of_memory(
        &mut self,
        at: &Stamped,
        actions: &[&'static str],
        range: &Range<u64>,
        memory: &Memory,
    ) {
        let known = self.is_in_history(at);
        for action in actions.iter().filter(|_| known) {
            self.entry(Entry {
                action,
                address: Some(range.start),
                free: 0,
                size: range.end - range.start,
                stream: memory.stream,
                time_ns: at.time_ns,
                stack: memory.stack,
                other: memory.role == MemoryRole::Other,
            });
        }
    }

    /// Writes the event that was held back.
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

    fn is_in_history(&self, at: &Stamped) -> bool {
        at.offset > self.found.start || self.found.start == 0
    }

    /// Frees all blocks in a range that other memory takes.
    fn clear(&mut self, at: &Stamped, range: &Range<u64>) {
        for address in self.layout.in_the_way(range) {
            let Some(block) = self.layout.take(address) else { continue };
            if self.is_in_history(at) {
                if !block.pending {
                    self.of_block("free_requested", address, &block, at.time_ns);
                }
                self.of_block("free_completed", address, &block, at.time_ns);
            }
        }
    }

    fn add_memory(&mut self, at: &Stamped, range: Range<u64>, memory: Memory, tell: bool) {
        self.settle();
        let over: Vec<Range<u64>> =
            self.layout.memory.over(range.clone()).map(|(span, _)| span).collect();
        for span in over {
            self.remove_memory(at, span);
        }
        let actions: &[_] = match memory.role {
            _ if !tell => &[],
            MemoryRole::Page => &["segment_map"],
            MemoryRole::Segment => &["segment_alloc"],
            MemoryRole::Other => &["segment_alloc", "alloc"],
        };
        self.of_memory(at, actions, &range, &memory);
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

    fn remove_memory(&mut self, at: &Stamped, range: Range<u64>) {
        self.settle();
        // An entry of other memory ends as a whole: the parts that stay are added again.
        let partly = |(span, memory): &(Range<u64>, Memory)| {
            let inside = range.start <= span.start && span.end <= range.end;
            memory.role == MemoryRole::Other && !inside
        };
        let whole: Vec<_> = self.layout.memory.over(range.clone()).filter(partly).collect();
        for (span, memory) in whole {
            self.remove_memory(at, span.clone());
            for rest in [span.start..range.start, range.end..span.end] {
                if !rest.is_empty() {
                    self.add_memory(at, rest, memory, true);
                }
            }
        }
        for (part, memory) in self.layout.memory.cut(range) {
            self.clear(at, &part);
            let actions: &[_] = match memory.role {
                MemoryRole::Page => &["segment_unmap"],
                MemoryRole::Segment => &["segment_free"],
                MemoryRole::Other => &["free_requested", "free_completed", "segment_free"],
            };
            self.of_memory(at, actions, &part, &memory);
        }
    }

    fn unplaced_of(&self, key: Key) -> Option<usize> {
        let is_of = |(object, ..): &(u64, Range<u64>, u64)| *object == key.number;
        self.unplaced.iter().position(|it| key.space == Space::Vmm && is_of(it))
    }

    fn memory(&self, offset: u64, live: Option<&Live>, segment: MemoryRole) -> Memory {
        let found = self.found.segments.get(&offset);
        let of_block = found.and_then(|site| self.definitions.site(*site));
        let site = of_block.or_else(|| self.definitions.site(live?.site));
        Memory {
            stream: site.map_or(0, |site| site.stream),
            pool: site.map_or(PoolId(0), |site| site.pool),
            stack: live.map_or(StackId(0), |live| live.stack),
            role: if found.is_some() { segment } else { MemoryRole::Other },
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
            self.add_memory(at, range, memory, how != AllocCause::Checkpoint);
        }
        while let Some(index) = self.unplaced_of(key) {
            let (_, range, offset) = self.unplaced.swap_remove(index);
            let memory = self.memory(offset, Some(live), MemoryRole::Page);
            self.add_memory(at, range, memory, false);
        }
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if live.device == self.device
            && let Some(range) = place(key, live)
        {
            self.remove_memory(at, range);
        }
    }

    fn on_map(&mut self, at: &Stamped, address: u64, mapping: &Mapping, object: Option<&Live>) {
        let range = address..address.saturating_add(mapping.size);
        match object {
            _ if range.is_empty() => {}
            None => self.unplaced.push((mapping.object, range, at.offset)),
            Some(object) if object.device == self.device => {
                let memory = self.memory(at.offset, Some(object), MemoryRole::Page);
                self.add_memory(at, range, memory, how_mapped(at) != AllocCause::Checkpoint);
            }
            Some(_) => {}
        }
    }

    fn on_unmap(&mut self, at: &Stamped, address: u64, mapping: &Mapping) {
        // The layout has no memory of other devices.
        self.remove_memory(at, address..address.saturating_add(mapping.size));
    }

    /// PyTorch's segments stay when their memory is unmapped. Other memory is removed.
    fn on_sleep(&mut self, at: &Stamped, asleep: &Asleep, _by: StackId) {
        let over = self.layout.memory.over(asleep.address..asleep.end());
        let others: Vec<Range<u64>> = over
            .filter(|(_, memory)| memory.role == MemoryRole::Other)
            .map(|(span, _)| span.start.max(asleep.address)..span.end.min(asleep.end()))
            .collect();
        for range in others {
            self.remove_memory(at, range);
        }
    }

    /// Memory that is mapped again gets the stack that allocated it first.
    fn on_wake(&mut self, at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        let range = mapping.address..mapping.end();
        let Some(object) = object.filter(|object| object.device == self.device) else { return };
        let stack = mapping.woken.map_or(object.stack, |woken| woken.owner.stack);
        let role = MemoryRole::Other;
        let memory = Memory { stack, role, ..self.memory(at.offset, Some(object), role) };
        for hole in self.layout.memory.holes(range) {
            self.add_memory(at, hole, memory, true);
        }
    }

    fn on_sleep_end(&mut self, at: &Stamped, asleep: &Asleep) {
        self.remove_memory(at, asleep.address..asleep.end());
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
        let tells = how != AllocCause::Checkpoint && self.is_in_history(at);
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
            && self.is_in_history(at)
        {
            self.held = Some(Held::Free { address, block, time_ns: at.time_ns });
        }
    }

    fn on_block_change(&mut self, at: &Stamped, address: u64, change: BlockChange) {
        match (change, self.held) {
            (BlockChange::Requested(bytes), _) => {
                if let Some(block) = self.layout.block(address).filter(|_| bytes > 0) {
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
                    && self.is_in_history(at)
                {
                    self.of_block("free_completed", address, &block, at.time_ns);
                }
            }
        }
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        if device != self.device || !self.is_in_history(at) {
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
