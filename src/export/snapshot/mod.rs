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
//! A first reading finds which memory is PyTorch's; then each device is read once and written as
//! it is read. Memory is bounded by what is live at a time, and by the number of stacks.

mod layout;
mod observer;
mod pickle;
mod segments;

use std::io::{self, Write};

use rustc_hash::FxHashMap;
use vramtrace_format::torch_conf::CONF_VARIABLES;
use vramtrace_format::{DeviceId, StackId};

use crate::allocator::Conf;
use crate::analysis::StackClassifier;
use crate::replay::{Progress, Until};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};
use layout::{MemoryRole, Whole};
use observer::{Entry, SnapshotObserver};
use pickle::{Memo, Pickler};
use segments::SegmentObserver;

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
    let mut scout = SegmentObserver::new(definitions.imported_from().is_some());
    trace.replay_until(&definitions, Until::End, &mut scout, progress);
    let found = scout.found;
    let symbols = Symbols::of_all(&definitions, trace.header());
    let mut to = Writer {
        pickler: Pickler::new(out),
        definitions: &definitions,
        classifier: StackClassifier::new(&symbols, trace.header()),
        symbols: &symbols,
        start_ns: trace.header().start_unix_ns,
        frames: FxHashMap::default(),
        stacks: FxHashMap::default(),
        libraries: FxHashMap::default(),
        written: Written { late: found.start > 0, ..Written::default() },
    };
    let mut segments: Vec<(DeviceId, Vec<Whole>)> = Vec::new();
    to.pickler.begin_dict();
    to.pickler.key("device_traces").begin_list();
    // Viewers expect one list, be it empty.
    for ordinal in 0..=found.last_device.unwrap_or(0) {
        let device = DeviceId(ordinal);
        to.pickler.item()?;
        to.pickler.begin_list();
        let mut write = |entry: &Entry| to.entry(entry);
        let mut observer = SnapshotObserver::new(device, &found, &definitions, &mut write);
        trace.replay_until(&definitions, Until::End, &mut observer, progress);
        let (whole, left_out) = observer.finish()?;
        to.pickler.end_list();
        to.written.left_out += left_out;
        segments.push((device, whole));
    }
    to.pickler.end_list();
    to.pickler.key("segments").begin_list();
    for (device, whole) in segments.iter().flat_map(|(id, all)| all.iter().map(|one| (*id, one))) {
        to.segment(device, whole)?;
    }
    to.pickler.end_list();
    to.settings();
    to.pickler.key("external_annotations").empty_list();
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
        pickler.begin_list();
        for index in self.symbols.indexes(stack) {
            pickler.item()?;
            if let Some(memo) = self.frames.get(index) {
                pickler.get(*memo);
                continue;
            }
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
        pickler.end_list();
        self.stacks.insert(stack, pickler.memoise());
        Ok(())
    }

    fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        self.written.entries += 1;
        let pickler = &mut self.pickler;
        pickler.item()?;
        pickler.begin_dict();
        pickler.key("action").text(entry.action);
        match entry.address {
            Some(address) => pickler.key("addr").int(address),
            None => pickler.key("device_free").int(entry.free),
        }
        pickler.key("size").int(entry.size);
        pickler.key("stream").int(entry.stream);
        // Times in a trace are cut to 64 ns.
        let time_ns = self.start_ns.saturating_add(entry.time_ns).saturating_add(500);
        pickler.key("time_us").int(time_ns / 1_000);
        pickler.key("compile_context").text("N/A");
        // `library: NCCL`, for memory that is not PyTorch's.
        let library = || {
            let roles = self.classifier.roles(entry.stack);
            format!("library: {}", self.classifier.library_name(&roles).unwrap_or("?"))
        };
        let metadata = match entry.other {
            true => self.libraries.entry(entry.stack).or_insert_with(library),
            false => "",
        };
        pickler.key("user_metadata").text(metadata);
        // A trace has no stacks of frees.
        let has_stack = !entry.action.contains("free") && entry.action != "segment_unmap";
        self.frames(if has_stack { entry.stack } else { StackId(0) })?;
        self.pickler.end_dict();
        Ok(())
    }

    fn segment(&mut self, device: DeviceId, whole: &Whole) -> io::Result<()> {
        self.written.segments += 1;
        let memory = &whole.memory;
        let size = whole.range.end - whole.range.start;
        let other = memory.role == MemoryRole::Other;
        let blocks = || whole.blocks.iter().filter_map(|(_, block)| *block);
        let used = blocks().filter(|block| !block.pending).map(|block| block.size).sum::<u64>();
        let active = blocks().map(|block| block.size).sum::<u64>();
        let requested = blocks().map(|block| block.requested).sum::<u64>();
        let of = |bytes: u64| if other { size } else { bytes };
        let page = memory.role == MemoryRole::Page;
        let small = match page {
            true => blocks().all(|block| block.size <= SMALL) && !size.is_multiple_of(LARGE_PAGE),
            false => !other && size <= SMALL_SEGMENT,
        };
        let pool = match self.definitions.imported_from() {
            Some(_) => self.definitions.pool(memory.pool).map_or(0, |pool| pool.handle),
            None if other => 0,
            None => memory.pool.0.into(),
        };

        self.pickler.item()?;
        self.pickler.begin_dict();
        self.pickler.key("device").int(device.0.into());
        self.pickler.key("address").int(whole.range.start);
        self.pickler.key("total_size").int(size);
        self.pickler.key("allocated_size").int(of(used));
        self.pickler.key("active_size").int(of(active));
        self.pickler.key("requested_size").int(of(requested));
        self.pickler.key("stream").int(memory.stream);
        self.pickler.key("segment_type").text(if small { "small" } else { "large" });
        self.pickler.key("segment_pool_id").pair(pool >> 32, pool & 0xffff_ffff);
        self.pickler.key("is_expandable").bool(page);
        self.frames(memory.stack)?;
        self.pickler.key("blocks").begin_list();
        for (range, block) in &whole.blocks {
            let (requested, state, stack) = match block {
                Some(of) if of.pending => (of.requested, "active_pending_free", of.stack),
                Some(of) => (of.requested, "active_allocated", of.stack),
                None if other => (size, "active_allocated", memory.stack),
                None => (0, "inactive", StackId(0)),
            };
            self.pickler.item()?;
            self.pickler.begin_dict();
            self.pickler.key("address").int(range.start);
            self.pickler.key("size").int(range.end - range.start);
            self.pickler.key("requested_size").int(requested);
            self.pickler.key("state").text(state);
            self.frames(stack)?;
            self.pickler.end_dict();
        }
        self.pickler.end_list();
        self.pickler.end_dict();
        Ok(())
    }

    /// What the setting string says; what it does not say is PyTorch's default.
    fn settings(&mut self) {
        let text = CONF_VARIABLES.iter().find_map(|name| self.definitions.setting(name));
        let text = text.unwrap_or_default();
        let conf = Conf::parse(text).unwrap_or_default();
        let pickler = &mut self.pickler;
        pickler.key("allocator_settings").begin_dict();
        pickler.key("PYTORCH_CUDA_ALLOC_CONF").text(text);
        match conf.max_split_size {
            u64::MAX => pickler.key("max_split_size").minus_one(),
            bytes => pickler.key("max_split_size").int(bytes),
        }
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

const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_PAGE: u64 = 20 << 20;
