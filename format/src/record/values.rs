//! Values of events: structures with the places of their fields in a record (`wire.rs`), and enumerations with their
//! numbers in the file.

use super::event::Event;
use super::wire::{Fields, Get, Put, fields};
use super::word::whole_ticks;
use crate::ids::{DeviceId, SiteId, StackId};
use crate::kind::Space;
use crate::scalar::{Scalar, numbered_enum, optional_scalars};

fields! {
    /// An allocation.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Alloc {
        /// Address, handle or object number: unique within its [`Space`] while the allocation is live.
        key: u64 = word,
        space: Space = small,
        /// Requested bytes (pitched memory: pitch times height; arrays: the size in the memory requirements).
        size: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
        /// Of a framework's block: the bytes that its cache was asked for; 0: not known. `None`: as many as `size`, or,
        /// without [`BLOCK_REQUESTS`](crate::BLOCK_REQUESTS), not known. Blocks of 512 bytes serve smaller requests too.
        requested: Option<u64> = word_at_end,
    }
}

/// A detail of a framework's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockChange {
    /// The requested bytes of the block that was just allocated; its size is rounded up. 0: not known.
    Requested(u64),
    /// The block that was just freed waits until other streams have finished with it.
    Pending,
    /// It does not wait any more: the cache can reuse it.
    Reusable,
}

/// The two changes without bytes are the greatest numbers.
impl Scalar for BlockChange {
    const BITS: u32 = u64::BITS;

    fn to_bits(self) -> u64 {
        match self {
            BlockChange::Requested(bytes) => bytes,
            BlockChange::Pending => u64::MAX,
            BlockChange::Reusable => u64::MAX - 1,
        }
    }

    fn from_bits(bits: u64) -> Option<BlockChange> {
        let changes = [BlockChange::Pending, BlockChange::Reusable];
        changes
            .into_iter()
            .find(|change| change.to_bits() == bits)
            .or(Some(BlockChange::Requested(bits)))
    }
}

numbered_enum! {
    /// The kind of an NVTX call: nested ranges of a thread (push, pop), ranges that any thread may end (start, end), and
    /// marks.
    pub enum Mark else Moment {
        /// Ends the thread's innermost range.
        Pop = 0,
        /// Begins a nested range of the thread.
        Push = 1,
        /// Begins a range that is not nested.
        Start = 2,
        /// Ends the range with this name that was started last.
        End = 3,
        /// A point in time.
        Moment = 4,
    }
}

fields! {
    /// A request that got no memory, or that a cap only warned about.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Refused {
        site: SiteId = high,
        stack: StackId = low,
        /// Requested bytes, as the cap would have counted them.
        size: u64 = word,
        /// The CUresult that the call returned.
        result: i32 = small,
        by: RefusedBy = small,
        /// Bytes that the ledger counted for the device at that moment.
        counted: u64 = word,
        /// The cap in bytes (0 = none).
        limit: u64 = word,
        /// The driver's free bytes, from the last query (0 = not known).
        driver_free: u64 = word,
        /// The framework's totals at that moment. `None`: it reports none.
        cache: Option<CacheBytes> = inner_if,
    }
}

fields! {
    /// A framework's own totals of a device, in bytes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CacheBytes {
        /// In blocks.
        allocated: u64 = word,
        /// In the segments that the blocks lie in.
        reserved: u64 = word,
    }
}

impl CacheBytes {
    /// Bytes of the segments that are in no block.
    pub fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}

fields! {
    /// The figures of an out-of-memory from which the program does not recover. All sizes are in bytes.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct PostMortem {
        device: DeviceId = small,
        /// What refused the request. `None`: no call was refused; the framework reached its own limit.
        by: Option<RefusedBy> = small,
        evidence: OomEvidence = small,
        stack: StackId = word,
        /// The requested bytes: of the framework's cache if that could not serve the request, else of the driver.
        size: u64 = word,
        /// The bytes that `by` counted. `limit`: its limit (0 = none, or not known).
        counted: u64 = word,
        limit: u64 = word,
        /// The driver's free bytes, from the last query.
        driver_free: Option<u64> = word_if,
        /// The largest contiguous free range in the framework's segments. `None`: no framework's blocks were recorded.
        largest_hole: Option<u64> = word_if,
        /// Number of earlier refusals, since the last post-mortem, from which the program recovered.
        absorbed: u64 = word,
        cache: Option<CacheBytes> = inner_if,
    }
}

