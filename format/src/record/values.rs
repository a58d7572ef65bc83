//! What events carry: structures with the places of their fields in a record (`wire.rs`), and
//! enumerations with the numbers that stand in the file.

use super::scalar::{Scalar, numbered_enum, scalar_enum};
use super::wire::{AnyFields, Fields, Get, Put, fields};
use crate::ids::{DeviceId, SiteId, StackId};
use crate::kind::Space;

fields! {
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Alloc {
        /// Address, or the number that stands for it in its [`Space`].
        key: u64 = word,
        space: Space = small,
        /// Requested bytes (real pitch x height for pitched; memory requirements for arrays).
        size: u64 = word,
        site: SiteId = high,
        stack: StackId = low,
    }
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

impl Fields for BlockChange {
    fn put(&self, to: &mut Put) {
        let (what, bytes): (u8, u64) = match *self {
            BlockChange::Requested(bytes) => (1, bytes),
            BlockChange::Pending => (2, 0),
            BlockChange::Reusable => (3, 0),
        };
        to.small(&what);
        to.word(&bytes);
    }

    fn get(from: &mut Get) -> Option<BlockChange> {
        let (what, bytes): (u8, u64) = (from.small()?, from.word()?);
        match what {
            1 => Some(BlockChange::Requested(bytes)),
            2 => Some(BlockChange::Pending),
            3 => Some(BlockChange::Reusable),
            _ => None,
        }
    }

    fn any<N: Iterator<Item = u64>>(numbers: &mut AnyFields<N>) -> BlockChange {
        match numbers.small::<u8>() % 3 {
            0 => BlockChange::Requested(numbers.word()),
            1 => BlockChange::Pending,
            _ => BlockChange::Reusable,
        }
    }
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

scalar_enum!(Mark, |value| Some(Mark::from_u8(value)));

fields! {
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Refused {
        site: SiteId = high,
        stack: StackId = low,
        /// What was asked for, as it would have been charged.
        size: u64 = word,
        /// The CUresult that the program got.
        result: i32 = small,
        by: RefusedBy = small,
        /// The ledger's count for the device at that moment.
        counted: u64 = word,
        /// The cap (0 = none).
        limit: u64 = word,
        /// The driver's own free bytes, as last seen (0 = not known).
        driver_free: u64 = word,
        /// The framework's totals at that moment; `None`: it says none, or an older writer.
        cache: Option<CacheBytes> = inner_if,
    }
}

fields! {
    /// A framework's own totals of a device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CacheBytes {
        /// In blocks.
        allocated: u64 = word,
        /// In the segments that the blocks lie in.
        reserved: u64 = word,
    }
}

impl CacheBytes {
    /// In the segments, and in no block.
    pub fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}

fields! {
    /// The figures of an out-of-memory that ends the program.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct PostMortem {
        device: DeviceId = small,
        /// Who refused; `None`: there was no refusal, the framework gave up at its own limit.
        by: Option<RefusedBy> = small,
        evidence: OomEvidence = small,
        stack: StackId = word,
        /// What was asked for: of the framework where it gave up, else of the driver.
        size: u64 = word,
        /// What `by` counted, and allowed (0 = none, or not known).
        counted: u64 = word,
        limit: u64 = word,
        /// The driver's own free bytes, as last seen.
        driver_free: Option<u64> = word_if,
        /// The longest run of free bytes inside the framework's segments; `None`: no framework's
        /// blocks were followed.
        largest_hole: Option<u64> = word_if,
        /// Refusals before these that the program lived with, since the last post-mortem.
        absorbed: u64 = word,
        cache: Option<CacheBytes> = inner_if,
    }
}

numbered_enum! {
    /// Why the recorder concludes that the program is out of memory, and not only refused once.
    pub enum OomEvidence {
        /// Its framework gave up on a request.
        FrameworkGaveUp = 1,
        /// It ended, and its last request had been refused.
        EndedRefused = 2,
        /// It was refused again after a second in which no request was granted.
        StillRefused = 3,
    }
}

