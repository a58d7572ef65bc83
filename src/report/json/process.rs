//! `report --json`: schema `vramtrace.report/2`. Keys may be added, none is renamed or removed.
//! Changed since version 1: `by` of a refusal has the names of [`vramtrace_format::RefusedBy`].
//! Bytes are integers. Times are seconds since the start of the process's trace.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use vramtrace_format::{DeviceId, Kind};

use super::in_use::InUseFacts;
use super::sampled::{SampledMomentFacts, facts as sampled_facts};
use crate::analysis::fits::marked_batches;
use crate::analysis::roles::{HeldByRole, Role};
use crate::analysis::{
    GroupBy, Held, Holder, Process, SampledPhase, StackClassifier, Standing, largest, outliers,
    reconcile,
};
use crate::replay::history::Sampled;
use crate::replay::state::HostSums;
use crate::replay::{DeviceState, OffSpan, RefusalAt};
use crate::report::wording;

pub const SCHEMA: &str = "vramtrace.report/2";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessesReport {
    pub schema: &'static str,
    pub processes: Vec<ProcessFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessFacts {
    pub pid: u32,
    pub host: String,
    pub trace: String,
    /// The size of the trace file, without erased windows (holes).
    pub trace_bytes: u64,
    pub command: Vec<String>,
    pub rank: Option<u32>,
    pub started: String,
    pub duration_s: f64,
    pub ended_in_order: bool,
    /// On one device or more, the last request of the run failed.
    pub ended_out_of_memory: bool,
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
    pub recorder: Option<RecorderFacts>,
    /// Samples of PyTorch's blocks were recorded: holders of them are estimates. Absent where all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingFacts>,
    /// What samples of the recorder say of the requested moment; absent where its events are in the file. Where it is
    /// there, the figures below are of the last known moment before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledMomentFacts>,
    /// The moment of the figures below: the end, unless another was requested.
    pub at_s: f64,
    pub devices: Vec<DeviceFacts>,
    /// The batches that marks of the program name, as `batch=6`; absent where none does. `vramtrace fits` takes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marked_batches: Vec<u64>,
    pub host_pinned: HostFacts,
    pub host_registered: HostFacts,
    /// Why it is an outlier among the processes of the run. Null: it is none.
    pub odd: Option<String>,
    /// Contradictions between events; all 0 in a sound trace.
    pub inconsistencies: InconsistencyFacts,
    pub damage: Damage,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SamplingFacts {
    /// Bytes of blocks for each sample on average: at the moment of the figures, at the start, and at most.
    pub rate_bytes: u64,
    pub least_rate_bytes: u64,
    pub highest_rate_bytes: u64,
    /// The recorder's share of the time of the program's threads when it was last measured (0: it was not yet), and the
    /// bound above which it takes fewer samples.
    pub cost_share: f64,
    pub bound_share: f64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecorderFacts {
    /// Time in the recorder's part of all calls, without the driver's part. It is estimated from
    /// `timed_calls`, which took `timed_s`: one call in `timed_one_of` is timed. Null where none was.
    pub in_calls_s: Option<f64>,
    pub timed_calls: u64,
    pub timed_s: f64,
    pub timed_one_of: u64,
    /// Bytes of records.
    pub written_bytes: u64,
    /// Distinct stacks.
    pub stacks: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InconsistencyFacts {
    /// Allocated again while live.
    pub replaced: u64,
    /// Freed though not known.
    pub unknown_frees: u64,
    /// The driver refused the free of an allocation that is not known.
    pub unknown_restores: u64,
    /// Without a known origin.
    pub unknown_sites: u64,
    /// PyTorch's blocks that were live when the memory below them was released.
    pub blocks_without_memory: u64,
    /// Inconsistencies that the recorder itself reported.
    // Keys of a schema are never renamed.
    pub told: u64,
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
    /// As the process saw it; null for memory whose device is not known.
    pub ordinal: Option<u8>,
    pub uuid: Option<String>,
    pub name: String,
    pub total_bytes: Option<u64>,
    pub cap_bytes: Option<u64>,
    /// `refuse` or `warn`: what the cap does with a request that does not fit.
    pub cap_mode: &'static str,
    /// The soft limit, and how often the count passed it.
    pub cap_warn_bytes: Option<u64>,
    pub cap_warn_crossings: u64,
    /// The cap for all processes of the group together.
    pub group_cap_bytes: Option<u64>,
    pub peak_bytes: u64,
    pub peak_at_s: f64,
    /// The phases that were open then, one for each thread that had one; absent where the recorder's history does not tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases_at_peak: Vec<SampledPhase>,
    /// The memory at that moment, split.
    pub in_use_at_peak: InUseFacts,
    pub live_bytes: u64,
    pub process_bytes: Option<u64>,
    /// NVML's highest reading.
    pub peak_process_bytes: Option<u64>,
    pub live_allocations: u64,
    pub allocations: u64,
    pub frees: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    /// How often PyTorch raised its out-of-memory error.
    pub oom_raised: u64,
    /// Refusals that PyTorch absorbed: it emptied its cache and asked again.
    pub refusals_recovered: u64,
    /// Requests that passed a cap which only warns.
    pub would_have_refused: u64,
    pub context_bytes: u64,
    /// Bytes that NVML shows beyond allocations and contexts.
    pub unattributed_bytes: Option<i64>,
    /// The part of `unattributed_bytes` that cuCtxSetLimit took: local memory of a larger stack, heaps.
    pub limit_bytes: Option<u64>,
    /// `unattributed_bytes` by what the driver allocated them for. The parts add up to it.
    pub driver_bytes: Option<BTreeMap<&'static str, i64>>,
    /// The lines of code whose calls made the driver allocate it, largest first.
    pub driver_bytes_by: Vec<super::driver_own::TakenFacts>,
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
    pub sleeps: Option<super::sleeps::SleepsFacts>,
    pub largest_live: Vec<LiveAllocationFacts>,
    /// The last refused requests.
    pub refusals: Vec<RefusalFacts>,
    /// The holders by line of code; absent where they were not computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders: Option<DeviceHolders>,
    /// What an inference engine got of the card; absent for other programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<super::engine::EngineFacts>,
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
    pub live_bytes: u64,
    /// The peak of this kind, at its own time.
    pub peak_bytes: u64,
    /// At the peak of the device; null where the events of that moment are missing.
    pub at_peak_bytes: Option<u64>,
    pub requested_live_bytes: u64,
    pub live_allocations: u64,
    pub allocations: u64,
    /// Pools and graphs: the part of their reserved bytes that was in use when the driver was asked
    /// last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LiveAllocationFacts {
    pub size_bytes: u64,
    pub kind: &'static str,
    pub api: String,
    pub allocated_at_s: f64,
    pub age_s: f64,
    pub pool: Option<u16>,
    pub stream: Option<u64>,
    pub key: String,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RefusalFacts {
    pub at_s: f64,
    pub api: String,
    pub kind: Option<&'static str>,
    pub size_bytes: u64,
    pub by: &'static str,
    pub result: i32,
    pub counted_bytes: u64,
    pub cap_bytes: Option<u64>,
    pub driver_free_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostFacts {
    pub live_bytes: u64,
    pub peak_bytes: u64,
    pub live_allocations: u64,
    pub allocations: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Damage {
    pub places: u64,
    pub bytes: u64,
    /// The first ten, as text.
    pub first: Vec<String>,
}

/// The document. `top`: the most entries of the lists of live allocations, holders and the driver's own
/// memory.
pub fn report(processes: &[Process], top: usize) -> ProcessesReport {
    let standings: Vec<Standing> = processes.iter().map(Standing::of).collect();
    let odd = outliers(&standings);
    let facts = processes.iter().zip(odd).map(|(process, odd)| process_facts(process, odd, top));
    ProcessesReport { schema: SCHEMA, processes: facts.collect() }
}

fn process_facts(process: &Process, odd: Option<String>, top: usize) -> ProcessFacts {
    let header = &process.header;
    let state = &process.state;
    ProcessFacts {
        sampled: process.sampled().map(|found| sampled_facts(process, &found, top)),
        pid: header.pid,
        host: header.host.clone(),
        trace: process.trace.to_string_lossy().into_owned(),
        trace_bytes: process.trace_bytes,
        command: header.command.clone(),
        rank: header.rank,
        started: started(header.start_unix_ns),
        duration_s: seconds(process.ending.last_ns),
        ended_in_order: process.ended_in_order(),
        ended_out_of_memory: !process.ended_out_of_memory().is_empty(),
        running: process.running,
        history_from_s: seconds(state.history_from_ns),
        sampled_before: process.erased_time(),
        live_is_known: state.live_is_known(),
        stopped: state
            .stopped
            .as_ref()
            .map(|stop| Stopped { at_s: seconds(stop.time_ns), reason: wording::stop_text(stop) }),
        recording_off: process.ending.off.clone(),
        events: process.ending.events,
        recorder: process.ending.recorder_cost.map(|cost| RecorderFacts {
            in_calls_s: (cost.calls > 0).then(|| seconds(cost.in_hooks_ns())),
            timed_calls: cost.calls,
            timed_s: seconds(cost.ns),
            timed_one_of: cost.one_of,
            written_bytes: cost.bytes,
            stacks: cost.stacks,
        }),
        sampling: state.sampling.map(|sampling| SamplingFacts {
            rate_bytes: sampling.rate,
            least_rate_bytes: sampling.least,
            highest_rate_bytes: sampling.most,
            cost_share: f64::from(sampling.cost) / 1e6,
            bound_share: f64::from(sampling.bound) / 1e6,
        }),
        at_s: seconds(state.time_ns),
        devices: process.devices().map(|(id, d)| device_facts(process, id, d, top)).collect(),
        marked_batches: marked_batches(&process.definitions),
        host_pinned: host_facts(&state.host_pinned),
        host_registered: host_facts(&state.host_registered),
        odd,
        inconsistencies: InconsistencyFacts {
            replaced: state.inconsistencies.replaced,
            unknown_frees: state.inconsistencies.unknown_frees,
            unknown_restores: state.inconsistencies.unknown_restores,
            unknown_sites: state.inconsistencies.unknown_sites,
            blocks_without_memory: state.inconsistencies.blocks_without_memory,
            told: state.inconsistencies.by_recorder,
        },
        damage: Damage {
            places: process.damage.ranges.len() as u64,
            bytes: process.damage.bytes(),
            first: process.damage.ranges.iter().take(10).map(|d| d.to_string()).collect(),
        },
    }
}

fn device_facts(process: &Process, id: DeviceId, device: &DeviceState, top: usize) -> DeviceFacts {
    let definition = process.definitions.device(id);
    let sum = reconcile(device);
    let sampled_peak = device.peak_sample.and_then(|at| at.sample.process_bytes);
    let process_bytes = sum.map(|sum| sum.process_bytes);
    let refusals = process.state.last_refusals.iter().filter(|refusal| refusal.device == id);
    DeviceFacts {
        ordinal: wording::ordinal(id),
        uuid: definition.map(|device| device.uuid_text()),
        name: wording::device_name(id, &process.definitions),
        total_bytes: definition.map(|device| device.total_bytes),
        cap_bytes: device.cap_bytes,
        cap_mode: if device.cap_only_warns { "warn" } else { "refuse" },
        cap_warn_bytes: device.soft_limit,
        cap_warn_crossings: device.soft_crossings,
        group_cap_bytes: device.group_cap_bytes,
        peak_bytes: device.peak.bytes,
        peak_at_s: seconds(device.peak.time_ns),
        phases_at_peak: process.phases_at_peak(id, device),
        in_use_at_peak: InUseFacts::of(&device.peak.in_use),
        live_bytes: device.live_bytes,
        process_bytes,
        peak_process_bytes: sampled_peak.max(process_bytes).filter(|bytes| *bytes > 0),
        live_allocations: device.live_allocations,
        allocations: device.allocations,
        frees: device.frees,
        refused_by_cap: device.refused_by_cap,
        refused_by_driver: device.refused_by_driver,
        oom_raised: device.cache.ooms,
        refusals_recovered: device.cache.refusals_recovered,
        would_have_refused: device.warned,
        context_bytes: sum.map_or(device.context_bytes, |sum| sum.context_bytes),
        unattributed_bytes: sum.map(|sum| sum.unattributed_bytes),
        limit_bytes: sum.map(|sum| sum.limit_bytes),
        driver_bytes: sum.map(|sum| super::driver_own::driver_bytes(&sum)),
        driver_bytes_by: super::driver_own::taken_facts(process, device, top),
        requested_live_bytes: device.requested_bytes,
        requested_peak_bytes: device.requested_peak_bytes,
        process_sampled_at_s: sum.map(|sum| seconds(sum.sampled_ns)),
        by_kind: Kind::ALL
            .into_iter()
            .filter(|kind| kind.is_physical())
            .map(|kind| (kind.name(), kind_facts(device, kind)))
            .collect(),
        torch: super::torch::facts(process, id, device),
        sleeps: super::sleeps::facts(process, id),
        largest_live: largest(&process.state.live, id, top)
            .into_iter()
            .map(|holder| {
                let live = holder.live;
                let site = process.definitions.site(live.site);
                LiveAllocationFacts {
                    size_bytes: live.size,
                    kind: live.kind.name(),
                    api: process.definitions.site_api_name(live.site),
                    allocated_at_s: seconds(live.time_ns),
                    age_s: seconds(process.state.time_ns.saturating_sub(live.time_ns)),
                    pool: (live.pool.0 != 0).then_some(live.pool.0),
                    stream: site.filter(|_| live.pool.0 != 0).map(|site| site.stream),
                    key: format!("{:#x}", holder.key.number),
                }
            })
            .collect(),
        refusals: refusals.map(|refusal| refusal_facts(process, refusal)).collect(),
        holders: process.who.as_ref().map(|who| {
            let classifier = StackClassifier::new(&who.symbols, &process.header);
            let facts = |holdings| {
                let holders = classifier.holders(holdings, GroupBy::Line).into_iter();
                holders.filter(|holder| holder.device == id).take(top).collect()
            };
            let roles_at_peak = who.peak_roles.as_ref().map(|roles| roles_of(roles, id));
            DeviceHolders { at_peak: facts(&who.peak), live: facts(&who.live), roles_at_peak }
        }),
        engine: super::engine::facts(process, id),
    }
}

/// Bytes by role on one device, largest first.
fn roles_of(roles: &HeldByRole, id: DeviceId) -> Vec<RoleFacts> {
    let fact =
        |(role, held): (Role, Held)| RoleFacts { role, bytes: held.bytes, count: held.count };
    let mut roles: Vec<RoleFacts> = roles.of_device(id).into_iter().map(fact).collect();
    roles.sort_by_key(|of| std::cmp::Reverse(of.bytes));
    roles
}

fn kind_facts(device: &DeviceState, kind: Kind) -> KindFacts {
    let sums = device.kind(kind);
    KindFacts {
        live_bytes: sums.live_bytes,
        peak_bytes: sums.peak_bytes,
        at_peak_bytes: device.peak.offset.map(|_| device.peak.by_kind[kind as usize]),
        requested_live_bytes: sums.requested_bytes,
        live_allocations: sums.live_allocations,
        allocations: sums.allocations,
        used_bytes: match kind {
            Kind::Pool => Some(device.pool_used),
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
        by: refused.by.name(),
        result: refused.result,
        counted_bytes: refused.counted,
        cap_bytes: (refused.limit > 0).then_some(refused.limit),
        driver_free_bytes: (refused.driver_free > 0).then_some(refused.driver_free),
    }
}

fn host_facts(sums: &HostSums) -> HostFacts {
    HostFacts {
        live_bytes: sums.live_bytes,
        peak_bytes: sums.peak_bytes,
        live_allocations: sums.live_allocations,
        allocations: sums.allocations,
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A time in RFC 3339, UTC.
fn started(unix_ns: u64) -> String {
    Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default().to_string()
}
