//! The table of events on GPU memory, and their storage.
//!
//! A row is one kind of event: its code, its fields with their places in the record (`wire.rs`), whether it creates the
//! trace file, and whether it is part of the totals. The encoder and the decoder come from the table. A new kind needs a row here and one in docs/FORMAT.md. Codes are never reused; a reader skips unknown ones.
//! Newer writers may add words at the end of a record; older readers ignore them.

use super::record_macro::events;
use super::values::{
    Alloc, BlockChange, Counters, Drift, GraphChange, HeldBytes, HistoryBin, HistoryDevice,
    HistoryHolder, HistoryLevel, HistoryPhase, Listed, Mark, PostMortem, Purpose, Refused, Sample,
    StateHolder, StopReason, SwitchedBy, Took,
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

    /// The driver refused the free that was recorded before: the allocation is still live.
    0x14 FreeFailed {
        key: u64 = word,
        space: Space = small,
    } => opens_file: true, is_total: false;

    /// A request that got no memory, or that a cap only warned about.
    0x15 Refused(refused: Refused) => opens_file: true, is_total: false;

    /// A mapping (cuMemMap). `object`: the key of the physical object. `stack`: of the call; 0 also if the driver
    /// refused to remove the mapping and it is therefore recorded again. `owner`: in a checkpoint, the owner of the
    /// sleeping range that the mapping woke; 0 = none: the owner is the stack that created the object.
    0x16 Map {
        address: u64 = word,
        size: u64 = word,
        offset: u64 = word,
        object: u64 = word,
        owner: StackId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: false;

    /// An unmap. Written before the driver call.
    0x17 Unmap {
        address: u64 = word,
        size: u64 = word,
        stack: StackId = word,
    } => opens_file: true, is_total: false;

    /// A reservation of addresses (cuMemAddressReserve). Ranges that are unmapped in it may be mapped again. Also
    /// written after a free that the driver refused. `asleep`: in a checkpoint, a range that was unmapped and may be
    /// mapped again; `device` and `stack` are those of its owner.
    0x3C AddressReserve {
        asleep: bool = small,
        device: DeviceId = small,
        address: u64 = word,
        size: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
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
        context: ContextId = high,
        device: DeviceId = small,
        stack: StackId = low,
    } => opens_file: true, is_total: false;

    /// The end of a context. It frees the allocations of the context, except VMM objects and pool blocks.
    0x1B ContextDestroyed {
        context: ContextId = small,
    } => opens_file: true, is_total: false;

    /// Figures of the driver and of NVML, sampled from time to time. `None` = not available.
    0x1C Sample(sample: Sample) => opens_file: false, is_total: true;

    /// The limits of a device from here on.
    0x1D Cap {
        device: DeviceId = small,
        /// The cap of the process. `None`: it has none.
        bytes: Option<u64> = word_if,
        /// The cap that the processes of the group share.
        group: Option<u64> = word_if,
        /// The soft limit: a count above it is reported.
        soft: Option<u64> = word_if,
        /// Requests that exceed the cap are reported and granted.
        only_warns: bool = small,
    } => opens_file: false, is_total: true;

    /// The bytes that the cap counts exceeded the soft limit, or (`over` false) fell well below it again.
    0x32 SoftLimit {
        device: DeviceId = small,
        over: bool = small,
    } => opens_file: true, is_total: true;

    /// A call of cuCtxSetLimit. `grown`: device bytes that the call used.
    0x1E Limit {
        context: ContextId = small,
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
        change: BlockChange = word,
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

    /// A sampled allocation: an allocation of this size is recorded with the probability `p = 1 - exp(-size /
    /// rate)`. In sums, a reader counts it `1/p` times. `rate` is in bytes.
    0x45 SampledAlloc {
        rate: u64 = word,
        alloc: Alloc = inner,
    } => opens_file: true, is_total: false;

    /// An executable graph was instantiated. `nodes`: the nodes of its graph; 0 = not known.
    0x49 GraphMade {
        nodes: u32 = small,
        exec: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: false;

    /// What became of an executable graph.
    0x4A GraphUsed {
        change: GraphChange = small,
        exec: u64 = word,
    } => opens_file: false, is_total: false;

    /// The recording was switched off (`on` false) or on. Between the two, events are missing; the ledger and the cap go
    /// on. A checkpoint follows after it was switched on.
    0x4C Recording {
        on: bool = small,
        by: SwitchedBy = small,
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

    /// What followed a refusal: the first call that failed with another error than out of memory, which libraries that
    /// ignore a refusal cause; or (`api` `None`) the exit status of the process. Without `Ended` after it: that of `_exit`.
    0x47 Aftermath {
        api: Option<u64> = word_if,
        result: i32 = small,
    } => opens_file: false, is_total: true;

    /// The begin of a state: the records with this id up to its end are what is so at this position in the file. States of
    /// different ids may overlap. One without its end, or with a gap in it, is not used.
    0x60 StateBegin {
        /// Counts the states, modulo 256.
        id: u8 = small,
        what: Purpose = small,
        /// Requests so far that a framework's cache could not serve.
        cache_ooms: u32 = word,
    } => opens_file: true, is_total: true;

    /// An event of the past that is still so.
    0x61 StateEvent(listed: Listed) => opens_file: true, is_total: true;

    /// Totals since the start of one site and stack. Records with the same site and stack are added.
    0x62 StateTotals {
        id: u8 = small,
        site: SiteId = high,
        stack: StackId = low,
        allocations: u64 = word,
        frees: u64 = word,
    } => opens_file: true, is_total: true;

    /// One of the largest holders of a device, in a summary and in a history.
    0x63 StateHolder(holder: StateHolder) => opens_file: false, is_total: true;

    /// Physical bytes of one kind (`Kind as u8`). In a summary: at the device's peak, and at the end. In a bin of the
    /// history: at the highest sample, and 0; written if they are not those of the bin before.
    0x64 StateKind {
        device: DeviceId = small,
        kind: u8 = small,
        at_peak: u64 = word,
        live: u64 = word,
    } => opens_file: false, is_total: true;

    /// A device's bytes over time, where the recorder took samples.
    0x65 StateHeld(held: HeldBytes) => opens_file: false, is_total: true;

    /// A bin of the history. The records up to the next bin are its figures.
    0x66 HistoryBin(bin: HistoryBin) => opens_file: false, is_total: true;

    /// The figures of a device in the bin.
    0x67 HistoryDevice(device: HistoryDevice) => opens_file: false, is_total: true;

    /// The memory of the driver, or of a framework's blocks, in the bin.
    0x68 HistoryLevel(level: HistoryLevel) => opens_file: false, is_total: true;

    /// A stack that is distinguished in the bin.
    0x69 HistoryHolder(holder: HistoryHolder) => opens_file: false, is_total: true;

    /// A phase of the program in which a device's memory was highest in the bin, or nearly.
    0x6A HistoryPhase(phase: HistoryPhase) => opens_file: false, is_total: true;

    /// The end of a state. `cut`: holders of the latest bins are left out, since the history has reached its greatest
    /// length.
    0x6B StateEnd {
        id: u8 = small,
        cut: bool = small,
    } => opens_file: true, is_total: true;
}
