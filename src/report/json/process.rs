//! `report --json`: schema `vramtrace.report/3`. Keys may be added, none is renamed or removed.
//! Bytes are integers. Times are seconds since the start of the process's trace.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::{DeviceId, Kind, SummaryMoment};

use super::{Damage, ProcessHead};
use crate::analysis::engine_use::{EngineUse, engine_use};
use crate::analysis::fits::marked_batches;
use crate::analysis::oom::LimitFacts;
use crate::analysis::ranks::{
    Card, DeviceFigures, Imbalance, MergedHolder, ProcessFigures, cards, holders_of, imbalance,
    merge,
};
use crate::analysis::roles::{HeldByRole, Role};
use crate::analysis::steps::StepsFacts;
use crate::analysis::{
    GroupBy, Holder, Holding, Moment, Phase, Places, Process, SampledMoment, SampledPhase,
    SleepsFacts, TakenBy, Verdict, outliers, taken_by,
};
use crate::facts;
use crate::replay::history::Sampled;
use crate::replay::state::{HostSums, Inconsistencies};
use crate::replay::{DeviceState, KindSums, OffSpan, RecorderCost, RefusalAt, Sampling};
use crate::report::oom::FailureFacts;
use crate::report::text::engine::setting;
use crate::report::{WordedVerdict, wording};

pub const SCHEMA: &str = "vramtrace.report/3";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessesReport<'p> {
    /// The index of the process whose verdict is that of the run. Null: another moment than the end was requested.
    pub verdict_of: Option<usize>,
    pub processes: Vec<ProcessFacts<'p>>,
    /// Only of several processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessFacts<'p> {
    #[serde(flatten)]
    pub head: ProcessHead,
    /// What `vramtrace` says of it first. Null: another moment than the end was requested.
    pub verdict: Option<WordedVerdict>,
    /// The failures with which it ended.
    pub failures: Vec<FailureFacts>,
    /// The form of the file that it was imported from. Null: it was recorded.
    pub imported_from: Option<&'p str>,
    pub has_times: bool,
    pub has_stacks: bool,
    /// The name of the program.
    pub program: String,
    /// The size of the trace file, without erased windows (holes).
    pub trace_bytes: u64,
    pub command: Vec<String>,
    pub ended_in_order: bool,
    /// The process was running when the trace was read.
    pub running: bool,
    /// Earlier events are not in the file.
    pub history_from_s: f64,
    /// What the recorder's samples tell of the time before; absent where no events were erased, or there are no samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled_before: Option<Sampled>,
    /// False: events are missing and no complete checkpoint follows: live figures may be wrong.
    pub live_is_known: bool,
    pub stopped: Option<Stopped>,
    /// When the recording was switched off; absent where it never was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recording_off: Vec<OffSpan>,
    pub events: u64,
    /// What the recorder cost the process; absent where the trace does not contain it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorder: Option<RecorderCost>,
    /// Samples of PyTorch's blocks were recorded: holders of them are estimates. Absent where all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// What samples of the recorder say of the requested moment; absent where its events are in the file. Where it is
    /// there, the figures below are of the last known moment before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledMoment>,
    /// The moment of the figures below: the end, unless another was requested.
    pub at_s: f64,
    pub devices: Vec<DeviceFacts>,
    /// The batches that marks of the program name, as `batch=6`; absent where none does. `vramtrace fits` takes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marked_batches: Vec<u64>,
    pub host_pinned: HostSums,
    pub host_registered: HostSums,
    /// Why it is an outlier among the processes of the run. Null: it is none.
    pub odd: Option<String>,
    /// Contradictions between events; all 0 in a sound trace.
    pub inconsistencies: Inconsistencies,
    pub damage: Damage,
    /// With `--by step`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepsFacts<'p>>,
    /// With `--by phase`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<Phase>>,
    /// The same, of the time whose events were erased; absent where nothing is known of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases_before: Vec<PhasesBeforeFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stopped {
    pub at_s: f64,
    pub reason: String,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceFacts {
    #[serde(flatten)]
    pub figures: DeviceFigures,
    pub name: String,
    /// `refuse` or `warn`: what the cap does with a request that does not fit.
    pub cap_mode: &'static str,
    /// The soft limit, and how often the count passed it.
    pub cap_warn_bytes: Option<u64>,
    pub cap_warn_crossings: u64,
    /// The phases that were open at the peak, one for each thread that had one; absent where the recorder's history does not
    /// tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases_at_peak: Vec<SampledPhase>,
    pub process_bytes: Option<u64>,
    /// NVML's highest reading.
    pub peak_process_bytes: Option<u64>,
    pub live_allocations: u64,
    pub allocations: u64,
    pub frees: u64,
    /// How often PyTorch raised its out-of-memory error.
    pub oom_raised: u64,
    /// Requests that passed a cap which only warns.
    pub would_have_refused: u64,
    pub context_bytes: u64,
    /// Bytes that NVML shows beyond allocations and contexts.
    pub unattributed_bytes: Option<i64>,
    /// `unattributed_bytes` by what the driver allocated them for. The parts add up to it.
    pub driver_bytes: Option<BTreeMap<&'static str, i64>>,
    /// The lines of code whose calls made the driver allocate it, largest first.
    pub driver_bytes_by: Vec<TakenBy>,
    pub requested_live_bytes: u64,
    pub requested_peak_bytes: u64,
    /// The time of the last sample of NVML.
    pub process_sampled_at_s: Option<f64>,
    pub by_kind: BTreeMap<&'static str, KindFacts>,
    /// PyTorch's cache; absent where no blocks of it were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch: Option<super::torch::TorchFacts>,
    /// Memory that was unmapped and mapped again; absent where none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeps: Option<SleepsFacts>,
    /// The last refused requests.
    pub refusals: Vec<RefusalFacts>,
    /// The holders by line of code; absent where they were not computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders: Option<DeviceHolders>,
    /// What an inference engine got of the card; absent for other programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineUse>,
    /// Its setting in words; absent where null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_setting_text: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceHolders {
    pub at_peak: Vec<Holder>,
    pub live: Vec<Holder>,
    /// Bytes by role, largest first; absent where no blocks of a cache were recorded, and no engine is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles_at_peak: Option<Vec<RoleFacts>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoleFacts {
    #[cfg_attr(test, schemars(with = "String"))]
    pub role: Role,
    pub bytes: u64,
    pub count: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KindFacts {
    #[serde(flatten)]
    pub sums: KindSums,
    /// At the peak of the device; null where the events of that moment are missing.
    pub at_peak_bytes: Option<u64>,
    /// Pools and graphs: the part of their reserved bytes that was in use when the driver was asked
    /// last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RefusalFacts {
    pub at_s: f64,
    pub api: String,
    pub kind: Option<&'static str>,
    pub size_bytes: u64,
    #[serde(flatten)]
    pub limit: LimitFacts,
    pub result: i32,
}

/// The document. `top`: maximum number of entries in the lists of live allocations, holders and the driver's own
/// memory.
pub fn report(processes: &[Process], top: usize) -> ProcessesReport<'_> {
    let figures: Vec<ProcessFigures> = processes.iter().map(ProcessFigures::of).collect();
    let odd = outliers(&figures);
    let all = processes.iter().zip(figures).zip(odd);
    let facts = all.map(|((process, figures), odd)| process_facts(process, figures, odd, top));
    let facts: Vec<ProcessFacts> = facts.collect();
    let is_known = facts.iter().all(|of| of.verdict.is_some());
    let verdict_of = if is_known { Verdict::worst(processes) } else { None };
    ProcessesReport { verdict_of, processes: facts, run: None }
}

