//! PyTorch's memory snapshot: the pickle that pytorch.org/memory_viz and `_memory_viz.py` open.
//!
//! | trace | snapshot |
//! |---|---|
//! | memory of the driver that held a block of PyTorch's | a segment; `segment_alloc`, `segment_free` |
//! | a mapping that did | part of a segment; `segment_map`, `segment_unmap` |
//! | other memory with an address | a segment with one block, of the frames that asked for it |
//! | a block | `alloc`, `free_requested`, `free_completed` |
//! | `CacheOom` | `oom` |
//!
//! The trace is read once. Memory is bounded by the number of entries, of about 60 bytes each, as in the file.

mod history;
mod pickle;

use std::io::{self, Write};
use std::ops::Range;

use rustc_hash::FxHashMap;
use vramtrace_format::torch_conf::CONF_VARIABLES;
use vramtrace_format::{DeviceId, PoolId, SiteId, StackId};

use crate::allocator::{Conf, rounding};
use crate::analysis::StackClassifier;
use crate::replay::{Progress, Until};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};
use history::{Block, Entry, Memory, MemoryRole, SnapshotHistory, What};
use pickle::{Memo, Pickler};

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub entries: u64,
    pub segments: u64,
    /// Blocks in no memory that is known.
    pub left_out: u64,
    /// The history begins late: events before it are missing in the trace.
    pub late: bool,
}

/// Writes one process's snapshot. `progress` gets bytes read, of how many.
pub fn write(trace: &Trace, out: &mut dyn Write, progress: Progress) -> io::Result<Written> {
    let (definitions, _) = trace.definitions();
    let mut history = SnapshotHistory::default();
    history.all_pytorchs = definitions.imported_from().is_some();
    trace.replay_until(&definitions, Until::End, &mut history, progress);
    let symbols = Symbols::of_all(&definitions, trace.header());
    let mut to = Writer {
        pickler: Pickler::new(out),
        definitions: &definitions,
        classifier: StackClassifier::new(&symbols, trace.header()),
        symbols: &symbols,
        start_ns: trace.header().start_unix_ns,
        history: &history,
        frames: FxHashMap::default(),
        stacks: FxHashMap::default(),
        libraries: FxHashMap::default(),
        written: Written { left_out: history.left_out, late: history.late, ..Written::default() },
    };
    to.pickler.begin_dict();
    to.pickler.key("device_traces").list();
    let devices = history.entries.range(..DeviceId::UNKNOWN);
    // Viewers expect one list, be it empty.
    for ordinal in 0..=devices.last().map_or(0, |(device, _)| device.0) {
        to.pickler.list();
        for entry in history.entries.get(&DeviceId(ordinal)).into_iter().flatten() {
            to.entry(entry)?;
        }
        to.pickler.append()?;
    }
    to.pickler.key("segments").list();
    to.segments()?;
    to.settings();
    to.pickler.key("external_annotations").list();
    to.pickler.end_dict();
    to.pickler.finish()?;
    Ok(to.written)
}

struct Writer<'s, 'o> {
    pickler: Pickler<'o>,
    definitions: &'s Definitions,
    symbols: &'s Symbols,
    classifier: StackClassifier<'s>,
    start_ns: u64,
    history: &'s SnapshotHistory,
    /// Frames by index, and stacks: each is written once.
    frames: FxHashMap<u32, Memo>,
    stacks: FxHashMap<StackId, Memo>,
    /// The notes for memory of others, by its stack.
    libraries: FxHashMap<StackId, String>,
    written: Written,
}

impl Writer<'_, '_> {
    fn frames(&mut self, stack: StackId) -> io::Result<()> {
        let pickler = &mut self.pickler;
        pickler.key("frames");
        if let Some(memo) = self.stacks.get(&stack) {
            pickler.get(*memo);
            return Ok(());
        }
        pickler.list();
        for index in self.symbols.indexes(stack) {
            if let Some(memo) = self.frames.get(index) {
                pickler.get(*memo);
            } else {
                let frame = &self.symbols.frames()[*index as usize];
                let file = match (&*frame.file, &frame.library) {
                    ("", Some(library)) => library,
                    (file, _) => file,
                };
                pickler.begin_dict();
                pickler.key("name").text(&frame.function);
                pickler.key("filename").text(file);
                pickler.key("line").int(frame.line.unwrap_or(0).into());
                pickler.end_dict();
                self.frames.insert(*index, pickler.memoise());
            }
            pickler.append()?;
        }
        self.stacks.insert(stack, pickler.memoise());
        Ok(())
    }

