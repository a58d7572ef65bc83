//! A recording of another tool in memory: the events of each device and the state at its end, in PyTorch's terms.

use std::sync::Arc;

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;
use vramtrace_format::StackId;

/// One file.
#[derive(Clone, Debug)]
pub struct History {
    pub form: Form,
    /// 0: not in the file.
    pub pid: u32,
    pub devices: Vec<HistoryDevice>,
    /// PYTORCH_CUDA_ALLOC_CONF of the run. `None`: not in the file.
    pub conf: Option<String>,
    pub stacks: HistoryStacks,
    /// Private pools by number; number 0 is the default pool, (0, 0).
    pub pools: Vec<(i64, i64)>,
    /// Time 0 of [`HistoryEntry::time_ns`], ns since 1970. `None`: unknown.
    pub start_unix_ns: Option<u64>,
    /// Without times, entries are a microsecond apart.
    pub has_times: bool,
    /// What the file does not hold, as messages for the user.
    pub caveats: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// torch.cuda.memory._dump_snapshot
    Snapshot,
    /// action,addr,size,stream
    Csv,
    /// RMM's logging resource adaptor
    Rmm,
    /// perftools.profiles.Profile, as JAX's save_device_memory_profile writes it
    Pprof,
    /// The instants `[memory]` of torch.profiler
    Timeline,
    /// CUDA_GPU_MEMORY_USAGE_EVENTS
    Nsys,
}

impl Form {
    /// The value of the setting `import` in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Form::Snapshot => "PyTorch memory snapshot",
            Form::Csv => "CSV of requests",
            Form::Rmm => "RMM log",
            Form::Pprof => "pprof profile",
            Form::Timeline => "timeline of torch.profiler",
            Form::Nsys => "report of Nsight Systems",
        }
    }

    /// The allocator, where it is not PyTorch's cache. Its requests become allocations, with sizes as they are.
    pub fn other_allocator(self) -> Option<&'static str> {
        match self {
            Form::Snapshot | Form::Csv | Form::Timeline => None,
            Form::Rmm => Some("RMM"),
            Form::Pprof => Some("the profiled program"),
            Form::Nsys => Some("CUDA"),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct HistoryDevice {
    pub ordinal: u8,
    pub entries: Vec<HistoryEntry>,
    /// At the end.
    pub segments: Vec<HistorySegment>,
}

impl HistoryDevice {
    /// Adds an event of an allocator that frees at once; without its stack.
    pub fn push(&mut self, action: Action, address: u64, size: u64, time_ns: u64, stream: u64) {
        let (pool, stack) = (0, StackId(0));
        let entry = HistoryEntry { action, address, size, stream, pool, time_ns, stack };
        if action == Action::FreeCompleted {
            self.entries.push(HistoryEntry { action: Action::FreeRequested, ..entry });
        }
        self.entries.push(entry);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryEntry {
    pub action: Action,
    pub address: u64,
    /// Requested bytes of a block; size of a segment.
    pub size: u64,
    pub stream: u64,
    /// Index among [`History::pools`].
    pub pool: u16,
    pub time_ns: u64,
    pub stack: StackId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    /// With the bytes that the driver had free.
    OutOfMemory {
        free: Option<u64>,
    },
}

impl Action {
    /// `None`: an action that changes nothing (`snapshot`, `annotate`) or is not known.
    pub fn from_name(name: &str) -> Option<Action> {
        Some(match name {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "oom" => Action::OutOfMemory { free: None },
            _ => return None,
        })
    }
}

/// Attributes of memory that a segment is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ground {
    pub stream: u64,
    /// Index among [`History::pools`].
    pub pool: u16,
    pub expandable: bool,
    pub stack: StackId,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistorySegment {
    pub address: u64,
    pub size: u64,
    pub ground: Ground,
    /// Blocks in use or pending, in order of address.
    pub blocks: Vec<HistoryBlock>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryBlock {
    pub address: u64,
    pub size: u64,
    pub requested: u64,
    /// Freed, but waiting for other streams.
    pub pending: bool,
    pub stack: StackId,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistoryFrame {
    pub function: Arc<str>,
    pub file: Arc<str>,
    pub line: u32,
}

/// Frames and stacks, each stored once. Stacks are numbered from 1; 0: no stack was recorded.
#[derive(Clone, Debug, Default)]
pub struct HistoryStacks {
    frames: IndexSet<HistoryFrame, FxBuildHasher>,
    stacks: IndexSet<Box<[u32]>, FxBuildHasher>,
}

impl HistoryStacks {
    pub fn frame(&mut self, frame: HistoryFrame) -> u32 {
        self.frames.insert_full(frame).0 as u32
    }

    /// Adds a stack, innermost frame first. An empty stack is valid: a thread without Python.
    pub fn stack(&mut self, frames: Vec<u32>) -> StackId {
        StackId(self.stacks.insert_full(frames.into()).0 as u32 + 1)
    }

    pub fn frames(&self) -> &IndexSet<HistoryFrame, FxBuildHasher> {
        &self.frames
    }

    /// In order of their index, from 1 on.
    pub fn all(&self) -> impl Iterator<Item = (StackId, &[u32])> {
        self.stacks.iter().zip(1..).map(|(frames, index)| (StackId(index), &**frames))
    }
}

impl History {
    pub fn new(form: Form) -> History {
        History {
            form,
            pid: 0,
            devices: Vec::new(),
            conf: None,
            stacks: HistoryStacks::default(),
            pools: vec![(0, 0)],
            start_unix_ns: None,
            has_times: true,
            caveats: Vec::new(),
        }
    }

    /// Of a file that was cut off.
    pub fn cut(mut self) -> History {
        let text = "the file ends in the middle: what follows is not known";
        self.caveats.retain(|known| known != text);
        self.caveats.push(text.into());
        self
    }

    /// The device with this ordinal, added if it is new.
    pub fn device(&mut self, ordinal: u8) -> &mut HistoryDevice {
        let known = self.devices.iter().position(|device| device.ordinal == ordinal);
        let at = known.unwrap_or_else(|| {
            self.devices.push(HistoryDevice { ordinal, ..HistoryDevice::default() });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }
}

/// GPU addresses are below 2^56.
const END_OF_MEMORY: u64 = 1 << 56;

/// Whether the range is valid GPU memory. `size` may be 0.
pub fn is_place(address: u64, size: u64) -> bool {
    address.checked_add(size).is_some_and(|end| end < END_OF_MEMORY)
}