numbered_enum! {
    /// Why the recorder concludes that the program is out of memory, and has not recovered from the refusal.
    #[derive(Default)]
    pub enum OomEvidence {
        /// The framework's cache could not serve a request.
        FrameworkGaveUp = 1,
        /// The process ended, and its last request had been refused.
        #[default]
        EndedRefused = 2,
        /// A request was refused again after one second in which none was granted.
        StillRefused = 3,
    }
}

numbered_enum! {
    /// What refused a request.
    pub enum RefusedBy {
        /// Only out of memory (result 2) counts as a refusal; other results are failed calls.
        Driver = 0 => "driver",
        /// The cap of the process.
        Cap = 1 => "cap",
        /// The cap cannot be parsed: every request is refused.
        BadCap = 2 => "bad_cap",
        /// The cap that a group of processes shares; `counted` and `limit` are the group's.
        Group = 3 => "group",
        /// A cap that only warns: the request exceeded it and was granted (`result` 0).
        Warned = 4 => "warned",
    }
}

optional_scalars!(RefusedBy, DriverCause);

fields! {
    /// Memory that the driver allocated for its own use. It is the change in NVML's figure for the process after a
    /// call that can cause it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Took {
        device: DeviceId = small,
        /// The call after which NVML's figure had changed.
        site: SiteId = high,
        stack: StackId = low,
        /// Bytes; negative: freed.
        delta: i64 = word,
        cause: DriverCause = high,
        /// The kernel, variable or file for which it was allocated: the id of a text; 0 = not known.
        name: u32 = low,
    }
}

numbered_enum! {
    /// What the driver allocates memory for, in the order of reports. The memory of the creation of contexts is counted
    /// separately ([`Sample::context_bytes`]).
    pub enum DriverCause else Other {
        /// Loaded modules: code and variables.
        Modules = 1 => "modules",
        /// Local memory of kernel threads: spilled registers, arrays, the stack.
        LocalMemory = 2 => "local_memory",
        /// The heap for `malloc` in kernels.
        Heap = 3 => "heap",
        /// Streams and events.
        Streams = 4 => "streams",
        /// Executable graphs, without their memory nodes.
        Graphs = 5 => "graphs",
        /// Peer access, imports, multicast.
        Sharing = 6 => "sharing",
        /// Memory of a context, allocated after its creation.
        Context = 7 => "context",
        /// After calls of several kinds, or a call of another kind.
        Other = 0 => "other",
    }
}

/// The name of [`DriverCause`] in the public interface.
pub use DriverCause as Cause;

impl DriverCause {
    /// The name in text.
    pub fn words(self) -> &'static str {
        match self {
            DriverCause::LocalMemory => "local memory",
            _ => self.name(),
        }
    }
}

fields! {
    /// Figures of the driver and of NVML for a device, in bytes.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Sample {
        device: DeviceId = small,
        driver_free: Option<u64> = word_if,
        driver_total: Option<u64> = word_if,
        /// NVML's figure for this process on the device.
        process_bytes: Option<u64> = word_if,
        /// The part of it that contexts use, as measured when they were created.
        context_bytes: u64 = word,
    }
}

fields! {
    /// The ledger's totals of a device.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct Counters {
        device: u8 = small,
        /// Physical bytes of live allocations, without contexts and imported memory.
        live: u64 = word,
        /// The highest value of `live`, and its time in ns since start.
        peak: u64 = word,
        peak_time_ns: u64 = word,
        /// Requested bytes of live allocations.
        live_requested: u64 = word,
        live_allocations: u64 = word,
        allocations: u64 = word,
        frees: u64 = word,
        refused_by_cap: u64 = word,
        refused_by_driver: u64 = word,
        /// Bytes that the cap counts: live + context + unattributed.
        counted: u64 = word,
        /// Requests that exceeded a cap that only warns.
        warned: u64 = word,
    }
}