fn process_facts(
    process: &Process,
    figures: ProcessFigures,
    odd: Option<String>,
    top: usize,
) -> ProcessFacts<'_> {
    let header = &process.header;
    let state = &process.state;
    let mut sampled = process.sampled();
    for level in sampled.iter_mut().flat_map(|at| &mut at.devices).flat_map(|of| &mut of.levels) {
        level.holders.truncate(top);
    }
    ProcessFacts {
        sampled,
        head: ProcessHead::of(&figures),
        verdict: (process.moment == Moment::End).then(|| WordedVerdict::of(process)),
        failures: FailureFacts::of(process, process.fatal()),
        imported_from: process.definitions.imported_from(),
        has_times: process.definitions.has_times(),
        has_stacks: !process.definitions.stacks().is_empty(),
        program: Places::of(header).program().to_string(),
        trace_bytes: process.trace_bytes,
        command: header.command.clone(),
        ended_in_order: figures.ended_in_order,
        running: process.running,
        history_from_s: seconds(state.history_from_ns),
        sampled_before: process.erased_time(),
        live_is_known: figures.live_is_known,
        stopped: state
            .stopped
            .as_ref()
            .map(|stop| Stopped { at_s: seconds(stop.time_ns), reason: wording::stop_text(stop) }),
        recording_off: process.ending.off.clone(),
        events: process.ending.events,
        recorder: process.ending.recorder_cost,
        sampling: state.sampling,
        at_s: seconds(state.time_ns),
        devices: figures.devices.into_values().map(|of| device_facts(process, of, top)).collect(),
        marked_batches: marked_batches(&process.definitions),
        host_pinned: state.host_pinned,
        host_registered: state.host_registered,
        odd,
        inconsistencies: state.inconsistencies,
        damage: Damage::of(&process.damage),
        steps: None,
        phases: None,
        phases_before: Vec::new(),
    }
}