numbered_enum! {
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
}

impl RefusedBy {
    /// The one name, for programs and people: JSON, exports, tables.
    pub fn name(self) -> &'static str {
        match self {
            RefusedBy::Driver => "driver",
            RefusedBy::Cap => "cap",
            RefusedBy::BadCap => "bad_cap",
            RefusedBy::Group => "group",
            RefusedBy::Warned => "warned",
        }
    }
}

/// `None` is 0, the others one more than their numbers.
impl Scalar for Option<RefusedBy> {
    const BITS: u32 = RefusedBy::BITS;

    fn to_bits(self) -> u64 {
        self.map_or(0, |by| by.to_bits() + 1)
    }

    fn from_bits(bits: u64) -> Option<Option<RefusedBy>> {
        match bits.checked_sub(1) {
            None => Some(None),
            Some(by) => RefusedBy::from_bits(by).map(Some),
        }
    }

    fn any(number: u64) -> Option<RefusedBy> {
        (number % 6 != 5).then(|| RefusedBy::any(number))
    }
}

fields! {
    /// Memory that the driver took past any allocation call, as NVML's figure showed it after a call
    /// that can make it do so.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Took {
        device: DeviceId = small,
        /// The call after which it showed.
        site: SiteId = high,
        stack: StackId = low,
        /// Bytes; below 0: given back.
        delta: i64 = word,
        cause: Cause = high,
        /// The kernel, variable or file that it was for: the id of a text; 0 = not known.
        name: u32 = low,
    }
}

/// What the driver takes memory for, for itself. Beside these stands what contexts took when they
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

scalar_enum!(Cause, |value| Some(Cause::from_u8(value)));

fields! {
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Sample {
        device: DeviceId = small,
        driver_free: Option<u64> = word_if,
        driver_total: Option<u64> = word_if,
        /// NVML's figure for this process on the device.
        process_bytes: Option<u64> = word_if,
        /// The part of it that contexts took, as measured when they were created.
        context_bytes: u64 = word,
    }
}

fields! {
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct Counters {
        device: u8 = small,
        /// Physical bytes of allocations, no context, no imports.
        live: u64 = word,
        peak: u64 = word,
        peak_time_ns: u64 = word,
        /// Requested bytes.
        live_requested: u64 = word,
        live_allocations: u64 = word,
        allocations: u64 = word,
        frees: u64 = word,
        refused_by_cap: u64 = word,
        refused_by_driver: u64 = word,
        /// What the cap counts: live + context + unattributed.
        counted: u64 = word,
        /// Requests that a cap which only warns would have refused. 0 in files that lack the word.
        warned: u64 = word_added,
    }
}

fields! {
    /// What one stack held of a device at one of two moments.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SummaryHolder {
        device: DeviceId = small,
        moment: SummaryMoment = small,
        /// A framework's blocks; else memory of the driver's.
        of_framework: bool = small,
        stack: StackId = word,
        /// Shares of physical memory; of blocks their size.
        bytes: u64 = word,
        count: u64 = word,
    }
}

numbered_enum! {
    /// Of which moment a summary's holder is.
    pub enum SummaryMoment {
        /// The device's highest peak.
        Peak = 1,
        End = 2,
    }
}

numbered_enum! {
    pub enum StopReason {
        DiskFull = 1,
        FileSizeLimit = 2,
        /// The descriptor no longer names our file: the host closed or reused it.
        DescriptorLost = 3,
        MapFailed = 4,
        WriteFailed = 5,
        Panic = 6,
        /// `VRAMTRACE_MAX` is reached and nothing may be erased: checkpoints and totals go on.
        CannotPunch = 7,
    }
}

numbered_enum! {
    pub enum Drift {
        /// Allocated again while live: the earlier one is ended.
        StillLive = 1,
        /// A counter would have gone below zero.
        Underflow = 2,
        /// Freed with success though never seen.
        UnknownFree = 3,
    }
}
