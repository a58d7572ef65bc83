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
    pub devices: u64,
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
    let classifier = StackClassifier::new(&symbols, trace.header());
    let mut pickler = Pickler::new(out);
    let mut frames = Frames {
        symbols: &symbols,
        classifier: &classifier,
        frames: FxHashMap::default(),
        stacks: FxHashMap::default(),
        libraries: FxHashMap::default(),
    };
    let mut written = Written { late: found.start > 0, ..Written::default() };
    let mut segments: Vec<(DeviceId, Vec<Whole>)> = Vec::new();
    let start_ns = trace.header().start_unix_ns;

    pickler.begin_dict();
    pickler.text("device_traces");
    pickler.begin_list();
    // Viewers expect one list, be it empty.
    for ordinal in 0..=found.last_device.unwrap_or(0) {
        pickler.item()?;
        pickler.begin_list();
        let mut write = |entry: &Entry| {
            written.entries += 1;
            pickler.item()?;
            self::entry(&mut pickler, &mut frames, entry, start_ns)
        };
        let mut observer =
            SnapshotObserver::new(DeviceId(ordinal), &found, &definitions, &mut write);
        trace.replay_until(&definitions, Until::End, &mut observer, progress);
        observer.finish();
        let (whole, left_out, error) =
            (observer.layout.segments(), observer.left_out, observer.error);
        if let Some(error) = error {
            return Err(error);
        }
        pickler.end_list();
        written.left_out += left_out;
        written.devices += u64::from(!whole.is_empty());
        segments.push((DeviceId(ordinal), whole));
    }
    pickler.end_list();
    pickler.text("segments");
    pickler.begin_list();
    for (device, whole) in segments.iter().flat_map(|(id, all)| all.iter().map(|one| (*id, one))) {
        written.segments += 1;
        pickler.item()?;
        segment(&mut pickler, &mut frames, &definitions, device, whole)?;
    }
    pickler.end_list();
    pickler.text("allocator_settings");
    settings(&mut pickler, &definitions);
    pickler.text("external_annotations");
    pickler.empty_list();
    pickler.end_dict();
    pickler.finish()?;
    Ok(written)
}

/// The names of stacks, each written once.
struct Frames<'s> {
    symbols: &'s Symbols,
    classifier: &'s StackClassifier<'s>,
    /// By index of the frame.
    frames: FxHashMap<u32, Memo>,
    stacks: FxHashMap<StackId, Memo>,
    /// The notes for memory of others, by its stack.
    libraries: FxHashMap<StackId, String>,
}

impl Frames<'_> {
    fn write(&mut self, pickler: &mut Pickler, stack: StackId) -> io::Result<()> {
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
            pickler.text("name");
            pickler.text(&frame.function);
            pickler.text("filename");
            pickler.text(file);
            pickler.text("line");
            pickler.int(frame.line.unwrap_or(0).into());
            pickler.end_dict();
            self.frames.insert(*index, pickler.memoise());
        }
        pickler.end_list();
        self.stacks.insert(stack, pickler.memoise());
        Ok(())
    }

    /// `library: NCCL`, for memory that is not PyTorch's.
    fn library(&mut self, stack: StackId) -> &str {
        self.libraries.entry(stack).or_insert_with(|| {
            let roles = self.classifier.roles(stack);
            match self.classifier.library_name(&roles) {
                Some(name) => format!("library: {name}"),
                None => "library: ?".to_string(),
            }
        })
    }
}

fn entry(
    pickler: &mut Pickler,
    frames: &mut Frames,
    entry: &Entry,
    start_ns: u64,
) -> io::Result<()> {
    pickler.begin_dict();
    pickler.text("action");
    pickler.text(entry.action);
    match entry.address {
        Some(address) => {
            pickler.text("addr");
            pickler.int(address);
        }
        None => {
            pickler.text("device_free");
            pickler.int(entry.free);
        }
    }
    pickler.text("size");
    pickler.int(entry.size);
    pickler.text("stream");
    pickler.int(entry.stream);
    pickler.text("time_us");
    // Times in a trace are cut to 64 ns.
    pickler.int(start_ns.saturating_add(entry.time_ns).saturating_add(500) / 1_000);
    pickler.text("compile_context");
    pickler.text("N/A");
    pickler.text("user_metadata");
    match entry.other {
        true => pickler.text(frames.library(entry.stack)),
        false => pickler.text(""),
    }
    pickler.text("frames");
    frames.write(pickler, if entry.has_stack { entry.stack } else { StackId(0) })?;
    pickler.end_dict();
    Ok(())
}

