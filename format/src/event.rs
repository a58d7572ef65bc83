//! Events: what happened, in file order. Encoded by [`crate::encode`], decoded by the reader.

use crate::{ContextId, DeviceId, PoolId, SiteId, Space, StackId};

/// An event with its place in the file, its time and its thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamped {
    /// Byte offset of the record in the file: grows in the true order per address.
    pub offset: u64,
    /// Nanoseconds since `Header::start_mono_ns`; resolution 64 ns; may run back a little.
    pub time_ns: u64,
    pub thread: crate::ThreadId,
    pub event: Event,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alloc {
    /// Address, or the number that stands for it in its [`Space`].
    pub key: u64,
    pub space: Space,
    /// Requested bytes (real pitch x height for pitched; memory requirements for arrays).
    pub size: u64,
    pub site: SiteId,
    pub stack: StackId,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The driver gave memory. Written after the call returned.
    Alloc(Alloc),
    /// Written before the driver is asked. `site` 0 = by the natural call on the allocation's own
    /// stream (the 16-byte form); else the freeing site.
    Free {
        key: u64,
        space: Space,
        site: SiteId,
    },
    /// The free announced before was refused by the driver: the allocation lives on.
    FreeFailed {
        key: u64,
        space: Space,
        site: SiteId,
        result: i32,
    },
    /// A request that got no memory.
    Refused(Refused),
    /// A VMM mapping: `object` is the key of the physical object.
    Map {
        address: u64,
        size: u64,
        offset: u64,
        object: u64,
    },
    Unmap {
        address: u64,
        size: u64,
    },
    /// A pool's bytes, read back from the driver. Reserved is what is physical.
    PoolState {
        pool: PoolId,
        reserved: u64,
        used: u64,
    },
    /// A device's graph memory, read back from the driver.
    GraphState {
        device: DeviceId,
        reserved: u64,
        used: u64,
    },
    ContextCreated {
        context: ContextId,
        device: DeviceId,
        stack: StackId,
    },
    /// Frees what belongs to the context except VMM objects and pool blocks.
    ContextDestroyed {
        context: ContextId,
    },
    /// What the driver and NVML say; taken now and then. `None` = not available.
    Sample(Sample),
    /// The cap in force from here on; `bytes` `None` = no cap.
    Cap {
        device: DeviceId,
        bytes: Option<u64>,
    },
    /// How the cap of a device is applied from here on; written where it is not plain refusal.
    CapPolicy {
        device: DeviceId,
        /// What would be refused is told and given.
        only_warns: bool,
        /// Of the count: passing it is told.
        soft: Option<u64>,
    },
    /// What the processes of this one's group may take of the device together, from here on.
    GroupCap {
        device: DeviceId,
        bytes: Option<u64>,
    },
    /// The cap's count passed the soft limit, or (`over` false) fell well below it again.
    SoftLimit {
        device: DeviceId,
        over: bool,
        counted: u64,
        limit: u64,
    },
    /// cuCtxSetLimit: `grown` = device bytes that it took (CUlimit 0 = stack size).
    Limit {
        context: ContextId,
        limit: u32,
        value: u64,
        grown: u64,
    },
    /// The driver took memory of its own, or gave it back.
    Took(Took),
    /// The program marks a phase (NVTX): `name` is the id of a text, 0 where there is none.
    Mark {
        name: u32,
        mark: Mark,
    },
    /// A framework's own totals: bytes of its blocks, and of the segments that they lie in.
    CacheState {
        device: DeviceId,
        allocated: u64,
        reserved: u64,
    },
    /// A framework's cache gave up on a request, after it had emptied itself. The totals are its
    /// own.
    CacheOom {
        device: DeviceId,
        size: u64,
        allocated: u64,
        reserved: u64,
        stack: StackId,
    },
    /// The program is really out of memory: once for a burst of refusals.
    PostMortem(PostMortem),
    /// Another process on the device, as NVML listed it at a post-mortem; its bytes where NVML
    /// knows them.
    Neighbour {
        device: DeviceId,
        pid: u32,
        bytes: Option<u64>,
    },
    /// The memory that holds this address was made ready for other processes (cuIpcGetMemHandle).
    Shared {
        address: u64,
        site: SiteId,
        stack: StackId,
    },
    /// More about a block than PyTorch's hook tells; only in imported traces.
    BlockChange {
        address: u64,
        change: BlockChange,
    },
    /// Totals so far of one device, as the ledger counts them (at each new window, and at the end).
    Counters(Counters),
    /// A checkpoint starts: the entries with this id are the live set at this place in the file.
    CheckpointBegin {
        id: u32,
    },
    /// One live allocation of the checkpoint; `time_ns` is when it was made.
    CheckpointAlloc {
        id: u32,
        time_ns: u64,
        alloc: Alloc,
    },
    CheckpointMap {
        id: u32,
        address: u64,
        size: u64,
        offset: u64,
        object: u64,
    },
    CheckpointPool {
        id: u32,
        pool: PoolId,
        reserved: u64,
        used: u64,
    },
    CheckpointGraph {
        id: u32,
        device: DeviceId,
        reserved: u64,
        used: u64,
    },
    CheckpointContext {
        id: u32,
        context: ContextId,
        device: DeviceId,
        time_ns: u64,
        stack: StackId,
    },
    /// Since the start, of one (site, stack): calls, frees, requested bytes of all allocations.
    /// Several records with the same site and stack add up.
    CheckpointTotals {
        id: u32,
        site: SiteId,
        stack: StackId,
        allocations: u64,
        frees: u64,
        bytes: u64,
    },
    CheckpointCounters {
        id: u32,
        counters: Counters,
    },
    /// What the driver holds of its own, by the call that made it take it: `took.delta` is the sum.
    CheckpointTook {
        id: u32,
        took: Took,
    },
    /// Only a checkpoint with its end is usable.
    CheckpointEnd {
        id: u32,
    },
    /// Full time, written when no event came for hours, so that 40-bit stamps unwrap.
    Anchor,
    /// Recording stopped here; the cap goes on.
    Stopped {
        reason: StopReason,
        errno: i32,
    },
    /// The process ended in order (exit handlers ran). Late frees may follow.
    Ended,
    /// The ledger met something that should not be (an address allocated while live, ...).
    Drift {
        what: Drift,
        key: u64,
    },
    /// A driver call that is counted, not followed: pass-through names (family L and unknown
    /// allocation-like ones). Written at most once per name.
    PassedThrough {
        api: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockChange {
    /// The block that was just allocated was asked for with this many bytes.
    Requested(u64),
    /// The block that was just freed waits for other streams.
    Pending,
    /// It waits no more: it can be used again.
    Reusable,
}

/// Ranges of a thread that lie in each other, ranges that any thread may end, moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mark {
    /// The thread's innermost range ends.
    Pop = 0,
    Push = 1,
    /// A range begins that lies in no other.
    Start = 2,
    /// The last one that began under this name ends.
    End = 3,
    Moment = 4,
}

impl Mark {
    pub const ALL: [Mark; 5] = [Mark::Pop, Mark::Push, Mark::Start, Mark::End, Mark::Moment];

    /// What a newer recorder may say besides is a moment.
    pub fn from_u8(value: u8) -> Mark {
        Mark::ALL.get(usize::from(value)).copied().unwrap_or(Mark::Moment)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refused {
    pub site: SiteId,
    pub stack: StackId,
    /// What was asked for, as it would have been charged.
    pub size: u64,
    /// The CUresult that the program got.
    pub result: i32,
    pub by: RefusedBy,
    /// The ledger's count for the device at that moment.
    pub counted: u64,
    /// The cap (0 = none).
    pub limit: u64,
    /// The driver's own free bytes, as last seen (0 = not known).
    pub driver_free: u64,
    /// The framework's totals at that moment; `None`: it says none, or an older writer.
    pub cache: Option<CacheBytes>,
}

/// A framework's own totals of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheBytes {
    /// In blocks.
    pub allocated: u64,
    /// In the segments that the blocks lie in.
    pub reserved: u64,
}

/// What ended, or would end, the program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PostMortem {
    pub device: DeviceId,
    /// Who refused; `None`: nobody did, the framework gave up by a limit of its own.
    pub by: Option<RefusedBy>,
    pub told: Told,
    /// What was asked for: of the framework where it gave up, else of the driver.
    pub size: u64,
    pub stack: StackId,
    /// What `by` counted, and allowed (0 = none, or not known).
    pub counted: u64,
    pub limit: u64,
    /// The driver's own free bytes, as last seen.
    pub driver_free: Option<u64>,
    pub cache: Option<CacheBytes>,
    /// The longest run of free bytes inside the framework's segments; `None`: no framework's
    /// blocks were followed.
    pub largest_hole: Option<u64>,
    /// Refusals before these that the program lived with, since the last post-mortem.
    pub absorbed: u64,
}

/// By what a program was seen to be really out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Told {
    /// Its framework gave up.
    Framework = 1,
    /// It ended, and its last request was refused.
    Exit = 2,
    /// It was refused again after a second in which nothing was given.
    Again = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefusedBy {
    /// Only out of memory (result 2) counts as a refusal; other results are failed calls.
    Driver = 0,
    Cap = 1,
    /// The cap could not be understood: everything is refused.
    BadCap = 2,
    /// The cap that a group of processes shares; `counted` and `limit` are the group's.
    Group = 3,
    /// A cap that only warns: it would have been refused, and was given (`result` 0).
    Warned = 4,
}

/// Memory that the driver took past any allocation call, as NVML's figure showed it after a call
/// that can make it do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Took {
    pub device: DeviceId,
    pub cause: Cause,
    /// Bytes; below 0: given back.
    pub delta: i64,
    /// The call after which it showed.
    pub site: SiteId,
    pub stack: StackId,
    /// The kernel, variable or file that it was for: the id of a text; 0 = not known.
    pub name: u32,
}

