//! Follows a trace, and keeps of each device the entries that PyTorch's allocator would have recorded, and the memory and
//! blocks that are there at the end. The viewers go back from the end: no block is outside of memory, none over
//! another, none left when its memory goes.
//!
//! Memory that holds a block at some time is a segment of PyTorch's, or a page of one, from its begin on: entries name
//! the memory, and get their actions when they are written.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;
use vramtrace_format::{BlockChange, DeviceId, Event, Kind, SiteId, Space, StackId, Stamped};

use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping, Observer, State,
};
use crate::spans::Spans;

/// One entry of a history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub what: What,
    pub address: u64,
    pub size: u64,
    pub time_ns: u64,
    /// Of a block: the site with its stream.
    pub site: SiteId,
    pub stack: StackId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Memory was allocated or mapped, by its index in [`SnapshotHistory::memories`].
    Came(usize),
    Went(usize),
    Alloc,
    FreeRequested,
    FreeCompleted,
    /// With the free bytes of the driver.
    OutOfMemory(u64),
}

/// Driver memory that came with one event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub device: DeviceId,
    /// Of the first block in it, which has the segment's stream and pool; without one, of the allocation.
    pub site: SiteId,
    pub stack: StackId,
    /// It was mapped: a segment of such memory grows page by page.
    mapped: bool,
    is_pytorchs: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryRole {
    /// A segment of PyTorch's.
    Segment,
    /// Part of one that grows page by page.
    Page,
    /// Not PyTorch's: a segment with one block.
    Other,
}

