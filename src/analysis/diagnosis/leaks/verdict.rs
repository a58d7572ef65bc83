//! The result of the search: leaks with their evidence, and held memory that is no leak. Sizes are bytes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vramtrace_format::{Cause, DeviceId, Header, StackId};

use super::growth::{Growth, KeptReason};
use crate::analysis::Level;
use crate::replay::OffSpan;
use crate::replay::history::Sampled;
use crate::symbols::Symbols;
use crate::trace::Definitions;

/// The kind of a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Its live bytes grow until the end.
    Growing,
    /// Allocated several times and never freed, or not freed where nearly all other memory was.
    NeverFreed,
    /// It grew, and was freed when the process ended.
    FreedAtEnd,
}

impl Verdict {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Growing => "growing",
            Verdict::NeverFreed => "never_freed",
            Verdict::FreedAtEnd => "freed_at_end",
        }
    }
}

/// A stack on a device that leaks, with the evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    pub verdict: Verdict,
    pub level: Level,
    pub device: DeviceId,
    /// The stack that holds the most of it.
    pub stack: StackId,
    /// Number of stacks of the same line that are counted together.
    pub stacks: u64,
    /// Live bytes at the end; for `FreedAtEnd`, before the frees at the end.
    pub bytes: u64,
    /// The standard error of `bytes`, where samples of blocks estimate them; else 0.
    pub error: u64,
    /// Of samples those that were recorded; so are the numbers of allocations and frees.
    pub count: u64,
    pub allocations: u64,
    pub frees: u64,
    /// From 0 to 1. 0.5 and more counts as a leak.
    pub confidence: f64,
    /// The trend. `None`: the evidence is another one, see `because`.
    pub growth: Option<Growth>,
    /// Seconds after the end until the cap or the card is full, at this rate alone.
    pub exhausted_in_s: Option<f64>,
    /// Lowest live bytes in each bin of time.
    pub shape: Vec<u64>,
    pub because: LeakReason,
    /// It is memory that the driver holds for itself.
    pub driver: Option<DriverMemory>,
}

/// Memory that the driver holds for itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriverMemory {
    /// `None`: not attributed to any call.
    pub cause: Option<Cause>,
    /// Bytes of one executable graph.
    pub each: Option<u64>,
    pub bytes_per_second: f64,
}

impl DriverMemory {
    /// The name in JSON and text.
    pub fn name(&self) -> &'static str {
        self.cause.map_or("unattributed", Cause::name)
    }
}

/// Executable graphs that are kept, and are no leak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldByDriver {
    pub device: DeviceId,
    pub stack: StackId,
    pub bytes: u64,
    pub graphs: u64,
    pub why: HeldReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldReason {
    /// New ones are instantiated still; too few, too quick, or fewer and fewer.
    Filling,
    /// No new ones.
    Stopped,
    /// They are launched again.
    Reused,
}

impl HeldReason {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            HeldReason::Filling => "filling",
            HeldReason::Stopped => "stopped",
            HeldReason::Reused => "reused",
        }
    }
}

impl Leak {
    /// Bytes per second, while it grew.
    pub fn rate(&self) -> Option<f64> {
        let driver = self.driver.map(|driver| driver.bytes_per_second);
        driver.or(self.growth.as_ref().map(|growth| growth.bytes_per_second))
    }

    /// Whether it counts as a leak. Others are listed as faint signs, and fail no run.
    pub fn is_sure(&self) -> bool {
        self.confidence >= SURE
    }

    /// Whether a run fails by it that must not leak so many bytes. `None`: it may leak.
    pub fn fails(&self, least: Option<u64>) -> bool {
        least.is_some_and(|least| self.bytes >= least) && self.is_sure()
    }
}

/// The least confidence of what counts as a leak.
const SURE: f64 = 0.5;

/// The evidence of a leak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LeakReason {
    /// A trend of the live bytes.
    Trend,
    /// A few allocations spread over the run, none freed.
    NoneFreed,
    /// At each of `sleeps` sleeps it held more than at the previous one.
    Sleeps { sleeps: u64, bytes_a_sleep: u64 },
    /// At its end the process freed the memory of `freed` of `held` stacks, and not of this one.
    OthersFreed { freed: u64, held: u64 },
    /// Executable graphs that were launched and kept: `same` have as many nodes as another one, `again` were launched
    /// after a later one was instantiated.
    GraphsKept { same: u64, again: u64 },
    /// The driver took memory so many times, at a steady pace, and gave none back.
    DriverTook { times: u64 },
}

/// Held memory that is no leak, by reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub device: DeviceId,
    pub level: Level,
    pub why: KeptReason,
    pub bytes: u64,
    pub count: u64,
    pub stacks: u64,
    pub largest: StackId,
}

/// The pool of a framework whose blocks are not recorded, or the free part of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    pub device: DeviceId,
    pub library: String,
    pub bytes: u64,
    /// `Some`: it grows. Without its blocks, a leak and fragmentation cannot be told apart.
    pub bytes_per_second: Option<f64>,
    /// It is the free part of a pool whose blocks are known.
    pub free: bool,
}

/// Pieces of an allocator of the program, each larger than the earlier ones, which are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct LargerPieces {
    pub device: DeviceId,
    /// The stack that holds the most of it.
    pub stack: StackId,
    pub bytes: u64,
    pub pieces: u64,
    /// Bytes of the largest pieces alone: what an allocator takes that frees a piece which is too small before it
    /// allocates a larger one.
    pub exact_bytes: u64,
    pub bytes_per_second: Option<f64>,
}

/// Leaks that match a rule of the suppressions file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// Line of the rule.
    pub line: usize,
    pub leaks: u64,
    pub bytes: u64,
}

/// The result for one trace. Times are ns since the start of the trace.
#[derive(Clone, Debug)]
pub struct Leaks {
    pub trace: PathBuf,
    pub header: Header,
    pub running: bool,
    pub definitions: Definitions,
    /// Begin of the observation: the first allocation, or the checkpoint where the history begins.
    pub from_ns: u64,
    /// Earlier events are not in the file.
    pub beginning_lost: bool,
    /// The part of the time that is known by samples of the recorder.
    pub sampled: Option<Sampled>,
    /// When the recording was switched off. Growth is judged from the last of these times on.
    pub off: Vec<OffSpan>,
    /// False: events are missing and no checkpoint follows.
    pub live_is_known: bool,
    /// End of the warm-up.
    pub warm_ns: u64,
    pub until_ns: u64,
    /// Leaks before faint signs, then by verdict, then by bytes.
    pub leaks: Vec<Leak>,
    /// The peak of each device.
    pub peaks: BTreeMap<DeviceId, u64>,
    pub kept: Vec<Kept>,
    pub pooled: Vec<Pooled>,
    pub held_by_driver: Vec<HeldByDriver>,
    /// Executable graphs are kept, and NVML has no figure of the process: their bytes are not known.
    pub driver_is_unknown: bool,
    pub larger_pieces: Vec<LargerPieces>,
    pub suppressed: Vec<Suppressed>,
    pub symbols: Symbols,
}

impl Leaks {
    /// Keeps the results of some devices.
    pub fn retain(&mut self, wanted: impl Fn(DeviceId) -> bool) {
        self.leaks.retain(|leak| wanted(leak.device));
        self.peaks.retain(|device, _| wanted(*device));
        self.kept.retain(|kept| wanted(kept.device));
        self.pooled.retain(|pooled| wanted(pooled.device));
        self.held_by_driver.retain(|held| wanted(held.device));
        self.larger_pieces.retain(|of| wanted(of.device));
    }
}