numbered_enum! {
    /// What a state is for.
    pub enum Purpose {
        /// All that is live, so that reading can begin here.
        Checkpoint = 1,
        /// Samples of the ledger, thinned. A later history replaces it.
        History = 2,
        /// The figures at the end of the process, so that a reader of many traces need not replay them.
        Summary = 3,
    }
}

/// An event in a state, with the time at which it happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Listed {
    /// The id of the state.
    pub state: u8,
    /// In whole ticks, as a stamp is, so that both compare equal.
    pub time_ns: u64,
    kind: u8,
    small: u16,
    len: u8,
    words: [u64; Listed::WORDS],
}

impl Listed {
    /// Greatest number of words of an event that may be listed, behind word 1.
    const WORDS: usize = 11;

    /// The small fields of the event have 16 bits at most.
    pub fn new(state: u8, time_ns: u64, event: &Event) -> Listed {
        let record = event.put().record;
        let body = record.body();
        debug_assert!(body.len() <= Listed::WORDS && record.small() <= u16::MAX.into());
        let mut words = [0; Listed::WORDS];
        words[..body.len()].copy_from_slice(body);
        let (small, len) = (record.small() as u16, body.len() as u8);
        Listed { state, time_ns: whole_ticks(time_ns), kind: record.kind, small, len, words }
    }

    /// The event; one that a reader passes over if it is of a newer writer.
    pub fn event(&self) -> Event {
        let mut from = Get::new(self.small.into(), &self.words[..self.len.into()]);
        Event::get(self.kind, &mut from).unwrap_or(Event::Anchor)
    }
}

impl Event {
    /// The event, or the one that it lists.
    pub fn itself(&self) -> Event {
        if let Event::StateEvent(listed) = self { listed.event() } else { *self }
    }
}

impl Fields for Listed {
    fn put(&self, to: &mut Put) {
        to.small(&self.state);
        to.small(&self.kind);
        to.small(&self.small);
        to.word(&self.time_ns);
        self.words[..self.len.into()].iter().for_each(|word| to.word(word));
    }

    fn get(from: &mut Get) -> Option<Listed> {
        let (state, kind, small) = (from.small()?, from.small()?, from.small()?);
        let (time_ns, mut words, mut len) = (from.word()?, [0; Listed::WORDS], 0);
        for (word, value) in words.iter_mut().zip(std::iter::from_fn(|| from.word())) {
            (*word, len) = (value, len + 1);
        }
        Some(Listed { state, time_ns, kind, small, len, words })
    }
}

fields! {
    /// The memory that one stack held on a device, or that the driver took for itself by its calls, at one of two moments.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StateHolder {
        device: DeviceId = small,
        moment: SummaryMoment = small,
        /// True: blocks of a framework. False: memory that the driver allocated.
        of_framework: bool = small,
        /// What the driver took it for. `None`: the program's memory.
        cause: Option<DriverCause> = small,
        stack: StackId = word,
        /// Bytes: shares of physical memory ([`crate::physical::share`]); for blocks, their sizes.
        bytes: u64 = word,
        /// Number of allocations, or of calls and names that the driver took it for ([`Took`]).
        count: u64 = word,
    }
}

numbered_enum! {
    /// What happened to an executable graph.
    pub enum GraphChange {
        /// It was instantiated: [`Event::GraphMade`] says so.
        Made = 0,
        /// Its first launch.
        Launched = 1,
        /// A launch after a later graph of the same stack, with as many nodes, was instantiated.
        LaunchedAgain = 2,
        /// It was destroyed, with its context or by a call.
        Ended = 3,
    }
}

fields! {
    /// How much memory was held for how long, by samples of what was allocated.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HeldBytes {
        device: DeviceId = small,
        /// Bytes times seconds.
        byte_s: u64 = word,
        /// What it may differ by, as far as the samples tell, and the highest bytes between them.
        error_byte_s: u64 = word,
    }
}

fields! {
    /// A part of the time, in the history. The figures of the bins of a tier are in the order of time.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HistoryBin {
        /// 0 the whole recording, 1 minutes, 2 seconds.
        tier: u8 = small,
        /// Samples in it.
        samples: u32 = small,
        /// Nanoseconds since the start.
        from_ns: u64 = word,
        until_ns: u64 = word,
    }
}

