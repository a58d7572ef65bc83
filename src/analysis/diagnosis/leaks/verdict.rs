//! The result of the search: leaks with their evidence, and held memory that is no leak, as they stand in documents.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use vramtrace_format::{Cause, DeviceId, Header, StackId};

use super::evidence::evidence;
use super::growth::{Growth, KeptReason};
use crate::analysis::{Level, NamedStack, StackClassifier};
use crate::facts::{self, ProcessId};
use crate::replay::OffSpan;
use crate::replay::history::Sampled;

/// The kind of a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Leak {
    pub verdict: Verdict,
    pub level: Level,
    /// Ordinal as the process saw it; null: not known.
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: DeviceId,
    /// Live at the end; for `freed_at_end`, before that.
    pub bytes: u64,
    /// The standard error of `bytes`, which samples of blocks estimate; absent where they are exact.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub error_bytes: u64,
    /// Of samples of blocks those that were recorded; so are `allocations` and `frees`.
    pub count: u64,
    /// While it grew.
    #[serde(rename = "rate_bytes_per_s")]
    pub rate: Option<f64>,
    /// It is memory that the driver holds for itself.
    #[serde(flatten)]
    pub driver: Option<DriverMemory>,
    /// From the end of the trace until this leak alone fills the cap or the card.
    pub exhausted_in_s: Option<f64>,
    /// 0 to 1. 0.5 and more counts as a leak.
    #[serde(serialize_with = "facts::thousandths")]
    pub confidence: f64,
    #[serde(flatten)]
    pub stack: NamedStack,
    pub library: Option<String>,
    /// Distinct stacks that are part of it. The frames are those of the largest.
    pub stacks: u64,
    pub allocations: u64,
    pub frees: u64,
    pub evidence: Vec<String>,
    /// Lowest live bytes in equal parts of the time from `from_s` on.
    pub shape: Vec<u64>,
    #[serde(flatten)]
    pub process: ProcessId,
    /// The trend. `None`: the evidence is another one, see `because`.
    #[serde(skip)]
    pub growth: Option<Growth>,
    #[serde(skip)]
    pub because: LeakReason,
}

/// Memory that the driver holds for itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DriverMemory {
    /// `graphs`, `streams`, `modules`, or `unattributed`: by no known call.
    #[serde(rename = "driver_memory", serialize_with = "cause_or_unattributed")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub cause: Option<Cause>,
    /// Bytes of one executable graph.
    #[serde(rename = "each_bytes", skip_serializing_if = "Option::is_none")]
    pub each: Option<u64>,
}

fn cause_or_unattributed<S: Serializer>(cause: &Option<Cause>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(cause.map_or(UNATTRIBUTED, Cause::name))
}

const UNATTRIBUTED: &str = "unattributed";

impl DriverMemory {
    /// The name in JSON and text.
    pub fn name(&self) -> &'static str {
        self.cause.map_or(UNATTRIBUTED, Cause::name)
    }
}

/// Executable graphs that are kept, and are no leak.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptGraphs {
    pub why: KeptGraphsReason,
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: DeviceId,
    pub bytes: u64,
    pub graphs: u64,
    #[serde(skip)]
    pub stack: NamedStack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeptGraphsReason {
    /// New ones are instantiated still; too few, too quick, or fewer and fewer.
    Filling,
    /// No new ones.
    Stopped,
    /// They are launched again.
    Reused,
}

impl Leak {
    /// A leak whose figures and names are to be filled in.
    pub(super) fn of(level: Level, device: DeviceId, stack: StackId) -> Leak {
        Leak {
            verdict: Verdict::Growing,
            level,
            device,
            bytes: 0,
            error_bytes: 0,
            count: 0,
            rate: None,
            driver: None,
            exhausted_in_s: None,
            confidence: 0.0,
            stack: NamedStack::without_names(stack),
            library: None,
            stacks: 1,
            allocations: 0,
            frees: 0,
            evidence: Vec::new(),
            shape: Vec::new(),
            process: ProcessId::default(),
            growth: None,
            because: LeakReason::Trend,
        }
    }

