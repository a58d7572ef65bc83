//! Writes a history as a trace: segments become driver allocations, blocks lie inside them.
//!
//! | history | trace |
//! |---|---|
//! | segment_alloc, segment_free | a device allocation, its free |
//! | segment_map, segment_unmap | physical objects and their mappings |
//! | alloc | a block, and what was asked for where that is less |
//! | free_requested at once followed by free_completed | the free of the block |
//! | apart | the free, `Pending`, and `Reusable` later |
//! | a segment without a block | `Reusable` at its address |
//! | alloc of another allocator than PyTorch's | an allocation of this size |
//! | oom of it | `Refused` |
//! | oom | `CacheOom`, with a sample of what the driver had free |
//!
//! The sites carry streams and private pools; the settings `import`, `import_times` and
//! PYTORCH_CUDA_ALLOC_CONF say where it comes from.

mod define;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;

use rustc_hash::FxHashMap;
use vramtrace_format::{
    Alloc, BlockChange, DeviceId, Event, Header, Kind, Refused, RefusedBy, Sample, SiteId, Space,
    StackId, ThreadId,
};

use super::before;
use super::blocks::BlockLayout;
use super::history::{Action, Ground, History, HistoryDevice, HistoryEntry};
use crate::allocator::{Conf, rounding};
use crate::replay::OUT_OF_MEMORY;
use crate::trace::{TraceWriter, WriterMemory};

/// Counts of what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    pub devices: u64,
    pub segments: u64,
    pub blocks: u64,
    /// Blocks and segments that were there before the history begins.
    pub before: u64,
    /// Entries that were left out because they contradict earlier ones.
    pub contradictions: u64,
}

/// Writes the trace to an empty file. `header` describes the process; its start time is set here.
pub(super) fn convert(history: &History, mut header: Header, file: File) -> io::Result<Converted> {
    header.start_unix_ns = history.start_unix_ns.unwrap_or(0);
    let memory = WriterMemory::default();
    let mut converter = Converter {
        history,
        requests: history.form.other_allocator().map_or(Kind::Block, |_| Kind::Array),
        conf: Conf::parse(history.conf.as_deref().unwrap_or_default()).unwrap_or_default(),
        trace: TraceWriter::begin(&memory, file, &header)?,
        sites: FxHashMap::default(),
        objects: 0,
        most_objects: (1 << 20)
            + 256 * history.devices.iter().map(|device| device.entries.len() as u64).sum::<u64>(),
        // A history without any frame gets no stacks.
        has_stacks: history.stacks.all().any(|(_, frames)| !frames.is_empty()),
        converted: Converted::default(),
    };
    converter.define()?;
    let mut threads: Vec<Thread> = history.devices.iter().map(Thread::new).collect();
    for thread in &mut threads {
        converter.begin(thread)?;
    }
    converter.totals(&threads)?;
    converter.run(&mut threads)?;
    converter.totals(&threads)?;
    let last = threads.iter().map(|thread| thread.now_ns).max().unwrap_or(0);
    converter.trace.event(ThreadId(1), last, &Event::Ended)?;
    converter.trace.finish()?;
    Ok(converter.converted)
}

/// One device's history on its way into the trace.
struct Thread<'h> {
    device: &'h HistoryDevice,
    id: DeviceId,
    layout: BlockLayout,
    /// Where mapped ranges will be cut: each piece is a separate object.
    cuts: BTreeSet<u64>,
    /// Object number of the mapped piece that starts there.
    objects: BTreeMap<u64, u64>,
    next: usize,
    now_ns: u64,
}

impl<'h> Thread<'h> {
    fn new(device: &'h HistoryDevice) -> Thread<'h> {
        let unmaps = device.entries.iter().filter(|entry| entry.action == Action::SegmentUnmap);
        Thread {
            device,
            id: DeviceId(device.ordinal),
            layout: BlockLayout::default(),
            cuts: unmaps.flat_map(|entry| [entry.address, entry.address + entry.size]).collect(),
            objects: BTreeMap::new(),
            next: 0,
            now_ns: 0,
        }
    }

    /// The range in pages, as the allocator maps it; cut also where later unmaps begin or end.
    /// No more than `room` of them.
    fn pieces(&self, range: Range<u64>, conf: &Conf, room: u64) -> Vec<Range<u64>> {
        let page = match (range.end - range.start).is_multiple_of(conf.large_segment_size) {
            true => conf.large_segment_size,
            false => rounding::SMALL_SEGMENT,
        };
        let (mut at, mut pieces) = (range.start, Vec::new());
        while at < range.end {
            let cut = self.cuts.range(at + 1..).next().copied().unwrap_or(u64::MAX);
            let next = match pieces.len() as u64 + 1 < room {
                true => range.end.min(cut).min(at + page),
                false => range.end,
            };
            pieces.push(at..next);
            at = next;
        }
        pieces
    }
}

struct Converter<'h, 'm> {
    history: &'h History,
    /// The kind of what is requested: blocks of a cache, or the only kind of memory whose bytes are exact.
    requests: Kind,
    conf: Conf,
    trace: TraceWriter<'m>,
    sites: FxHashMap<(Kind, DeviceId, u64, u16), SiteId>,
    /// Numbers of physical objects given out so far.
    objects: u64,
    /// Limit of `objects`, against hostile files whose mappings have too many pages.
    most_objects: u64,
    has_stacks: bool,
    converted: Converted,
}

impl Converter<'_, '_> {
    fn event(&mut self, thread: &Thread, event: Event) -> io::Result<()> {
        self.trace.event(ThreadId(1), thread.now_ns, &event)
    }

