//! The result of the search: leaks with their evidence, and held memory that is no leak, as they stand in documents.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use vramtrace_format::{DeviceId, DriverCause, Header, StackId};

use super::growth::{Growth, KeptReason};
use crate::analysis::{Level, NamedStack, StackClassifier};
use crate::facts::{self, ProcessId};
use crate::replay::history::Sampled;
use crate::replay::{OffSpan, State};
use crate::trace::Definitions;
use crate::units::{count, seconds, several, size};

/// The kind of a leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Its live bytes grow until the end.
    #[default]
    Growing,
    /// Not freed where the process freed nearly all other memory at its end.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Leak {
    pub verdict: Verdict,
    pub level: Level,
    /// Ordinal as the process saw it; null: not known.
    #[serde(with = "facts::Ordinal")]
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
    /// When it began to grow. Null: the evidence is another one.
    #[serde(rename = "since_s", with = "facts::SecondsOrNull")]
    pub since_ns: Option<u64>,
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
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct DriverMemory {
    /// `graphs`, `streams`, `modules`, or `unattributed`: by no known call.
    #[serde(rename = "driver_memory", serialize_with = "cause_or_unattributed")]
    #[cfg_attr(feature = "schemas", schemars(with = "String"))]
    pub cause: Option<DriverCause>,
    /// Bytes of one executable graph.
    #[serde(rename = "each_bytes", skip_serializing_if = "Option::is_none")]
    pub each: Option<u64>,
}

fn cause_or_unattributed<S: Serializer>(
    cause: &Option<DriverCause>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.serialize_str(cause.map_or(UNATTRIBUTED, DriverCause::name))
}

const UNATTRIBUTED: &str = "unattributed";

impl DriverMemory {
    /// The name in JSON and text.
    pub fn name(&self) -> &'static str {
        self.cause.map_or(UNATTRIBUTED, DriverCause::name)
    }
}

impl Leak {
    /// A leak whose figures and names are to be filled in.
    pub(super) fn of(level: Level, device: DeviceId, stack: StackId) -> Leak {
        let stack = NamedStack::without_names(stack);
        Leak { level, device, stack, stacks: 1, ..Leak::default() }
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
            since_ns: self.growth.as_ref().map(|growth| from_ns + growth.first_ns),
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LeakReason {
    /// A trend of the live bytes.
    #[default]
    Trend,
    /// At its end the process freed the memory of `freed` of `held` stacks, and not of this one.
    OthersFreed { freed: u64, held: u64 },
    /// Executable graphs that were launched and kept: `same` have as many nodes as another one, `again` were launched
    /// after a later one was instantiated.
    GraphsKept { same: u64, again: u64 },
    /// The driver took memory so many times, at a steady pace.
    DriverTook { times: u64 },
}

/// Held memory that is no leak, by reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct KeptMemory {
    pub why: KeptReason,
    pub level: Level,
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    pub bytes: u64,
    pub count: u64,
    pub stacks: u64,
    #[serde(skip)]
    pub largest: NamedStack,
}

/// The pool of a framework whose blocks are not recorded, or the free part of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Pooled {
    pub library: String,
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    pub bytes: u64,
    /// It is the free memory in the pool. The blocks of the pool are judged one by one.
    pub free: bool,
    /// Not null: the pool grows. Without its blocks, a leak and fragmentation cannot be told apart.
    #[serde(rename = "rate_bytes_per_s")]
    pub rate: Option<f64>,
}

/// Leaks that match a rule of the suppressions file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Suppressed {
    /// Line of the suppressions file.
    pub line: usize,
    pub leaks: u64,
    pub bytes: u64,
}