fn device_facts(process: &Process, figures: DeviceFigures, top: usize) -> DeviceFacts {
    let id = figures.id;
    let device = &process.state.devices[&id];
    let sum = device.measured();
    let sampled_peak = device.highest_reading().map(|(bytes, _)| bytes);
    let process_bytes = sum.and_then(|sum| sum.in_nvidia_smi());
    let refusals = process.state.last_refusals.iter().filter(|refusal| refusal.device == id);
    let names = process.classifier();
    DeviceFacts {
        name: wording::device_name(id, &process.definitions),
        cap_mode: if device.cap_only_warns { "warn" } else { "refuse" },
        cap_warn_bytes: device.soft_limit,
        cap_warn_crossings: device.soft_crossings,
        phases_at_peak: process.phases_at_peak(id, device),
        process_bytes,
        peak_process_bytes: sampled_peak.max(process_bytes).filter(|bytes| *bytes > 0),
        live_allocations: figures.live_allocations,
        allocations: figures.allocations,
        frees: figures.frees,
        oom_raised: device.cache.ooms,
        would_have_refused: device.warned,
        context_bytes: sum.map_or(device.context_bytes, |sum| sum.contexts),
        unattributed_bytes: sum.and_then(|sum| sum.unattributed),
        driver_bytes: sum.map(|sum| sum.driver_bytes_by_name()),
        driver_bytes_by: taken_by(device, &process.definitions, names.as_ref(), top),
        requested_live_bytes: device.requested_bytes,
        requested_peak_bytes: device.requested_peak_bytes,
        process_sampled_at_s: sum.and(device.sample).map(|at| seconds(at.time_ns)),
        by_kind: Kind::ALL
            .into_iter()
            .filter(|kind| kind.is_physical())
            .map(|kind| (kind.name(), kind_facts(device, kind)))
            .collect(),
        torch: super::torch::facts(process, id, device),
        sleeps: process.sleeps_of(id),
        refusals: refusals.map(|refusal| refusal_facts(process, refusal)).collect(),
        holders: process.who.as_ref().zip(names.as_ref()).map(|(who, classifier)| {
            let facts = |holdings| {
                let holders = classifier.holders(holdings, GroupBy::Line).into_iter();
                holders.filter(|holder| holder.device == id).take(top).collect()
            };
            let roles_at_peak = who.peak_roles.as_ref().map(|roles| roles_of(roles, id));
            DeviceHolders { at_peak: facts(&who.peak), live: facts(&who.live), roles_at_peak }
        }),
        engine: engine_use(process, id),
        engine_setting_text: setting(process, id),
        figures,
    }
}

/// Bytes by role on one device, largest first.
fn roles_of(roles: &HeldByRole, id: DeviceId) -> Vec<RoleFacts> {
    let fact =
        |(role, held): (Role, Holding)| RoleFacts { role, bytes: held.bytes, count: held.count };
    let mut roles: Vec<RoleFacts> = roles.of_device(id).into_iter().map(fact).collect();
    roles.sort_by_key(|of| std::cmp::Reverse(of.bytes));
    roles
}

fn kind_facts(device: &DeviceState, kind: Kind) -> KindFacts {
    KindFacts {
        sums: *device.kind(kind),
        at_peak_bytes: device.peak.offset.map(|_| device.peak.by_kind[kind as usize]),
        used_bytes: match kind {
            Kind::Pool => Some(device.kind(kind).requested_bytes),
            Kind::Graph => Some(device.graph_used),
            _ => None,
        },
    }
}

fn refusal_facts(process: &Process, at: &RefusalAt) -> RefusalFacts {
    let refused = &at.refused;
    RefusalFacts {
        at_s: seconds(at.time_ns),
        api: process.definitions.site_api_name(refused.site),
        kind: at.kind.map(|kind| kind.name()),
        size_bytes: refused.size,
        limit: LimitFacts::of(refused),
        result: refused.result,
    }
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A device in the time whose events were erased.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PhasesBeforeFacts {
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    /// By the recorder's history, which keeps four for a device in each part of the time; highest first.
    pub phases: Vec<SampledPhase>,
}

/// The value of `phases_before`.
pub fn phases_before(found: BTreeMap<DeviceId, Vec<SampledPhase>>) -> Vec<PhasesBeforeFacts> {
    let fact = |(device, phases)| PhasesBeforeFacts { device, phases };
    found.into_iter().map(fact).collect()
}

/// The key `run`, which describes several processes together.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunFacts {
    /// The fullest first.
    pub cards: Vec<Card>,
    /// Null: fewer than two processes used GPU memory.
    pub imbalance: Option<Imbalance>,
    /// The holders of all processes at the peaks of their devices.
    pub held_at_peaks: Vec<MergedHolder>,
    pub held_at_end: Vec<MergedHolder>,
}

/// The value of `run`. `top`: maximum number of holders at each moment. `None`: there are no ranks.
pub fn run_facts(ranks: &[ProcessFigures], top: usize) -> Option<RunFacts> {
    (!ranks.is_empty()).then(|| RunFacts {
        cards: cards(ranks),
        imbalance: imbalance(ranks),
        held_at_peaks: held(ranks, SummaryMoment::Peak, top),
        held_at_end: held(ranks, SummaryMoment::End, top),
    })
}

/// The merged holders of all processes at a moment.
fn held(ranks: &[ProcessFigures], moment: SummaryMoment, top: usize) -> Vec<MergedHolder> {
    let mut all = merge(&holders_of(ranks, moment), GroupBy::Line);
    all.truncate(top);
    all
}
