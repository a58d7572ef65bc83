//! Writes a history as a trace: segments become driver allocations, blocks lie inside them.
//!
//! | history | trace |
//! |---|---|
//! | segment_alloc, segment_free | a device allocation, its free |
//! | segment_map, segment_unmap | physical objects and their mappings |
//! | alloc | a block, and what was asked for where that is less |
//! | free_requested at once followed by free_completed | the free of the block |
//! | apart | the free, `Pending`, and `Reusable` later |
//! | oom | `CacheOom`, with a sample of what the driver had free |
//!
//! The sites carry streams and private pools; the settings `import`, `import_times` and
//! PYTORCH_CUDA_ALLOC_CONF say where it comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;

use rustc_hash::FxHashMap;
use vramtrace_format::{
    Alloc, BlockChange, ContextId, Definition, DeviceId, Event, Header, Kind, PoolId, PoolOrigin,
    PythonFrame, Sample, SiteId, Space, StackFlags, StackId, ThreadId,
};

use super::before::InitialState;
use super::blocks::BlockLayout;
use super::history::{Action, Ground, History, HistoryDevice, HistoryEntry};
use crate::allocator::{Conf, rounding};
use crate::trace::{IMPORT, IMPORT_TIMES, NO_TIMES, TraceWriter, WriterMemory};

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
    converter.run(&mut threads)?;
    for thread in &threads {
        converter.totals(thread)?;
    }
    let last = threads.iter().map(|thread| thread.now_ns).max().unwrap_or(0);
    converter.trace.event(ThreadId(1), last, &Event::Ended)?;
    converter.trace.finish()?;
    Ok(converter.converted)
}

/// The calls that allocate memory of each kind. Sites name them by their places here, from 1.
const APIS: [(Kind, &str); 3] =
    [(Kind::Device, "segment_alloc"), (Kind::Vmm, "segment_map"), (Kind::Block, "alloc")];

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
    fn define(&mut self) -> io::Result<()> {
        let history = self.history;
        let setting = |name: &str, value: &str| Definition::Setting {
            name: name.into(),
            value: value.into(),
        };
        self.trace.define(&setting(IMPORT, history.form.name()))?;
        if !history.has_times {
            self.trace.define(&setting(IMPORT_TIMES, NO_TIMES))?;
        }
        if let Some(conf) = &history.conf {
            self.trace.define(&setting("PYTORCH_CUDA_ALLOC_CONF", conf))?;
        }
        for caveat in &history.caveats {
            self.trace.define(&Definition::Note { text: caveat.clone() })?;
        }
        for (id, (_, name)) in (1..).zip(APIS) {
            self.trace.define(&Definition::Api { id, name: name.into() })?;
        }
        for (index, (first, second)) in history.pools.iter().enumerate().skip(1) {
            self.trace.define(&Definition::Pool {
                id: PoolId(index as u16),
                device: DeviceId::UNKNOWN,
                // Two small counters.
                handle: (*first as u64) << 32 | *second as u64 & 0xffff_ffff,
                origin: PoolOrigin::Created,
            })?;
        }
        for (id, frame) in (0..).zip(history.stacks.frames()) {
            let is_python = frame.file.ends_with(".py") || frame.file.starts_with('<');
            self.trace.define(&Definition::Code {
                id,
                minor: if is_python { OLD_PYTHON } else { Definition::NAMED_NATIVE },
                name: frame.function.to_string(),
                file: frame.file.to_string(),
                first_line: i32::try_from(frame.line).unwrap_or(i32::MAX),
                line_table: Vec::new(),
            })?;
        }
        for (id, frames) in history.stacks.all().filter(|_| self.has_stacks) {
            let mut flags = StackFlags::NATIVE_OFF;
            if frames.is_empty() {
                flags.add(StackFlags::NO_PYTHON_THREAD);
            }
            let frame = |code: &u32| PythonFrame { code: *code, last_instruction: 0 };
            self.trace.define(&Definition::Stack {
                id,
                flags,
                native: Vec::new(),
                python: frames.iter().map(frame).collect(),
                joins: Vec::new(),
            })?;
        }
        Ok(())
    }

    fn stack(&self, id: StackId) -> StackId {
        if self.has_stacks { id } else { StackId(0) }
    }

    fn site(&mut self, kind: Kind, device: DeviceId, stream: u64, pool: u16) -> io::Result<SiteId> {
        let next = SiteId(self.sites.len() as u32 + 1);
        let site = *self.sites.entry((kind, device, stream, pool)).or_insert(next);
        if site == next {
            let api = APIS.iter().position(|(of, _)| *of == kind).unwrap_or(0);
            self.trace.define(&Definition::Site {
                id: site,
                api: api as u16 + 1,
                kind: Some(kind),
                device,
                context: ContextId(0),
                pool: PoolId(pool),
                stream,
            })?;
        }
        Ok(site)
    }

    fn event(&mut self, thread: &Thread, event: Event) -> io::Result<()> {
        self.trace.event(ThreadId(1), thread.now_ns, &event)
    }

    /// Writes what existed before the history.
    fn begin(&mut self, thread: &mut Thread) -> io::Result<()> {
        let before = InitialState::of(thread.device, &self.conf);
        self.converted.devices += 1;
        self.converted.before += (before.segments.len() + before.blocks.len()) as u64;
        for (range, ground) in before.segments {
            self.grow(thread, range, ground)?;
        }
        for (block, ground) in before.blocks {
            let ground = Ground { stack: block.stack, ..ground };
            self.place(thread, block.address, (block.size, block.requested), &ground)?;
            if block.pending {
                thread.layout.request_free(block.address);
                self.free(thread, Space::Block, block.address)?;
                self.change(thread, block.address, BlockChange::Pending)?;
            }
        }
        self.totals(thread)
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

    fn totals(&mut self, thread: &Thread) -> io::Result<()> {
        let BlockLayout { allocated, reserved, .. } = thread.layout;
        self.event(thread, Event::CacheState { device: thread.id, allocated, reserved })
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
            Action::SegmentAlloc => self.grow(thread, range(), ground(false)),
            Action::SegmentMap => self.grow(thread, range(), ground(true)),
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
        if size == 0 {
            return self.leave_out();
        }
        for (key, block) in thread.layout.put(address, size) {
            self.converted.contradictions += 1;
            match block.pending {
                true => self.change(thread, key, BlockChange::Reusable)?,
                false => self.free(thread, Space::Block, key)?,
            }
        }
        self.converted.blocks += 1;
        self.alloc(thread, Kind::Block, address, size, ground)?;
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
        self.free(thread, Space::Block, address)?;
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
        self.event(thread, Event::CacheOom { device, size, allocated, reserved, stack })
    }
}

fn size_of(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// A Python without a line table: every instruction is in the first line.
const OLD_PYTHON: u8 = 9;