    /// Writes what existed before the history.
    fn begin(&mut self, thread: &mut Thread) -> io::Result<()> {
        let segments = before::segments(thread.device);
        let mut blocks = before::blocks(thread.device, &segments, &self.conf);
        self.converted.devices += 1;
        self.converted.before += (segments.iter().count() + blocks.len()) as u64;
        for (range, ground) in segments.iter() {
            let address = range.start;
            self.grow(thread, range, ground)?;
            self.change(thread, address, BlockChange::Reusable)?;
        }
        // What is freed at once is no part of the highest sum.
        blocks.sort_by_key(|(block, _)| !block.pending);
        for (block, ground) in blocks {
            let ground = Ground { stack: block.stack, ..ground };
            self.place(thread, block.address, (block.size, block.requested), &ground)?;
            if block.pending {
                thread.layout.request_free(block.address);
                self.free(thread, self.requests.space(), block.address)?;
                self.change(thread, block.address, BlockChange::Pending)?;
            }
        }
        Ok(())
    }

    /// Writes the entries of all devices in order of time.
    fn run(&mut self, threads: &mut [Thread]) -> io::Result<()> {
        loop {
            let time =
                |thread: &Thread| thread.device.entries.get(thread.next).map(|entry| entry.time_ns);
            let waiting = threads.iter_mut().filter(|thread| time(thread).is_some());
            let Some(thread) = waiting.min_by_key(|thread| time(thread)) else { return Ok(()) };
            let entry = thread.device.entries[thread.next];
            thread.next += 1;
            thread.now_ns = entry.time_ns;
            self.entry(thread, &entry)?;
        }
    }

    fn totals(&mut self, threads: &[Thread]) -> io::Result<()> {
        let of_cache = self.requests == Kind::Block;
        for thread in threads.iter().filter(|_| of_cache) {
            let BlockLayout { allocated, reserved, .. } = thread.layout;
            self.event(thread, Event::CacheState { device: thread.id, allocated, reserved })?;
        }
        Ok(())
    }