    fn stream(&self, site: SiteId) -> u64 {
        self.definitions.site(site).map_or(0, |site| site.stream)
    }

    /// Writes an entry with its actions.
    fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        let (actions, of): (&[_], Option<usize>) = match entry.what {
            What::Alloc => (&["alloc"], None),
            What::FreeRequested => (&["free_requested"], None),
            What::FreeCompleted => (&["free_completed"], None),
            What::OutOfMemory(_) => (&["oom"], None),
            What::Came(of) => match self.history.memories[of].role() {
                MemoryRole::Page => (&["segment_map"], Some(of)),
                MemoryRole::Segment => (&["segment_alloc"], Some(of)),
                MemoryRole::Other => (&["segment_alloc", "alloc"], Some(of)),
            },
            What::Went(of) => match self.history.memories[of].role() {
                MemoryRole::Page => (&["segment_unmap"], Some(of)),
                MemoryRole::Segment => (&["segment_free"], Some(of)),
                MemoryRole::Other => {
                    (&["free_requested", "free_completed", "segment_free"], Some(of))
                }
            },
        };
        let memory = of.map(|of| &self.history.memories[of]);
        let stream = self.stream(memory.map_or(entry.site, |memory| memory.site));
        // `library: NCCL`, for memory that is not PyTorch's.
        let library = || {
            let key_frames = self.classifier.key_frames(entry.stack);
            format!("library: {}", self.classifier.library_name(&key_frames).unwrap_or("?"))
        };
        let metadata = match memory.map(Memory::role) {
            Some(MemoryRole::Other) => {
                self.libraries.entry(entry.stack).or_insert_with(library).clone()
            }
            _ => String::new(),
        };
        // Times in a trace are cut to 64 ns.
        let time_us = self.start_ns.saturating_add(entry.time_ns).saturating_add(500) / 1_000;
        // A trace has no stacks of frees.
        let frees = matches!(entry.what, What::Went(_) | What::FreeRequested | What::FreeCompleted);
        for action in actions {
            self.written.entries += 1;
            let pickler = &mut self.pickler;
            pickler.begin_dict();
            pickler.key("action").text(action);
            match entry.what {
                What::OutOfMemory(free) => pickler.key("device_free").int(free),
                _ => pickler.key("addr").int(entry.address),
            }
            pickler.key("size").int(entry.size);
            pickler.key("stream").int(stream);
            pickler.key("time_us").int(time_us);
            pickler.key("compile_context").text("N/A");
            pickler.key("user_metadata").text(&metadata);
            self.frames(if frees { StackId(0) } else { entry.stack })?;
            self.pickler.end_dict();
            self.pickler.append()?;
        }
        Ok(())
    }

    /// All segments, by device and address; pages that touch are one.
    fn segments(&mut self) -> io::Result<()> {
        let memories = &self.history.memories;
        let mut all: Vec<(Range<u64>, &Memory)> = Vec::new();
        for (range, memory) in self.history.memory.iter().map(|(range, of)| (range, &memories[of]))
        {
            let stream = |memory: &Memory| self.stream(memory.site);
            let grows = |(last, of): &&mut (Range<u64>, &Memory)| {
                let pages = [memory, of].iter().all(|memory| memory.role() == MemoryRole::Page);
                pages && last.end == range.start && stream(of) == stream(memory)
            };
            match all.last_mut().filter(grows) {
                Some((last, _)) => last.end = range.end,
                None => all.push((range, memory)),
            }
        }
        all.sort_by_key(|(_, memory)| memory.device);
        let known = |(_, memory): &(_, &Memory)| memory.device != DeviceId::UNKNOWN;
        for (range, memory) in all.into_iter().filter(known) {
            self.segment(range, memory)?;
            self.pickler.append()?;
        }
        Ok(())
    }

    fn segment(&mut self, range: Range<u64>, memory: &Memory) -> io::Result<()> {
        self.written.segments += 1;
        let size = range.end - range.start;
        let (role, history) = (memory.role(), self.history);
        let blocks = || history.blocks.range(range.clone()).map(|(_, block)| block);
        // Other memory is one block.
        let bytes = |of: &dyn Fn(&Block) -> u64| match role {
            MemoryRole::Other => size,
            _ => blocks().map(of).sum(),
        };
        let small = match role {
            MemoryRole::Page => {
                blocks().all(|of| of.size <= rounding::SMALL) && !size.is_multiple_of(LARGE_PAGE)
            }
            MemoryRole::Segment => size <= rounding::SMALL_SEGMENT,
            MemoryRole::Other => false,
        };
        let pool = self.definitions.site(memory.site).map_or(PoolId(0), |site| site.pool);
        let pool = match self.definitions.imported_from() {
            Some(_) => self.definitions.pool(pool).map_or(0, |pool| pool.handle),
            None if role == MemoryRole::Other => 0,
            None => pool.0.into(),
        };
        let stream = self.stream(memory.site);
        let pickler = &mut self.pickler;
        pickler.begin_dict();
        pickler.key("device").int(memory.device.0.into());
        pickler.key("address").int(range.start);
        pickler.key("total_size").int(size);
        pickler.key("allocated_size").int(bytes(&|of| if of.pending { 0 } else { of.size }));
        pickler.key("active_size").int(bytes(&|of| of.size));
        pickler.key("requested_size").int(bytes(&|of| of.requested));
        pickler.key("stream").int(stream);
        pickler.key("segment_type").text(if small { "small" } else { "large" });
        pickler.key("segment_pool_id").pair(pool >> 32, pool & 0xffff_ffff);
        pickler.key("is_expandable").bool(role == MemoryRole::Page);
        self.frames(memory.stack)?;
        self.pickler.key("blocks").list();
        let mut at = range.start;
        for (start, block) in history.blocks.range(range.clone()) {
            let state = if block.pending { "active_pending_free" } else { "active_allocated" };
            self.block(at..*start, 0, "inactive", StackId(0))?;
            at = start + block.size;
            self.block(*start..at, block.requested, state, block.stack)?;
        }
        match role {
            MemoryRole::Other => self.block(range, size, "active_allocated", memory.stack)?,
            _ => self.block(at..range.end, 0, "inactive", StackId(0))?,
        }
        self.pickler.end_dict();
        Ok(())
    }

    fn block(
        &mut self,
        range: Range<u64>,
        requested: u64,
        state: &str,
        stack: StackId,
    ) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.pickler.begin_dict();
        self.pickler.key("address").int(range.start);
        self.pickler.key("size").int(range.end - range.start);
        self.pickler.key("requested_size").int(requested);
        self.pickler.key("state").text(state);
        self.frames(stack)?;
        self.pickler.end_dict();
        self.pickler.append()
    }

    /// What the setting string says; what it does not say is PyTorch's default.
    fn settings(&mut self) {
        let text = CONF_VARIABLES.iter().find_map(|name| self.definitions.setting(name));
        let text = text.unwrap_or_default();
        let conf = Conf::parse(text).unwrap_or_default();
        let pickler = &mut self.pickler;
        pickler.key("allocator_settings").begin_dict();
        pickler.key("PYTORCH_CUDA_ALLOC_CONF").text(text);
        let max_split_size = i64::try_from(conf.max_split_size).unwrap_or(-1);
        pickler.key("max_split_size").signed(max_split_size);
        pickler.key("garbage_collection_threshold").float(conf.garbage_collection_threshold);
        pickler.key("expandable_segments").bool(conf.expandable_segments);
        pickler.key("roundup_power2_divisions").begin_dict();
        for (power, divisions) in conf.roundup_power2_divisions.iter().enumerate() {
            pickler.key(&(1u32 << power).to_string()).int(u64::from(*divisions));
        }
        pickler.end_dict();
        pickler.end_dict();
    }
}

const LARGE_PAGE: u64 = 20 << 20;
