//! The table of events on GPU memory, and their storage.
//!
//! A row is one kind of event: its code, its fields with their places in the record (`wire.rs`), whether it creates the
//! trace file, and whether it is part of the totals. The encoder and the decoder come from the table. A new kind needs a row here and one in docs/FORMAT.md. Codes are never reused; a reader skips unknown ones.
//! Newer writers may add words at the end of a record; older readers ignore them.

use super::record_macro::events;
use super::values::{
    Alloc, BlockChange, Counters, Drift, HeldBytes, HistoryBin, HistoryDevice, HistoryHolder,
    HistoryLevel, HistoryPhase, Mark, PostMortem, Refused, Sample, StopReason, SummaryDriver,
    SummaryHolder, SwitchedBy, Took,
};
use crate::ids::{ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId};
use crate::kind::Space;

/// An event with its place in the file, its time and its thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamped {
    /// Position of the record, in bytes: its file offset, or a greater value if its window took the slots of an
    /// erased one ([`crate::Window::position`]). For each address it grows in the order of the events.
    pub offset: u64,
    /// Nanoseconds since `Header::start_mono_ns`; resolution 64 ns. May be slightly less than that of the record
    /// before.
    pub time_ns: u64,
    /// The thread that wrote the record.
    pub thread: ThreadId,
    pub event: Event,
}

/// For [`crate::Events::read`], which overwrites it.
impl Default for Stamped {
    fn default() -> Stamped {
        Stamped { offset: 0, time_ns: 0, thread: ThreadId(0), event: Event::Anchor }
    }
}