    /// Fills in the time until this many bytes are taken, if it grows.
    pub(super) fn with_room(mut self, room: Option<u64>) -> Leak {
        let rate = self.rate.filter(|rate| self.verdict == Verdict::Growing && *rate > 0.0);
        self.exhausted_in_s = room.zip(rate).map(|(room, rate)| room as f64 / rate);
        self
    }

    /// Fills in the names. `from_ns`: see [`Leaks::from_ns`].
    pub(super) fn named(self, classifier: &StackClassifier, from_ns: u64) -> Leak {
        let library = classifier.library_at(self.stack.id, self.level);
        let evidence = evidence(&self, from_ns);
        Leak {
            stack: classifier.named(self.stack.id),
            process: classifier.process,
            library,
            evidence,
            ..self
        }
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
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptMemory {
    pub why: KeptReason,
    pub level: Level,
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: DeviceId,
    pub bytes: u64,
    pub count: u64,
    pub stacks: u64,
    #[serde(skip)]
    pub largest: NamedStack,
}

/// The pool of a framework whose blocks are not recorded, or the free part of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pooled {
    pub library: String,
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: DeviceId,
    pub bytes: u64,
    /// It is the free memory in the pool. The blocks of the pool are judged one by one.
    pub free: bool,
    /// Not null: the pool grows. Without its blocks, a leak and fragmentation cannot be told apart.
    #[serde(rename = "rate_bytes_per_s")]
    pub rate: Option<f64>,
}

/// A pool of the program that keeps ever larger pieces, and is no leak.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LargerPieces {
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: DeviceId,
    pub bytes: u64,
    pub pieces: u64,
    /// Bytes if each piece that is too small were freed before a larger one is allocated.
    pub exact_bytes: u64,
    #[serde(rename = "rate_bytes_per_s")]
    pub rate: Option<f64>,
    /// The stack that holds the most of it.
    #[serde(flatten)]
    pub stack: NamedStack,
    pub library: Option<String>,
}

/// Leaks that match a rule of the suppressions file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Suppressed {
    /// Line of the suppressions file.
    pub line: usize,
    pub leaks: u64,
    pub bytes: u64,
}

/// The result for one trace: what it has beside leaks is the process in a document. Times are ns since the start of the
/// trace.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Leaks {
    #[serde(flatten, serialize_with = "facts::process")]
    #[cfg_attr(test, schemars(with = "ProcessId"))]
    pub header: Header,
    #[serde(serialize_with = "facts::path")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub trace: PathBuf,
    pub running: bool,
    /// The observed time, in seconds since the trace began. Leaks are judged from the end of the
    /// warm-up on.
    #[serde(rename = "from_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub from_ns: u64,
    #[serde(rename = "warm_up_until_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub warm_ns: u64,
    #[serde(rename = "until_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub until_ns: u64,
    /// Earlier events are not in the file.
    pub beginning_lost: bool,
    /// The part of the time in which samples of the recorder stand for erased events; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Sampled>,
    /// When the recording was switched off; absent where it never was. Growth is judged from the last of these times on.
    #[serde(rename = "recording_off", skip_serializing_if = "Vec::is_empty")]
    pub off: Vec<OffSpan>,
    /// False: events are missing and no checkpoint follows.
    pub live_is_known: bool,
    /// Memory that is held and is no leak.
    pub kept: Vec<KeptMemory>,
    /// Pools of frameworks whose blocks are not known, and free memory in pools.
    pub pooled: Vec<Pooled>,
    /// Executable graphs that are kept, and are no leak.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_by_driver: Vec<KeptGraphs>,
    /// Executable graphs are kept whose bytes cannot be told: NVML has no figure of the process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub driver_is_unknown: bool,
    /// Pools of the program that keep ever larger pieces, and are no leak.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub larger_pieces: Vec<LargerPieces>,
    pub suppressed: Vec<Suppressed>,
    /// Leaks before faint signs, then by verdict, then by bytes.
    #[serde(skip)]
    pub leaks: Vec<Leak>,
    /// The peak of each device.
    #[serde(skip)]
    pub peaks: BTreeMap<DeviceId, u64>,
    /// Samples of PyTorch's blocks stand for all.
    #[serde(skip)]
    pub samples_blocks: bool,
    #[serde(skip)]
    pub has_stacks: bool,
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