/// What the driver takes memory of its own for. Beside these stands what contexts took when they
/// were made ([`Sample::context_bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Cause {
    /// It shows after calls of several kinds at once, or after one that is none of these.
    Other = 0,
    /// Code that is loaded, and its variables.
    Modules = 1,
    /// Local memory of the threads of kernels: spilled registers, arrays, the stack.
    LocalMemory = 2,
    /// The heap of kernels that call malloc.
    Heap = 3,
    /// Streams and events.
    Streams = 4,
    /// Executable graphs, without the memory of their nodes.
    Graphs = 5,
    /// Peer access, imports, multicast.
    Sharing = 6,
    /// What a context took after it was made.
    Context = 7,
}

impl Cause {
    pub const COUNT: usize = 8;
    pub const ALL: [Cause; Cause::COUNT] = [
        Cause::Modules,
        Cause::LocalMemory,
        Cause::Heap,
        Cause::Streams,
        Cause::Graphs,
        Cause::Sharing,
        Cause::Context,
        Cause::Other,
    ];

    /// What a newer recorder may say besides is `Other`.
    pub fn from_u8(value: u8) -> Cause {
        Cause::ALL.into_iter().find(|cause| *cause as u8 == value).unwrap_or(Cause::Other)
    }

    /// As keys and columns have it.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Modules => "modules",
            Cause::LocalMemory => "local_memory",
            Cause::Heap => "heap",
            Cause::Streams => "streams",
            Cause::Graphs => "graphs",
            Cause::Sharing => "sharing",
            Cause::Context => "context",
            Cause::Other => "other",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub device: DeviceId,
    pub driver_free: Option<u64>,
    pub driver_total: Option<u64>,
    /// NVML's figure for this process on the device.
    pub process_bytes: Option<u64>,
    /// The part of it that contexts took, as measured when they were created.
    pub context_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    pub device: u8,
    /// Physical bytes of allocations, no context, no imports.
    pub live: u64,
    pub peak: u64,
    pub peak_time_ns: u64,
    /// Requested bytes.
    pub live_requested: u64,
    pub live_allocations: u64,
    pub allocations: u64,
    pub frees: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    /// What the cap counts: live + context + unattributed.
    pub counted: u64,
    /// Requests that a cap which only warns would have refused. 0 in files that lack the word.
    pub warned: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StopReason {
    DiskFull = 1,
    FileSizeLimit = 2,
    /// The descriptor no longer names our file: the host closed or reused it.
    DescriptorLost = 3,
    MapFailed = 4,
    WriteFailed = 5,
    Panic = 6,
    /// `VRAMTRACE_MAX` is reached and the filesystem cannot punch: checkpoints and totals go on.
    CannotPunch = 7,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Drift {
    /// Allocated again while live: the earlier one is ended.
    StillLive = 1,
    /// A counter would have gone below zero.
    Underflow = 2,
    /// Freed with success though never seen.
    UnknownFree = 3,
}
