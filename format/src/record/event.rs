//! The table of events: what happens to a process's GPU memory, and how each is stored.
//!
//! A row is one kind: its code, its fields and where each stands in the record (`wire.rs`);
//! whether it makes a trace file worth opening, and whether it is part of the totals. The encoder,
//! the decoder and the generator of the tests come from it. A new kind is a row here, and one in
//! docs/FORMAT.md. Codes are never reused; a reader skips those that it does not know.
//! Newer writers may add words at the end of a record: older readers ignore them.

use super::event_macro::events;
use super::values::{
    Alloc, BlockChange, Counters, Drift, Mark, PostMortem, Refused, Sample, StopReason,
    SummaryHolder, Took,
};
use super::wire::{AnyFields, EVENT_WORDS, Get, Put};
use crate::ids::{ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId};
use crate::kind::Space;

/// An event with its place in the file, its time and its thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamped {
    /// Byte offset of the record in the file, or where its window took the place of an erased one,
    /// behind all that came before: grows in the true order per address.
    pub offset: u64,
    /// Nanoseconds since `Header::start_mono_ns`; resolution 64 ns; may run back a little.
    pub time_ns: u64,
    pub thread: ThreadId,
    pub event: Event,
}

events! {
    /// The driver gave memory. Written after the call returned.
    0x11 Alloc(alloc: Alloc) => opens_file: true, is_total: false;

    /// Written before the driver is asked. `site` 0 = by the natural call on the allocation's own
    /// stream (the 16-byte form); else the freeing site.
    0x13 Free {
        key: u64 = word,
        space: Space = small,
        site: SiteId = word,
    } => opens_file: true, is_total: false;

    /// The free announced before was refused by the driver: the allocation lives on.
    0x14 FreeFailed {
        key: u64 = word,
        space: Space = small,
        site: SiteId = high,
        result: i32 = low,
    } => opens_file: true, is_total: false;

    /// A request that got no memory.
    0x15 Refused(refused: Refused) => opens_file: true, is_total: false;

    /// A VMM mapping: `object` is the key of the physical object. `stack`: of the call; 0 also where
    /// it is back because the driver refused to unmap it.
    0x16 Map {
        address: u64 = word,
        size: u64 = word,
        offset: u64 = word,
        object: u64 = word,
        stack: StackId = word_added,
    } => opens_file: true, is_total: false;

    /// Written before the driver is asked.
    0x17 Unmap {
        address: u64 = word,
        size: u64 = word,
        stack: StackId = word_added,
    } => opens_file: true, is_total: false;

    /// Addresses were reserved (cuMemAddressReserve): what is unmapped in them may come back.
    /// `restored`: the driver refused the free that was announced before.
    0x3C AddressReserve {
        address: u64 = word,
        size: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
        restored: bool = small,
    } => opens_file: false, is_total: false;

    /// Written before the driver is asked, where it can be expected to agree. What lay in the
    /// reservation is gone for good.
    0x3D AddressFree {
        address: u64 = word,
        size: u64 = word,
    } => opens_file: false, is_total: false;

    /// A pool's bytes, read back from the driver. Reserved is what is physical.
    0x18 PoolState {
        pool: PoolId = small,
        reserved: u64 = word,
        used: u64 = word,
    } => opens_file: true, is_total: false;

    /// A device's graph memory, read back from the driver.
    0x19 GraphState {
        device: DeviceId = small,
        reserved: u64 = word,
        used: u64 = word,
    } => opens_file: true, is_total: false;

    0x1A ContextCreated {
        context: ContextId = small,
        device: DeviceId = small,
        stack: StackId = word,
    } => opens_file: true, is_total: false;

    /// Frees what belongs to the context except VMM objects and pool blocks.
    0x1B ContextDestroyed {
        context: ContextId = small,
    } => opens_file: true, is_total: false;

    /// What the driver and NVML say; taken now and then. `None` = not available.
    0x1C Sample(sample: Sample) => opens_file: false, is_total: true;

    /// The cap in force from here on; `bytes` `None` = no cap.
    0x1D Cap {
        device: DeviceId = small,
        bytes: Option<u64> = word_if,
    } => opens_file: false, is_total: true;

    /// How the cap of a device is applied from here on; written where it is not plain refusal.
    0x27 CapPolicy {
        device: DeviceId = small,
        /// What would be refused is reported and granted.
        only_warns: bool = small,
        /// Of the count: passing it is reported.
        soft: Option<u64> = word_if,
    } => opens_file: false, is_total: true;

    /// What the processes of this one's group may take of the device together, from here on.
    0x31 GroupCap {
        device: DeviceId = small,
        bytes: Option<u64> = word_if,
    } => opens_file: false, is_total: true;

    /// The cap's count passed the soft limit, or (`over` false) fell well below it again.
    0x32 SoftLimit {
        device: DeviceId = small,
        over: bool = small,
        counted: u64 = word,
        limit: u64 = word,
    } => opens_file: true, is_total: true;

    /// cuCtxSetLimit: `grown` = device bytes that it took (CUlimit 0 = stack size).
    0x1E Limit {
        context: ContextId = small,
        limit: u32 = word,
        value: u64 = word,
        grown: u64 = word,
    } => opens_file: false, is_total: false;

    /// The driver took memory for itself, or gave it back.
    0x35 Took(took: Took) => opens_file: false, is_total: true;

    /// The program marks a phase (NVTX): `name` is the id of a text, 0 where there is none.
    0x1F Mark {
        name: u32 = small,
        mark: Mark = small,
    } => opens_file: false, is_total: false;

    /// A framework's own totals: bytes of its blocks, and of the segments that they lie in.
    0x23 CacheState {
        device: DeviceId = small,
        allocated: u64 = word,
        reserved: u64 = word,
    } => opens_file: false, is_total: true;

    /// A framework's cache gave up on a request, after it had emptied itself. The totals are its
    /// own.
    0x24 CacheOom {
        device: DeviceId = small,
        stack: StackId = word,
        size: u64 = word,
        allocated: u64 = word,
        reserved: u64 = word,
    } => opens_file: true, is_total: true;

    /// The program is really out of memory: once for a burst of refusals.
    0x33 PostMortem(post_mortem: PostMortem) => opens_file: true, is_total: true;

    /// Another process on the device, as NVML listed it at a post-mortem; its bytes where NVML
    /// knows them.
    0x34 Neighbour {
        device: DeviceId = small,
        pid: u32 = word,
        bytes: Option<u64> = word_if,
    } => opens_file: true, is_total: true;

    /// The memory that holds this address was made ready for other processes (cuIpcGetMemHandle).
    0x25 Shared {
        address: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: false;

    /// More about a block than PyTorch's hook tells; only in imported traces.
    0x26 BlockChange {
        address: u64 = word,
        change: BlockChange = inner,
    } => opens_file: true, is_total: false;

    /// Totals so far of one device, as the ledger counts them (at each new window, and at the end).
    0x20 Counters(counters: Counters) => opens_file: false, is_total: true;

    /// What the recorder cost so far, beside each `Counters`. `ns`: time in hooks, without the
    /// driver's, of `calls` calls: one in `one_of` of each thread. `bytes` of records; different
    /// `stacks`.
    0x3F RecorderCost {
        calls: u64 = word,
        ns: u64 = word,
        one_of: u64 = word,
        bytes: u64 = word,
        stacks: u64 = word,
    } => opens_file: false, is_total: true;

    /// A checkpoint starts: the entries with this id are the live set at this place in the file.
    0x28 CheckpointBegin {
        id: u32 = small,
    } => opens_file: true, is_total: true;

    /// One live allocation of the checkpoint; `time_ns` is when it was made.
    0x29 CheckpointAlloc {
        id: u32 = small,
        time_ns: u64 = ticks,
        alloc: Alloc = inner,
    } => opens_file: true, is_total: true;

    0x2A CheckpointMap {
        id: u32 = small,
        address: u64 = word,
        size: u64 = word,
        offset: u64 = word,
        object: u64 = word,
        /// Whose bytes it brought back; 0 = it brought none back, they are the object's maker's.
        owner: StackId = high_added,
        /// The call that brought them back.
        stack: StackId = low,
    } => opens_file: true, is_total: true;

    /// A reservation; or (`asleep`) a part of one that was unmapped and may come back: `stack` is its
    /// owner's.
    0x3E CheckpointReserve {
        id: u32 = small,
        asleep: bool = small,
        device: DeviceId = word,
        address: u64 = word,
        size: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: true;

    0x2B CheckpointPool {
        id: u32 = small,
        pool: PoolId = word,
        reserved: u64 = word,
        used: u64 = word,
    } => opens_file: true, is_total: true;

    0x2C CheckpointGraph {
        id: u32 = small,
        device: DeviceId = small,
        reserved: u64 = word,
        used: u64 = word,
    } => opens_file: true, is_total: true;

    0x2D CheckpointContext {
        id: u32 = small,
        device: DeviceId = small,
        time_ns: u64 = ticks,
        context: ContextId = high,
        stack: StackId = low,
    } => opens_file: true, is_total: true;

    /// Since the start, of one (site, stack): calls, frees, requested bytes of all allocations.
    /// Several records with the same site and stack add up.
    0x2E CheckpointTotals {
        id: u32 = small,
        site: SiteId = high,
        stack: StackId = low,
        allocations: u64 = word,
        frees: u64 = word,
        bytes: u64 = word,
    } => opens_file: true, is_total: true;

    0x2F CheckpointCounters {
        id: u32 = small,
        counters: Counters = inner,
    } => opens_file: true, is_total: true;

    /// What the driver holds for itself, by the call that made it take it: `took.delta` is the sum.
    0x36 CheckpointTook {
        id: u32 = small,
        took: Took = inner,
    } => opens_file: true, is_total: true;

    /// Only a checkpoint with its end is usable.
    0x30 CheckpointEnd {
        id: u32 = small,
    } => opens_file: true, is_total: true;

    /// Full time, written when no event came for hours, so that 40-bit stamps unwrap.
    0x03 Anchor => opens_file: false, is_total: false;

    /// Recording stopped here; the cap goes on.
    0x38 Stopped {
        errno: i32 = small,
        reason: StopReason = small,
    } => opens_file: true, is_total: true;

    /// The process ended in order (exit handlers ran). Late frees may follow.
    0x39 Ended => opens_file: false, is_total: true;

    /// The ledger met something that should not be (an address allocated while live, ...).
    0x3A Drift {
        what: Drift = small,
        key: u64 = word,
    } => opens_file: false, is_total: false;

    /// The process ends. The records from here to `SummaryEnd` sum up all events before this one,
    /// so that a reader of many traces need not replay them.
    0x40 SummaryBegin {
        /// Requests on which a framework's cache gave up.
        cache_ooms: u32 = small,
    } => opens_file: false, is_total: true;

    /// The totals of one device at the end.
    0x41 SummaryDevice(counters: Counters) => opens_file: false, is_total: true;

    /// Physical bytes of one kind (`Kind as u8`): at the device's peak, and at the end.
    0x42 SummaryKind {
        device: DeviceId = small,
        kind: u8 = small,
        at_peak: u64 = word,
        live: u64 = word,
    } => opens_file: false, is_total: true;

    /// What one stack held of a device: one of the largest at that moment.
    0x43 SummaryHolder(holder: SummaryHolder) => opens_file: false, is_total: true;

    /// `records` stood between the begin and here. A summary that lacks one is none.
    0x44 SummaryEnd {
        records: u32 = small,
    } => opens_file: false, is_total: true;

    /// An allocation that stands for others: of allocations of this size one in `1/p` is recorded,
    /// with `p = 1 - exp(-size / rate)`. Readers count it `1/p` times in sums. `rate` is in bytes.
    0x45 SampledAlloc {
        rate: u64 = word,
        alloc: Alloc = inner,
    } => opens_file: true, is_total: false;

    /// One live sampled allocation of a checkpoint.
    0x46 CheckpointSampled {
        id: u32 = small,
        time_ns: u64 = ticks,
        rate: u64 = word,
        alloc: Alloc = inner,
    } => opens_file: true, is_total: true;

    /// The first call that failed after a refusal, and not by want of memory: a library that does
    /// not report a refusal leads its caller here.
    0x47 ErrorAfterRefusal {
        api: u16 = small,
        result: i32 = word,
    } => opens_file: false, is_total: true;

    /// What a process that was refused ended with, where that is not 0.
    0x48 ExitStatus {
        status: i32 = small,
    } => opens_file: false, is_total: true;

    /// A driver call that is counted, not followed: pass-through names (family L and unknown
    /// allocation-like ones). Written at most once per name.
    0x3B PassedThrough {
        api: u16 = small,
    } => opens_file: false, is_total: false;
}