fn segment(
    pickler: &mut Pickler,
    frames: &mut Frames,
    definitions: &Definitions,
    device: DeviceId,
    whole: &Whole,
) -> io::Result<()> {
    let size = whole.range.end - whole.range.start;
    let other = whole.memory.role == MemoryRole::Other;
    let blocks = || whole.blocks.iter().filter_map(|(_, block)| *block);
    let used = blocks().filter(|block| !block.pending).map(|block| block.size).sum::<u64>();
    let active = blocks().map(|block| block.size).sum::<u64>();
    let requested = blocks().map(|block| block.requested).sum::<u64>();
    let of = |bytes: u64| if other { size } else { bytes };
    let (used, active, requested) = (of(used), of(active), of(requested));
    let page = whole.memory.role == MemoryRole::Page;
    let small = match page {
        true => blocks().all(|block| block.size <= SMALL) && !size.is_multiple_of(LARGE_PAGE),
        false => !other && size <= SMALL_SEGMENT,
    };
    let pool = match definitions.imported_from() {
        Some(_) => definitions.pool(whole.memory.pool).map_or(0, |pool| pool.handle),
        None if other => 0,
        None => whole.memory.pool.0.into(),
    };

    pickler.begin_dict();
    for (key, value) in [
        ("device", device.0.into()),
        ("address", whole.range.start),
        ("total_size", size),
        ("allocated_size", used),
        ("active_size", active),
        ("requested_size", requested),
        ("stream", whole.memory.stream),
    ] {
        pickler.text(key);
        pickler.int(value);
    }
    pickler.text("segment_type");
    pickler.text(if small { "small" } else { "large" });
    pickler.text("segment_pool_id");
    pickler.pair(pool >> 32, pool & 0xffff_ffff);
    pickler.text("is_expandable");
    pickler.bool(page);
    pickler.text("frames");
    frames.write(pickler, whole.memory.stack)?;
    pickler.text("blocks");
    pickler.begin_list();
    for (range, block) in &whole.blocks {
        pickler.item()?;
        let (requested, state, stack) = match block {
            Some(block) if block.pending => (block.requested, "active_pending_free", block.stack),
            Some(block) => (block.requested, "active_allocated", block.stack),
            None if other => (size, "active_allocated", whole.memory.stack),
            None => (0, "inactive", StackId(0)),
        };
        pickler.begin_dict();
        pickler.text("address");
        pickler.int(range.start);
        pickler.text("size");
        pickler.int(range.end - range.start);
        pickler.text("requested_size");
        pickler.int(requested);
        pickler.text("state");
        pickler.text(state);
        pickler.text("frames");
        frames.write(pickler, stack)?;
        pickler.end_dict();
    }
    pickler.end_list();
    pickler.end_dict();
    Ok(())
}

const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_PAGE: u64 = 20 << 20;

/// What the setting string says; what it does not say is PyTorch's default.
fn settings(pickler: &mut Pickler, definitions: &Definitions) {
    let text = CONF_VARIABLES.iter().find_map(|name| definitions.setting(name)).unwrap_or_default();
    let conf = Conf::parse(text).unwrap_or_default();
    pickler.begin_dict();
    pickler.text("PYTORCH_CUDA_ALLOC_CONF");
    pickler.text(text);
    pickler.text("max_split_size");
    match conf.max_split_size {
        u64::MAX => pickler.minus_one(),
        bytes => pickler.int(bytes),
    }
    pickler.text("garbage_collection_threshold");
    pickler.float(conf.garbage_collection_threshold);
    pickler.text("expandable_segments");
    pickler.bool(conf.expandable_segments);
    pickler.text("roundup_power2_divisions");
    pickler.begin_dict();
    for (power, divisions) in conf.roundup_power2_divisions.iter().enumerate() {
        pickler.text(&(1u32 << power).to_string());
        pickler.int(u64::from(*divisions));
    }
    pickler.end_dict();
    pickler.end_dict();
}