events! {
    /// An allocation. Written after the driver call has returned.
    0x11 Alloc(alloc: Alloc) => opens_file: true, is_total: false;

    /// A free. Written before the driver call. `site`: the site of the free; 0 = the call that belongs to the
    /// allocation, on the allocation's stream (the 16-byte form).
    0x13 Free {
        key: u64 = word,
        space: Space = small,
        site: SiteId = word,
    } => opens_file: true, is_total: false;

    /// The driver refused the free that was recorded before: the allocation is still live. `result`: the CUresult.
    0x14 FreeFailed {
        key: u64 = word,
        space: Space = small,
        site: SiteId = high,
        result: i32 = low,
    } => opens_file: true, is_total: false;

    /// A request that got no memory, or that a cap only warned about.
    0x15 Refused(refused: Refused) => opens_file: true, is_total: false;

    /// A mapping (cuMemMap). `object`: the key of the physical object. `stack`: of the call; 0 also if the driver
    /// refused to remove the mapping and it is therefore recorded again.
    0x16 Map {
        address: u64 = word,
        size: u64 = word,
        offset: u64 = word,
        object: u64 = word,
        stack: StackId = word_added,
    } => opens_file: true, is_total: false;

    /// An unmap. Written before the driver call.
    0x17 Unmap {
        address: u64 = word,
        size: u64 = word,
        stack: StackId = word_added,
    } => opens_file: true, is_total: false;

    /// A reservation of addresses (cuMemAddressReserve). Ranges that are unmapped in it may be mapped again.
    /// `restored`: the driver refused the free that was recorded before.
    0x3C AddressReserve {
        address: u64 = word,
        size: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
        restored: bool = small,
    } => opens_file: false, is_total: false;

    /// The end of a reservation (cuMemAddressFree), with its sleeping ranges. Written before the driver call, if the
    /// call is expected to succeed.
    0x3D AddressFree {
        address: u64 = word,
        size: u64 = word,
    } => opens_file: false, is_total: false;

    /// A pool's bytes, queried from the driver. `reserved`: physical bytes.
    0x18 PoolState {
        pool: PoolId = small,
        reserved: u64 = word,
        used: u64 = word,
    } => opens_file: true, is_total: false;

    /// A device's graph memory, queried from the driver.
    0x19 GraphState {
        device: DeviceId = small,
        reserved: u64 = word,
        used: u64 = word,
    } => opens_file: true, is_total: false;

    /// The process has a new context. `stack`: of the call.
    0x1A ContextCreated {
        context: ContextId = small,
        device: DeviceId = small,
        stack: StackId = word,
    } => opens_file: true, is_total: false;

    /// The end of a context. It frees the allocations of the context, except VMM objects and pool blocks.
    0x1B ContextDestroyed {
        context: ContextId = small,
    } => opens_file: true, is_total: false;

    /// Figures of the driver and of NVML, sampled from time to time. `None` = not available.
    0x1C Sample(sample: Sample) => opens_file: false, is_total: true;

    /// The cap from here on. `bytes` `None` = no cap.
    0x1D Cap {
        device: DeviceId = small,
        bytes: Option<u64> = word_if,
    } => opens_file: false, is_total: true;

    /// How the cap of a device is applied from here on. Written only if it does not just refuse requests.
    0x27 CapPolicy {
        device: DeviceId = small,
        /// Requests that exceed the cap are reported and granted.
        only_warns: bool = small,
        /// The soft limit in bytes: a count above it is reported.
        soft: Option<u64> = word_if,
    } => opens_file: false, is_total: true;

    /// The cap that the processes of the group share on the device, from here on. `None` = no cap.
    0x31 GroupCap {
        device: DeviceId = small,
        bytes: Option<u64> = word_if,
    } => opens_file: false, is_total: true;

    /// The bytes that the cap counts exceeded the soft limit, or (`over` false) fell well below it again.
    0x32 SoftLimit {
        device: DeviceId = small,
        over: bool = small,
        counted: u64 = word,
        limit: u64 = word,
    } => opens_file: true, is_total: true;

    /// A call of cuCtxSetLimit. `limit`: the CUlimit (0 = stack size). `grown`: device bytes that the call used.
    0x1E Limit {
        context: ContextId = small,
        limit: u32 = word,
        value: u64 = word,
        grown: u64 = word,
    } => opens_file: false, is_total: false;

    /// The driver allocated memory for its own use, or freed it.
    0x35 Took(took: Took) => opens_file: false, is_total: true;

    /// An NVTX range or mark of the program. `name`: the id of a text; 0 = none.
    0x1F Mark {
        name: u32 = small,
        mark: Mark = small,
    } => opens_file: false, is_total: false;

    /// A framework's own totals: bytes in blocks (`allocated`), and in the segments that hold them (`reserved`).
    0x23 CacheState {
        device: DeviceId = small,
        allocated: u64 = word,
        reserved: u64 = word,
    } => opens_file: false, is_total: true;

    /// A framework's cache could not serve a request of `size` bytes, even after it had freed its unused segments. The
    /// totals are those of the framework.
    0x24 CacheOom {
        device: DeviceId = small,
        stack: StackId = word,
        size: u64 = word,
        allocated: u64 = word,
        reserved: u64 = word,
    } => opens_file: true, is_total: true;

    /// The recorder concludes that the program is out of memory ([`PostMortem::evidence`]). Written once for a series
    /// of refusals.
    0x33 PostMortem(post_mortem: PostMortem) => opens_file: true, is_total: true;

    /// Another process on the device, as NVML listed it at a post-mortem. `bytes` `None` = NVML does not know.
    0x34 Neighbour {
        device: DeviceId = small,
        pid: u32 = word,
        bytes: Option<u64> = word_if,
    } => opens_file: true, is_total: true;

    /// The allocation that holds this address was exported to other processes (cuIpcGetMemHandle).
    0x25 Shared {
        address: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: false;

    /// A detail of a block that the recorder does not see, or has in [`Alloc::requested`]. Only in imported traces.
    0x26 BlockChange {
        address: u64 = word,
        change: BlockChange = inner,
    } => opens_file: true, is_total: false;

    /// The ledger's totals of one device so far. Written at each new window and at the end.
    0x20 Counters(counters: Counters) => opens_file: false, is_total: true;

    /// The cost of the recorder so far; written with each `Counters`. `ns`: time in hooks without the driver's,
    /// summed over `calls` sampled calls: one in `one_of` of each thread. `bytes`: length of the records. `stacks`:
    /// number of different stacks.
    0x3F RecorderCost {
        calls: u64 = word,
        ns: u64 = word,
        one_of: u64 = word,
        bytes: u64 = word,
        stacks: u64 = word,
    } => opens_file: false, is_total: true;

    /// The begin of a checkpoint: the entries with this id are the live allocations at this position in the file.
    0x28 CheckpointBegin {
        id: u32 = small,
    } => opens_file: true, is_total: true;

    /// A live allocation of the checkpoint. `time_ns`: the time of the allocation.
    0x29 CheckpointAlloc {
        id: u32 = small,
        time_ns: u64 = ticks,
        alloc: Alloc = inner,
    } => opens_file: true, is_total: true;

    /// A mapping of the checkpoint.
    0x2A CheckpointMap {
        id: u32 = small,
        address: u64 = word,
        size: u64 = word,
        offset: u64 = word,
        object: u64 = word,
        /// The owner of the sleeping range that the mapping woke; 0 = none: the owner is the stack that created the
        /// object.
        owner: StackId = high_added,
        /// The stack of the call that woke it.
        stack: StackId = low,
    } => opens_file: true, is_total: true;

    /// A reservation; or (`asleep`) a range of one that was unmapped and may be mapped again: `stack` is that of its
    /// owner.
    0x3E CheckpointReserve {
        id: u32 = small,
        asleep: bool = small,
        device: DeviceId = word,
        address: u64 = word,
        size: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: true;

    /// A pool of the checkpoint, as [`Event::PoolState`].
    0x2B CheckpointPool {
        id: u32 = small,
        pool: PoolId = word,
        reserved: u64 = word,
        used: u64 = word,
    } => opens_file: true, is_total: true;

    /// The graph memory of a device, as [`Event::GraphState`].
    0x2C CheckpointGraph {
        id: u32 = small,
        device: DeviceId = small,
        reserved: u64 = word,
        used: u64 = word,
    } => opens_file: true, is_total: true;

    /// A context of the checkpoint. `time_ns`: the time of its creation.
    0x2D CheckpointContext {
        id: u32 = small,
        device: DeviceId = small,
        time_ns: u64 = ticks,
        context: ContextId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: true;

    /// Totals since the start of one site and stack: allocations, frees, and requested bytes of all allocations.
    /// Records with the same site and stack are added.
    0x2E CheckpointTotals {
        id: u32 = small,
        site: SiteId = high,
        stack: StackId = low,
        allocations: u64 = word,
        frees: u64 = word,
        bytes: u64 = word,
    } => opens_file: true, is_total: true;

    /// The totals of one device, as [`Event::Counters`].
    0x2F CheckpointCounters {
        id: u32 = small,
        counters: Counters = inner,
    } => opens_file: true, is_total: true;

    /// Memory that the driver holds for its own use, by site and stack. `took.delta`: the sum in bytes.
    0x36 CheckpointTook {
        id: u32 = small,
        took: Took = inner,
    } => opens_file: true, is_total: true;

    /// The end of a checkpoint. A checkpoint without its end is not used.
    0x30 CheckpointEnd {
        id: u32 = small,
    } => opens_file: true, is_total: true;

    /// The full time. Written after hours without an event, so that 40-bit timestamps can be extended.
    0x03 Anchor => opens_file: false, is_total: false;

    /// Recording stopped here. The cap is still enforced.
    0x38 Stopped {
        errno: i32 = small,
        reason: StopReason = small,
    } => opens_file: true, is_total: true;

    /// The process exited normally (exit handlers ran). Frees may follow.
    0x39 Ended => opens_file: false, is_total: true;

    /// The ledger found an inconsistency, for example an allocation at an address that is live.
    0x3A Drift {
        what: Drift = small,
        key: u64 = word,
    } => opens_file: false, is_total: false;

    /// The begin of the summary, at the end of the process. The records up to `SummaryEnd` summarise all events
    /// before this one, so that a reader of many traces need not replay them.
    0x40 SummaryBegin {
        /// Requests that a framework's cache could not serve.
        cache_ooms: u32 = small,
        /// It also has what the driver took for itself. False in files of older writers.
        has_driver_memory: bool = word_added,
    } => opens_file: false, is_total: true;

    /// The totals of one device at the end.
    0x41 SummaryDevice {
        counters: Counters = inner,
        /// Its bytes over time. `None`: the recorder took no samples, as in a trace without a limit.
        held: Option<HeldBytes> = inner_if,
    } => opens_file: false, is_total: true;

    /// Physical bytes of one kind (`Kind as u8`): at the device's peak, and at the end.
    0x42 SummaryKind {
        device: DeviceId = small,
        kind: u8 = small,
        at_peak: u64 = word,
        live: u64 = word,
    } => opens_file: false, is_total: true;

    /// The bytes that one stack held on a device: one of the largest holders at that moment.
    0x43 SummaryHolder(holder: SummaryHolder) => opens_file: false, is_total: true;

    /// What the driver took for itself, by cause and stack: the largest ones at that moment.
    0x4D SummaryDriver(driver: SummaryDriver) => opens_file: false, is_total: true;

    /// The end of the summary. `records`: number of records after `SummaryBegin`. A summary with fewer is not used.
    0x44 SummaryEnd {
        records: u32 = small,
    } => opens_file: false, is_total: true;

    /// A sampled allocation: an allocation of this size is recorded with the probability `p = 1 - exp(-size /
    /// rate)`. In sums, a reader counts it `1/p` times. `rate` is in bytes.
    0x45 SampledAlloc {
        rate: u64 = word,
        alloc: Alloc = inner,
    } => opens_file: true, is_total: false;

    /// A live sampled allocation of the checkpoint.
    0x46 CheckpointSampled {
        id: u32 = small,
        time_ns: u64 = ticks,
        rate: u64 = word,
        alloc: Alloc = inner,
    } => opens_file: true, is_total: true;

    /// The first call after a refusal that failed with another error than out of memory. Libraries that ignore a
    /// refusal cause such errors.
    0x47 ErrorAfterRefusal {
        api: u16 = small,
        result: i32 = word,
    } => opens_file: false, is_total: true;

    /// The exit status of a process that had a refusal. Written only if it is not 0.
    0x48 ExitStatus {
        status: i32 = small,
    } => opens_file: false, is_total: true;

    /// An executable graph was instantiated. `nodes`: the nodes of its graph; 0 = not known.
    0x49 GraphMade {
        nodes: u32 = small,
        exec: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: false;

    /// An executable graph was launched for the first time; or (`again`) after a later one with the same stack and the
    /// same number of nodes was instantiated. Each is written once for an executable graph.
    0x4A GraphUsed {
        again: bool = small,
        exec: u64 = word,
    } => opens_file: false, is_total: false;

    /// An executable graph was destroyed.
    0x4B GraphEnded {
        exec: u64 = word,
    } => opens_file: false, is_total: false;

    /// The recording was switched off (`on` false) or on. Between the two, events are missing; the ledger and the cap go
    /// on. A checkpoint follows after it was switched on.
    0x4C Recording {
        on: bool = small,
        by: SwitchedBy = small,
    } => opens_file: false, is_total: true;

    /// The begin of a copy of the history: samples of the ledger, thinned. A later copy replaces it.
    0x50 HistoryBegin {
        id: u32 = small,
        /// Time from one sample to the next in ns, at least.
        every_ns: u64 = word,
    } => opens_file: false, is_total: true;

    /// A bin of the history. The records up to the next bin are its figures.
    0x51 HistoryBin(bin: HistoryBin) => opens_file: false, is_total: true;

    /// The figures of a device in the bin.
    0x52 HistoryDevice(device: HistoryDevice) => opens_file: false, is_total: true;

    /// The memory of the driver, or of a framework's blocks, in the bin.
    0x53 HistoryLevel(level: HistoryLevel) => opens_file: false, is_total: true;

    /// Bytes of one kind (`Kind as u8`) at the bin's highest sample. Written if they are not those of the bin before.
    0x54 HistoryKind {
        device: DeviceId = small,
        kind: u8 = small,
        bytes: u64 = word,
    } => opens_file: false, is_total: true;

    /// A stack that is told apart in the bin.
    0x55 HistoryHolder(holder: HistoryHolder) => opens_file: false, is_total: true;

    /// One of the largest holders at a device's highest peak so far.
    0x56 HistoryPeakHolder(holder: SummaryHolder) => opens_file: false, is_total: true;

    /// A phase of the program in which a device's memory was highest in the bin, or nearly.
    0x5A HistoryPhase(phase: HistoryPhase) => opens_file: false, is_total: true;

    /// The end of the copy. `records`: number of records after `HistoryBegin`, without those of phases. `phases`: number of
    /// those. A copy with fewer is not used.
    0x57 HistoryEnd {
        id: u32 = small,
        /// Holders of the latest bins are left out, since the copy has reached its greatest length.
        cut: bool = small,
        records: u64 = word,
        /// Counted apart: older readers skip them, and compare `records` with what they know.
        phases: u64 = word_added,
    } => opens_file: false, is_total: true;

    /// Of a framework's blocks samples are recorded, from here on with this rate ([`Event::SampledAlloc`]). Written at the
    /// start, at each change, and in each window. Driver memory is recorded whole.
    0x58 Sampling {
        /// In bytes.
        rate: u64 = word,
        /// The rate of the start, which is not gone below.
        least: u64 = word,
        /// The recorder's share of the time of the threads, as measured before, in millionths; 0: not measured yet.
        cost: u32 = high,
        /// The bound of it: above, the recorder takes fewer samples.
        bound: u32 = low,
    } => opens_file: false, is_total: true;

    /// Exact figures of a framework's blocks where samples are recorded. Those that were freed: `allocations` less
    /// `live`.
    0x59 BlockCounts {
        device: DeviceId = small,
        /// Blocks that are allocated now.
        live: u64 = word,
        allocations: u64 = word,
        /// The highest bytes in blocks so far, as the framework counts them.
        peak: u64 = word,
    } => opens_file: false, is_total: true;

    /// A driver function was called whose memory is not recorded: a pass-through function of family L, or an unknown
    /// one whose name looks like an allocation. Written at most once for each function.
    0x3B PassedThrough {
        api: u16 = small,
    } => opens_file: false, is_total: false;
}