fields! {
    /// The figures of a device in a bin of the history.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HistoryDevice {
        device: DeviceId = small,
        /// The highest physical bytes in the bin, of all allocations.
        peak: u64 = word,
        /// Refused requests from the start to the end of the bin.
        refused_by_cap: u64 = word,
        refused_by_driver: u64 = word,
    }
}

fields! {
    /// The memory of one level of a device in a bin of the history, bytes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HistoryLevel {
        device: DeviceId = small,
        /// True: blocks of a framework. False: memory that the driver allocated.
        of_framework: bool = small,
        /// The lowest and the highest sample.
        lowest: u64 = word,
        highest: u64 = word,
        /// From the start to the end of the bin.
        allocations: u64 = word,
        frees: u64 = word,
        /// The stacks that have no record: their number, the sum of their lowest samples, their bytes at the highest
        /// sample of all, and the growth of their lowest samples since the bin before.
        other_stacks: u64 = word,
        other_lowest: u64 = word,
        other_highest: u64 = word,
        other_grew: i64 = word,
    }
}

fields! {
    /// A stack in a bin of the history.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HistoryHolder {
        /// The number of later bins of the tier in which its figures are the same. It has no record there.
        run: u8 = small,
        of_framework: bool = small,
        stack: StackId = high,
        device: DeviceId = low,
        /// Its lowest sample, bytes.
        lowest: u64 = word,
        /// Its bytes at the highest sample of its device and level; 0 also where they are among the others.
        highest: u64 = word,
    }
}

fields! {
    /// A phase in a bin of the history: ranges of one thread that are nested in each other, or a range of no thread.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HistoryPhase {
        device: DeviceId = small,
        /// How many of `names` there are: the outermost ranges, at most [`HistoryPhase::DEEPEST`]. 0: no range was open.
        depth: u8 = small,
        /// Ids of texts, from the outermost range inwards; 0: a range without a name.
        first: u32 = high,
        second: u32 = low,
        third: u32 = high,
        fourth: u32 = low,
        /// The highest physical bytes of the device while the last of the ranges was the innermost one.
        peak: u64 = word,
        /// When, since the start: at or after this time, and before the next mark or sample.
        at_ns: u64 = word,
        /// How long it was the innermost one in the bin, at least.
        open_ns: u64 = word,
    }
}

impl HistoryPhase {
    /// Ranges that are nested deeper count for the one around them.
    pub const DEEPEST: usize = 4;

    /// Ids of the names, from the outermost range inwards.
    pub fn names(&self) -> impl Iterator<Item = u32> {
        let all = [self.first, self.second, self.third, self.fourth];
        all.into_iter().take(usize::from(self.depth))
    }
}

numbered_enum! {
    /// The moment to which a holder of a summary refers.
    pub enum SummaryMoment {
        /// The device's highest peak.
        Peak = 1,
        /// The end of the process.
        End = 2,
    }
}

numbered_enum! {
    /// Why recording stopped.
    pub enum StopReason {
        DiskFull = 1,
        FileSizeLimit = 2,
        /// The file is gone from its directory.
        DescriptorLost = 3,
        MapFailed = 4,
        WriteFailed = 5,
        Panic = 6,
        /// `VRAMTRACE_MAX` is reached and windows cannot be erased. Checkpoints and totals are still written.
        CannotPunch = 7,
        /// The system makes no task to write the file with: a limit on threads, or a filter of system calls.
        NoTask = 8,
    }
}

numbered_enum! {
    /// What switches the recording off or on.
    pub enum SwitchedBy {
        /// `vramtrace record`.
        Order = 1,
        /// The file of the host or of the user ([`crate::host_switch`]).
        HostFile = 2,
        /// The end of the process: what is live then is recorded, although the recording was off.
        End = 3,
    }
}

numbered_enum! {
    /// An inconsistency in the ledger.
    pub enum Drift {
        /// An allocation at a live address: the earlier allocation is taken as freed.
        StillLive = 1,
        /// A counter would have become negative.
        Underflow = 2,
        /// A successful free of an allocation that was not recorded.
        UnknownFree = 3,
    }
}