/// The result for one trace: what it has beside leaks is the process in a document. Times are ns since the start of the
/// trace.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Leaks {
    #[serde(flatten, serialize_with = "facts::process")]
    #[cfg_attr(feature = "schemas", schemars(with = "ProcessId"))]
    pub header: Header,
    #[serde(serialize_with = "facts::path")]
    #[cfg_attr(feature = "schemas", schemars(with = "String"))]
    pub trace: PathBuf,
    pub running: bool,
    /// The observed time, in seconds since the trace began. Leaks are judged from the end of the
    /// warm-up on.
    #[serde(rename = "from_s", with = "facts::Seconds")]
    pub from_ns: u64,
    #[serde(rename = "warm_up_until_s", with = "facts::Seconds")]
    pub warm_ns: u64,
    #[serde(rename = "until_s", with = "facts::Seconds")]
    pub until_ns: u64,
    /// Earlier events are not in the file.
    pub beginning_lost: bool,
    /// The part of the time in which samples of the recorder stand for erased events; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Sampled>,
    /// When the recording was switched off; absent where it never was. Growth is judged from the last of these times on.
    #[serde(rename = "recording_off", skip_serializing_if = "Vec::is_empty")]
    pub off: Vec<OffSpan>,
    /// Why no growth was judged; absent where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_judged: Option<&'static str>,
    /// False: events are missing and no checkpoint follows.
    pub live_is_known: bool,
    /// Memory that is held and is no leak.
    pub kept: Vec<KeptMemory>,
    /// Pools of frameworks whose blocks are not known, and free memory in pools.
    pub pooled: Vec<Pooled>,
    /// Executable graphs are kept whose bytes cannot be told: NVML has no figure of the process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub driver_is_unknown: bool,
    /// Pinned memory of the host at the end, which is not judged; absent where there is none.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub host_pinned_bytes: u64,
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
    /// Growth was judged, and there is no sign of a leak.
    pub fn is_none(&self) -> bool {
        self.not_judged.is_none() && self.leaks.is_empty()
    }

    /// The leaks that count.
    pub fn sure(&self) -> impl Iterator<Item = &Leak> {
        self.leaks.iter().filter(|leak| leak.is_sure())
    }

    /// Keeps the results of some devices.
    pub fn retain(&mut self, wanted: impl Fn(DeviceId) -> bool) {
        self.leaks.retain(|leak| wanted(leak.device));
        self.peaks.retain(|device, _| wanted(*device));
        self.kept.retain(|kept| wanted(kept.device));
        self.pooled.retain(|pooled| wanted(pooled.device));
    }
}

/// How much more a device can give: bytes up to the cap or the card's end, whichever is nearer. `None`: neither is known.
pub(super) fn headroom(state: &State, definitions: &Definitions, device: DeviceId) -> Option<u64> {
    let sums = state.devices.get(&device)?;
    let used = sums.in_use().headline();
    // A cap that only warns refuses nothing. What others of a group hold is not known here: there
    // is no more than this.
    let cap = sums.cap_bytes.filter(|_| !sums.cap_only_warns);
    let caps = cap.into_iter().chain(sums.group_cap_bytes).map(|cap| cap.saturating_sub(used));
    // The driver's own figure knows of the other processes on the card.
    let sampled = sums.sample.and_then(|at| {
        let grown = sums.live_bytes.saturating_sub(at.live_bytes);
        Some(at.sample.driver_free?.saturating_sub(grown))
    });
    let known = definitions.device(device).filter(|device| device.total_bytes > 0);
    let total = known.map(|device| device.total_bytes.saturating_sub(used));
    let card = sampled.or(total);
    caps.chain(card).min()
}

/// The evidence for a leak as text, one line for each item.
fn evidence(leak: &Leak, from_ns: u64) -> Vec<String> {
    let calls = |allocations: u64, frees: u64| {
        format!("{}, {} freed", several(allocations, "allocation"), count(frees))
    };
    let mut lines = Vec::new();
    if let Some(growth) = &leak.growth {
        let (from, to) = (from_ns + growth.first_ns, from_ns + growth.last_ns);
        let points = if growth.troughs { "low points" } else { "moments" };
        lines.push(format!(
            "what it never gave back rose by {} from {} to {}: at {} of {} {points}, Kendall's \
             tau {:.2}",
            size(growth.risen),
            seconds(from),
            seconds(to),
            growth.rises,
            growth.points,
            growth.tau,
        ));
    }
    match leak.because {
        LeakReason::OthersFreed { freed, held } => lines.push(format!(
            "when the process ended it freed the memory of {freed} of {held} stacks that held some, not this"
        )),
        LeakReason::GraphsKept { same, again } => {
            let (kept, same) = (several(leak.count, "executable graph"), count(same));
            lines.push(format!(
                "{kept} kept, {same} with as many nodes as another; {} launched again after a later one was \
                 instantiated",
                if again == 0 { "none".to_string() } else { count(again) }
            ));
            let (made, gone) = (count(leak.allocations), count(leak.frees));
            lines.push(format!("{made} instantiated at a steady pace, {gone} destroyed"));
            return lines;
        }
        LeakReason::DriverTook { times } => {
            lines.push(match leak.driver.and_then(|driver| driver.cause) {
                Some(_) => format!("the driver took memory {} times, and gave none back", count(times)),
                None => "growth of NVML's figure that no allocation and no followed call explains".into(),
            });
            lines.push("as much in the last quarter of the time as before".into());
            return lines;
        }
        LeakReason::Trend => {}
    }
    lines.push(match leak.verdict {
        Verdict::FreedAtEnd => {
            format!(
                "{}, the grown part when the process ended",
                calls(leak.allocations, leak.frees)
            )
        }
        _ => calls(leak.allocations, leak.frees),
    });
    lines
}