    fn entry(&mut self, thread: &mut Thread, entry: &HistoryEntry) -> io::Result<()> {
        let range = || entry.address..entry.address + entry.size;
        let ground = |expandable| Ground {
            stream: entry.stream,
            pool: entry.pool,
            expandable,
            stack: entry.stack,
        };
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                self.grow(thread, range(), ground(entry.action == Action::SegmentMap))?;
                let next = thread.device.entries.get(thread.next).map(|next| next.action);
                match next {
                    Some(Action::Alloc | Action::SegmentMap) => Ok(()),
                    _ => self.change(thread, entry.address, BlockChange::Reusable),
                }
            }
            Action::SegmentFree => {
                let segment = thread.layout.segments.at(entry.address);
                match segment.filter(|(segment, _)| segment.start == entry.address) {
                    Some((segment, _)) => {
                        let gone = thread.layout.shrink(segment);
                        self.shrunk(thread, gone)
                    }
                    None => self.leave_out(),
                }
            }
            Action::SegmentUnmap => {
                let gone = thread.layout.shrink(range());
                self.converted.contradictions += u64::from(gone.is_empty());
                self.shrunk(thread, gone)
            }
            Action::Alloc => {
                let size = thread.layout.size_of(entry.address, entry.size, &self.conf);
                let mut ground = ground(false);
                // Entries have no pool before torch 2.12.
                if let Some((_, of)) = thread.layout.segments.at(entry.address) {
                    ground.pool = of.pool;
                }
                self.place(thread, entry.address, (size, entry.size), &ground)
            }
            Action::FreeRequested => self.free_requested(thread, entry.address),
            Action::FreeCompleted => match thread.layout.complete_free(entry.address) {
                Some(()) => self.change(thread, entry.address, BlockChange::Reusable),
                None => self.leave_out(),
            },
            Action::OutOfMemory { free } => self.out_of_memory(thread, entry, free),
        }
    }

    fn grow(&mut self, thread: &mut Thread, range: Range<u64>, ground: Ground) -> io::Result<()> {
        let replaced = thread.layout.grow(range.clone(), ground);
        self.converted.contradictions += replaced.len() as u64;
        self.shrunk(thread, replaced)?;
        self.converted.segments += 1;
        if !ground.expandable {
            return self.alloc(thread, Kind::Device, range.start, size_of(&range), &ground);
        }
        let room = self.most_objects.saturating_sub(self.objects);
        for piece in thread.pieces(range, &self.conf, room) {
            self.objects += 1;
            let (address, object, size) = (piece.start, self.objects, size_of(&piece));
            thread.objects.insert(address, object);
            self.alloc(thread, Kind::Vmm, object, size, &ground)?;
            let stack = StackId::default();
            self.event(
                thread,
                Event::Map { address, size, offset: 0, object, owner: StackId(0), stack },
            )?;
        }
        Ok(())
    }

    /// Writes the frees of removed parts.
    fn shrunk(&mut self, thread: &mut Thread, gone: Vec<(Range<u64>, Ground)>) -> io::Result<()> {
        for (range, ground) in gone {
            if !ground.expandable {
                self.free(thread, Space::Device, range.start)?;
                continue;
            }
            let (address, size, stack) = (range.start, size_of(&range), StackId::default());
            self.event(thread, Event::Unmap { address, size, stack })?;
            let pieces = thread.objects.range(range).map(|(start, _)| *start);
            for start in pieces.collect::<Vec<u64>>() {
                if let Some(object) = thread.objects.remove(&start) {
                    self.free(thread, Space::Vmm, object)?;
                }
            }
        }
        Ok(())
    }

    /// `ground`: of the block, with its stack.
    fn place(
        &mut self,
        thread: &mut Thread,
        address: u64,
        (size, requested): (u64, u64),
        ground: &Ground,
    ) -> io::Result<()> {
        // Another allocator's rounding is not known.
        let size = if self.requests == Kind::Block { size } else { requested };
        if size == 0 {
            return self.leave_out();
        }
        for (key, block) in thread.layout.put(address, size) {
            self.converted.contradictions += 1;
            match block.pending {
                true => self.change(thread, key, BlockChange::Reusable)?,
                false => self.free(thread, self.requests.space(), key)?,
            }
        }
        self.converted.blocks += 1;
        self.alloc(thread, self.requests, address, size, ground)?;
        match requested < size {
            true => self.change(thread, address, BlockChange::Requested(requested)),
            false => Ok(()),
        }
    }

    fn free_requested(&mut self, thread: &mut Thread, address: u64) -> io::Result<()> {
        let known = thread.layout.request_free(address).is_some();
        let next = thread.device.entries.get(thread.next);
        let at_once = next
            .is_some_and(|next| next.action == Action::FreeCompleted && next.address == address);
        thread.next += usize::from(at_once);
        if !known {
            return self.leave_out();
        }
        self.free(thread, self.requests.space(), address)?;
        if at_once {
            thread.layout.complete_free(address);
            return Ok(());
        }
        self.change(thread, address, BlockChange::Pending)
    }

    fn alloc(
        &mut self,
        thread: &Thread,
        kind: Kind,
        key: u64,
        size: u64,
        ground: &Ground,
    ) -> io::Result<()> {
        let site = self.site(kind, thread.id, ground.stream, ground.pool)?;
        let (space, stack) = (kind.space(), self.stack(ground.stack));
        self.event(thread, Event::Alloc(Alloc { key, space, size, site, stack, requested: None }))
    }

    fn free(&mut self, thread: &Thread, space: Space, key: u64) -> io::Result<()> {
        self.event(thread, Event::Free { key, space, site: SiteId(0) })
    }

    fn leave_out(&mut self) -> io::Result<()> {
        self.converted.contradictions += 1;
        Ok(())
    }

    fn change(&mut self, thread: &Thread, address: u64, change: BlockChange) -> io::Result<()> {
        self.event(thread, Event::BlockChange { address, change })
    }

    fn out_of_memory(
        &mut self,
        thread: &Thread,
        entry: &HistoryEntry,
        free: Option<u64>,
    ) -> io::Result<()> {
        let device = thread.id;
        if free.is_some() {
            let sample = Sample {
                device,
                driver_free: free,
                driver_total: None,
                process_bytes: None,
                context_bytes: 0,
            };
            self.event(thread, Event::Sample(sample))?;
        }
        let BlockLayout { allocated, reserved, .. } = thread.layout;
        let (size, stack) = (entry.size, self.stack(entry.stack));
        if self.requests == Kind::Block {
            let oom = Event::CacheOom { device, size, allocated, reserved, stack };
            return self.event(thread, oom);
        }
        let site = self.site(self.requests, device, entry.stream, entry.pool)?;
        let refused = Refused {
            size,
            site,
            stack,
            by: RefusedBy::Driver,
            result: OUT_OF_MEMORY,
            counted: allocated,
            limit: 0,
            driver_free: free.unwrap_or(0),
            cache: None,
        };
        self.event(thread, Event::Refused(refused))
    }
}

fn size_of(range: &Range<u64>) -> u64 {
    range.end - range.start
}