impl Memory {
    pub(super) fn role(&self) -> MemoryRole {
        match (self.is_pytorchs, self.mapped) {
            (false, _) => MemoryRole::Other,
            (true, false) => MemoryRole::Segment,
            (true, true) => MemoryRole::Page,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    device: DeviceId,
    pub size: u64,
    pub requested: u64,
    site: SiteId,
    pub stack: StackId,
    /// Freed, but waiting for other streams.
    pub pending: bool,
}

/// Of all devices: their addresses differ.
#[derive(Default)]
pub(super) struct SnapshotHistory {
    /// The trace contains only memory of PyTorch's allocator.
    pub all_pytorchs: bool,
    pub entries: BTreeMap<DeviceId, Vec<Entry>>,
    pub memories: Vec<Memory>,
    /// What is there, by index in `memories`.
    pub memory: Spans<usize>,
    pub blocks: BTreeMap<u64, Block>,
    /// Number of blocks whose memory is not in the trace: they are left out.
    pub left_out: u64,
    /// Events are missing: the history begins behind them.
    pub late: bool,
    /// What is live is not known again yet.
    lost: bool,
    /// Blocks that a checkpoint listed before their memory.
    waiting: BTreeMap<u64, Block>,
    /// Mappings that a checkpoint listed before their object.
    unplaced: Vec<(u64, Range<u64>)>,
    /// The block that was freed last: it may be pending.
    freed: Option<(u64, Block)>,
    /// Free bytes by the driver's last figure.
    driver_free: FxHashMap<DeviceId, u64>,
}

impl SnapshotHistory {
    fn tell(&mut self, device: DeviceId, entry: Entry) {
        if !self.lost {
            self.entries.entry(device).or_default().push(entry);
        }
    }

    fn tell_memory(&mut self, at: &Stamped, what: What, of: usize, range: &Range<u64>) {
        let Memory { device, site, stack, .. } = self.memories[of];
        let (address, size, time_ns) = (range.start, range.end - range.start, at.time_ns);
        self.tell(device, Entry { what, address, size, time_ns, site, stack });
    }

    fn tell_block(&mut self, at: &Stamped, what: What, address: u64, block: &Block) {
        let Block { device, requested: size, site, stack, .. } = *block;
        self.tell(device, Entry { what, address, size, time_ns: at.time_ns, site, stack });
    }

    fn memory(&mut self, live: &Live, mapped: bool) -> usize {
        let Live { device, site, stack, .. } = *live;
        let is_pytorchs = self.all_pytorchs;
        self.memories.push(Memory { device, site, stack, mapped, is_pytorchs });
        self.memories.len() - 1
    }

    fn add(&mut self, at: &Stamped, range: Range<u64>, of: usize, tells: bool) {
        let over: Vec<_> = self.memory.over(range.clone()).map(|(span, _)| span).collect();
        over.into_iter().for_each(|span| self.remove(at, span));
        if tells {
            self.tell_memory(at, What::Came(of), of, &range);
        }
        self.memory.put(range.clone(), of);
        let ready = |(address, block): (&u64, &Block)| {
            let end = address.saturating_add(block.size);
            self.memory.holes(*address..end).is_empty().then_some(*address)
        };
        let ready: Vec<u64> = self.waiting.range(..range.end).filter_map(ready).collect();
        for address in ready {
            if let Some(block) = self.waiting.remove(&address) {
                self.put(address, block);
            }
        }
    }

    fn remove(&mut self, at: &Stamped, range: Range<u64>) {
        // An entry of other memory ends as a whole: the parts that stay are added again.
        let partly = |(span, of): &(Range<u64>, usize)| {
            let inside = range.start <= span.start && span.end <= range.end;
            !self.memories[*of].is_pytorchs && !inside
        };
        let partly: Vec<_> = self.memory.over(range.clone()).filter(partly).collect();
        for (span, of) in partly {
            self.remove(at, span.clone());
            for rest in [span.start..range.start, range.end..span.end] {
                if !rest.is_empty() {
                    self.add(at, rest, of, true);
                }
            }
        }
        for (part, of) in self.memory.cut(range) {
            self.free_blocks(at, &part);
            self.tell_memory(at, What::Went(of), of, &part);
        }
    }

    /// Frees all blocks that reach into a range.
    fn free_blocks(&mut self, at: &Stamped, range: &Range<u64>) {
        let before = self.blocks.range(..range.start).next_back();
        let before = before.filter(|(start, block)| *start + block.size > range.start);
        let over = before.into_iter().chain(self.blocks.range(range.clone()));
        for address in over.map(|(start, _)| *start).collect::<Vec<u64>>() {
            self.free_block(at, address);
        }
    }

    fn free_block(&mut self, at: &Stamped, address: u64) {
        let Some(block) = self.blocks.remove(&address) else { return };
        if !block.pending {
            self.tell_block(at, What::FreeRequested, address, &block);
        }
        self.tell_block(at, What::FreeCompleted, address, &block);
        self.freed = Some((address, block));
    }

    /// The memory below it is PyTorch's.
    fn put(&mut self, address: u64, block: Block) {
        for (_, of) in self.memory.over(address..address.saturating_add(block.size)) {
            let memory = &mut self.memories[of];
            if !memory.is_pytorchs {
                (memory.is_pytorchs, memory.site) = (true, block.site);
            }
        }
        self.blocks.insert(address, block);
    }
}

impl Observer for SnapshotHistory {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.entries.entry(live.device).or_default();
        if let Some(range) = place(key, live) {
            let of = self.memory(live, false);
            self.add(at, range, of, how != AllocCause::Checkpoint);
        }
        let is_of = |(object, _): &(u64, Range<u64>)| *object == key.number;
        while key.space == Space::Vmm
            && let Some(index) = self.unplaced.iter().position(is_of)
        {
            let (_, range) = self.unplaced.swap_remove(index);
            let of = self.memory(live, true);
            self.add(at, range, of, false);
        }
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if let Some(range) = place(key, live) {
            self.remove(at, range);
        }
    }

    fn on_map(&mut self, at: &Stamped, address: u64, mapping: &Mapping, object: Option<&Live>) {
        let range = address..address.saturating_add(mapping.size);
        let Some(object) = object else {
            return self.unplaced.push((mapping.object, range));
        };
        let of = self.memory(object, true);
        self.add(at, range, of, !matches!(at.event, Event::StateEvent(_)));
    }

    fn on_unmap(&mut self, at: &Stamped, address: u64, mapping: &Mapping) {
        self.remove(at, address..address.saturating_add(mapping.size));
    }

    /// PyTorch's segments stay when their memory is unmapped. Other memory is removed.
    fn on_sleep(&mut self, at: &Stamped, asleep: &Asleep, _by: StackId) {
        let over = self.memory.over(asleep.address..asleep.end());
        let others: Vec<Range<u64>> = over
            .filter(|(_, of)| !self.memories[*of].is_pytorchs)
            .map(|(span, _)| span.start.max(asleep.address)..span.end.min(asleep.end()))
            .collect();
        others.into_iter().for_each(|range| self.remove(at, range));
    }

    /// Memory that is mapped again gets the stack that allocated it first.
    fn on_wake(&mut self, at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        let Some(object) = object else { return };
        let of = self.memory(object, false);
        self.memories[of].stack = mapping.woken.map_or(object.stack, |woken| woken.owner.stack);
        for hole in self.memory.holes(mapping.address..mapping.end()) {
            self.add(at, hole, of, true);
        }
    }

    fn on_sleep_end(&mut self, at: &Stamped, asleep: &Asleep) {
        self.remove(at, asleep.address..asleep.end());
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        let Live { device, size, site, stack, .. } = *live;
        if device == DeviceId::UNKNOWN {
            return;
        }
        let block = Block { device, size, requested: size, site, stack, pending: false };
        let range = address..address.saturating_add(size);
        self.free_blocks(at, &range);
        let tells = how != AllocCause::Checkpoint && !self.lost;
        match self.memory.holes(range).is_empty() {
            true => {
                self.put(address, block);
                if tells {
                    self.tell_block(at, What::Alloc, address, &block);
                }
            }
            false if tells => self.left_out += 1,
            false => drop(self.waiting.insert(address, block)),
        }
    }

    fn on_block_free(&mut self, at: &Stamped, address: u64, _live: &Live, _how: FreeCause) {
        self.waiting.remove(&address);
        self.free_block(at, address);
    }

    /// Follows the event that it adds to.
    fn on_block_change(&mut self, at: &Stamped, address: u64, change: BlockChange) {
        let freed = self.freed.take_if(|(freed, _)| *freed == address).map(|(_, block)| block);
        let live = self.blocks.get_mut(&address);
        let device = freed.or(live.as_deref().copied()).map(|block| block.device);
        let last = device.and_then(|device| self.entries.get_mut(&device));
        match (change, freed, live) {
            (BlockChange::Requested(bytes @ 1..), _, Some(block)) => {
                block.requested = bytes.min(block.size);
                let known = last.and_then(|entries| entries.last_mut());
                if let Some(entry) =
                    known.filter(|of| (of.what, of.address) == (What::Alloc, address))
                {
                    entry.size = block.requested;
                }
            }
            (BlockChange::Pending, Some(block), None) => {
                let completed =
                    |of: &mut Entry| (of.what, of.address) == (What::FreeCompleted, address);
                if last.and_then(|entries| entries.pop_if(completed)).is_some() {
                    self.blocks.insert(address, Block { pending: true, ..block });
                }
            }
            (BlockChange::Reusable, _, Some(block)) if block.pending => {
                self.free_block(at, address);
            }
            _ => {}
        }
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        let what = What::OutOfMemory(self.driver_free.get(&device).copied().unwrap_or(0));
        let (time_ns, site) = (at.time_ns, SiteId(0));
        let entry = Entry { what, address: 0, size: oom.size, time_ns, site, stack: oom.stack };
        self.tell(device, entry);
    }

    fn on_device_change(&mut self, _at: &Stamped, device: DeviceId, state: &DeviceState) {
        if let Some(free) = state.sample.and_then(|at| at.sample.driver_free) {
            self.driver_free.insert(device, free);
        }
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        let all_pytorchs = self.all_pytorchs;
        *self = SnapshotHistory { all_pytorchs, late: true, lost: true, ..Default::default() };
    }

    fn on_resume(&mut self, _at: &Stamped, _state: &State) {
        self.lost = false;
    }
}

/// The address range of driver memory. `None`: it has none, or is another process's.
fn place(key: Key, live: &Live) -> Option<Range<u64>> {
    let own = key.space == Space::Device && live.kind != Kind::Imported;
    let end = key.number.checked_add(live.size).filter(|_| own && live.size > 0)?;
    Some(key.number..end)
}
