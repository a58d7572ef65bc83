//! The processes of a run, with the figures that a report of all of them prints. A figure comes from the
//! summary that a process wrote at its end. It comes from a replay by the same rules
//! ([`vramtrace_format::summary`]) where the trace has no summary (the process was killed, or unmapped
//! memory), where requests were refused (only the events have the reason), where processes share a card at
//! the same time (the sum of the card needs every moment), or where more stacks held memory than a summary
//! lists, unless the run's traces are larger than [`SHORT_RUN`].

mod cards;
mod held;
mod merged;
mod reading;
#[cfg(test)]
mod tests;
mod unlike;

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustc_hash::FxHashSet;
use serde::Serialize;
use vramtrace_format::summary::{HOLDERS, is_held};
use vramtrace_format::{
    Counters, DeviceId, DriverCause, Header, Kind, StackId, StateHolder, SummaryMoment,
};

use crate::analysis::{Collect, Curve, Moment, Process};
use crate::facts;
use crate::replay::{BytesByKind, DeviceState, InUse, Observer, State};
use crate::symbols::{FREE_CACHE, Symbols};
use crate::trace::{Definitions, DeviceInfo, DeviceSummary, EndSummary, Trace, process_name};

pub use cards::{Card, cards};
pub use held::holdings as held_at;
pub use merged::{HeldByProcess, MergedHolder, MergedLeak, holders_of, merge, merge_leaks};
pub use reading::{read, read_within};
pub use unlike::{Failed, Guests, Imbalance, ProcessEnd, failed, guests, imbalance, outliers};

/// One process of a run.
#[derive(Clone, Debug, Default)]
pub struct ProcessFigures {
    pub trace: PathBuf,
    pub header: Header,
    /// The process was running when the trace was opened.
    pub running: bool,
    pub ended_in_order: bool,
    /// `None`: not recorded.
    pub exit_status: Option<i32>,
    /// How it ended, by `vramtrace run`.
    pub seen: Option<String>,
    /// When the request for memory failed with which the run ended; of several devices the first.
    pub failed_ns: Option<u64>,
    /// Recording stopped before the process did.
    pub stopped: bool,
    /// False: events are missing and no checkpoint says what is live.
    pub live_is_known: bool,
    /// Time of the last event.
    pub last_ns: u64,
    /// Where the figures come from.
    pub source: FiguresSource,
    /// The devices that the process used, the unknown one last.
    pub devices: BTreeMap<DeviceId, DeviceFigures>,
    /// Names of the holders' stacks.
    pub symbols: Symbols,
    /// Stacks whose memory is a framework's segments, in a recording of another tool.
    pub segments: FxHashSet<(DeviceId, StackId)>,
}

/// Where the figures of a process come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FiguresSource {
    /// A replay of all events.
    #[default]
    Events,
    /// The summary at the end of the trace.
    Summary,
    /// The last totals that the recorder wrote: holders are not known, nor whether the run ended out of memory.
    Totals,
}

/// What the figures of a process lack that its events tell: some figures, or the smaller holders alone.
#[derive(Clone, Copy, Debug)]
struct Lack {
    events: bool,
    holders: bool,
}

/// The figures of a process on one device.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct DeviceFigures {
    /// As the process saw it; null for memory whose device is not known.
    #[serde(rename = "device", with = "facts::Ordinal")]
    pub id: DeviceId,
    pub uuid: Option<String>,
    pub total_bytes: Option<u64>,
    pub cap_bytes: Option<u64>,
    /// The cap for all processes of the group together.
    pub group_cap_bytes: Option<u64>,
    /// The headline of `in_use_at_peak`.
    pub peak_bytes: u64,
    /// Time of the peak, ns since the start of the trace.
    #[serde(rename = "peak_at_s", with = "facts::Seconds")]
    pub peak_ns: u64,
    pub live_bytes: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    /// `None`: the trace does not describe it.
    #[serde(skip)]
    pub info: Option<DeviceInfo>,
    /// All memory of the process at the peak, split. Of a process that was not read in full: without the split of a
    /// framework's cache; of one without a summary, allocations alone.
    #[cfg_attr(feature = "schemas", schemars(with = "crate::replay::InUseFacts"))]
    pub in_use_at_peak: InUse,
    #[serde(skip)]
    pub peak_by_kind: BytesByKind,
    #[serde(skip)]
    pub live_by_kind: BytesByKind,
    #[serde(skip)]
    pub live_allocations: u64,
    #[serde(skip)]
    pub allocations: u64,
    #[serde(skip)]
    pub frees: u64,
    /// The holders at the peak and at the end, at both levels and of what the driver took for itself, largest first; of a
    /// summary the largest.
    #[serde(skip)]
    pub holders: Vec<StateHolder>,
    /// GiB-hours, and what they may differ by. `None`: not known.
    #[serde(skip)]
    pub held_gib_hours: Option<[f64; 2]>,
    /// The live bytes at every moment, where processes share the device.
    #[serde(skip)]
    pub(super) moments: Option<Curve>,
}

impl DeviceFigures {
    pub fn refused(&self) -> u64 {
        self.refused_by_cap.saturating_add(self.refused_by_driver)
    }

    fn of(id: DeviceId, definitions: &Definitions) -> DeviceFigures {
        let info = definitions.device(id).cloned();
        DeviceFigures {
            id,
            uuid: info.as_ref().map(DeviceInfo::uuid_text),
            total_bytes: info.as_ref().map(|info| info.total_bytes),
            info,
            ..DeviceFigures::default()
        }
    }

    /// By the recorder's totals.
    fn of_counters(id: DeviceId, counters: &Counters, definitions: &Definitions) -> DeviceFigures {
        DeviceFigures {
            peak_bytes: counters.peak,
            in_use_at_peak: InUse { live: counters.peak, ..InUse::default() },
            peak_ns: counters.peak_time_ns >> 6 << 6,
            live_bytes: counters.live,
            refused_by_cap: counters.refused_by_cap,
            refused_by_driver: counters.refused_by_driver,
            live_allocations: counters.live_allocations,
            allocations: counters.allocations,
            frees: counters.frees,
            ..DeviceFigures::of(id, definitions)
        }
    }

    /// By a state of a replay.
    pub fn of_state(
        id: DeviceId,
        device: &DeviceState,
        definitions: &Definitions,
    ) -> DeviceFigures {
        DeviceFigures {
            cap_bytes: device.cap_bytes,
            group_cap_bytes: device.group_cap_bytes,
            peak_bytes: device.peak.in_use.headline(),
            peak_ns: device.peak.time_ns,
            live_bytes: device.live_bytes,
            refused_by_cap: device.refused_by_cap,
            refused_by_driver: device.refused_by_driver,
            in_use_at_peak: device.peak.in_use,
            peak_by_kind: held(device.peak.by_kind),
            live_by_kind: held(device.bytes_by_kind()),
            live_allocations: device.live_allocations,
            allocations: device.allocations,
            frees: device.frees,
            ..DeviceFigures::of(id, definitions)
        }
    }
}

impl ProcessFigures {
    /// The name of the process in reports.
    pub fn name(&self) -> String {
        process_name(&self.header, &self.trace)
    }

    /// Sum of the devices' highest peaks.
    pub fn peak_bytes(&self) -> u64 {
        self.sum(|device| device.peak_bytes)
    }

    /// The sum of a figure over all devices.
    pub fn sum(&self, figure: impl Fn(&DeviceFigures) -> u64) -> u64 {
        self.devices.values().map(figure).fold(0, u64::saturating_add)
    }

    /// Of a process that was read, at the moment to which it was. Without holders.
    pub fn of(process: &Process) -> ProcessFigures {
        let fatal = process.ended_out_of_memory();
        let device = |(id, device): (DeviceId, &DeviceState)| {
            let over_time = process.over_time.get(&id);
            let of = DeviceFigures {
                held_gib_hours: over_time.and_then(|of| Some(of.held?.gib_hours())),
                moments: over_time.map(|of| of.bytes.clone()).filter(|of| !of.points.is_empty()),
                ..DeviceFigures::of_state(id, device, &process.definitions)
            };
            (id, of)
        };
        ProcessFigures {
            trace: process.trace.clone(),
            header: process.header.clone(),
            running: process.running,
            ended_in_order: process.ended_in_order(),
            exit_status: process.ending.exit_status,
            seen: process.ending.seen.clone(),
            failed_ns: fatal.iter().map(|oom| oom.time_ns).min(),
            stopped: process.ending.stopped.is_some(),
            live_is_known: process.state.live_is_known(),
            last_ns: process.ending.last_ns,
            source: FiguresSource::Events,
            devices: process.devices().map(device).collect(),
            symbols: Symbols::default(),
            segments: FxHashSet::default(),
        }
    }

    /// From the events, also where the trace has a summary.
    pub fn replayed(trace: &Trace) -> ProcessFigures {
        ProcessFigures::replayed_with(trace, None, &mut (), &mut |_, _| {}).0
    }

    /// As [`ProcessFigures::replayed`], with an observer of that replay. `moments`: as in [`Collect::moments`]. Returns
    /// also the state at the end.
    pub fn replayed_with(
        trace: &Trace,
        moments: Option<usize>,
        observer: &mut impl Observer,
        progress: &mut dyn FnMut(u64, u64),
    ) -> (ProcessFigures, State) {
        let collect = Collect { over_time: true, points: true, moments, ..Collect::default() };
        let process = Process::read_observed(trace, Moment::End, collect, observer, progress);
        let mut figures = ProcessFigures::of(&process);
        held::add_holders(&mut figures, &process, trace);
        (figures.name_holders(&process.definitions), process.state)
    }

    /// Without a replay, and what only a replay would say.
    fn short(trace: &Trace) -> (ProcessFigures, Lack) {
        let (definitions, broken) = trace.definitions();
        let Some(summary) = trace.summary().filter(|_| broken.is_empty()) else {
            let lack = Lack { events: true, holders: true };
            return (ProcessFigures::of_totals(trace, &definitions), lack);
        };
        let lack = Lack { events: !is_enough(&summary), holders: may_lack_holders(&summary) };
        (ProcessFigures::of_summary(trace, &definitions, &summary), lack)
    }

    fn of_summary(
        trace: &Trace,
        definitions: &Definitions,
        summary: &EndSummary,
    ) -> ProcessFigures {
        let device = |(id, of): (&DeviceId, &DeviceSummary)| {
            let mut device = DeviceFigures {
                holders: of.holders.clone(),
                held_gib_hours: held_gib_hours(of, summary.ended_ns),
                ..DeviceFigures::of_counters(*id, &of.counters, definitions)
            };
            for (kind, at_peak, live) in of.kinds.iter().copied() {
                if usize::from(kind) < Kind::ALL.len() {
                    device.peak_by_kind[usize::from(kind)] = at_peak;
                    device.live_by_kind[usize::from(kind)] = live;
                }
            }
            device.in_use_at_peak = in_use_at_peak(of, &device);
            device.peak_bytes = device.in_use_at_peak.headline();
            (*id, device)
        };
        let figures = ProcessFigures {
            source: FiguresSource::Summary,
            ended_in_order: true,
            last_ns: summary.ended_ns,
            devices: summary.devices.iter().map(device).collect(),
            ..ProcessFigures::begin(trace)
        };
        figures.name_holders(definitions)
    }

    /// Without a replay, of a trace without a summary.
    fn of_totals(trace: &Trace, definitions: &Definitions) -> ProcessFigures {
        let totals = trace.last_totals();
        let device = |(id, counters): (&DeviceId, &Counters)| {
            (*id, DeviceFigures::of_counters(*id, counters, definitions))
        };
        ProcessFigures {
            source: FiguresSource::Totals,
            ended_in_order: totals.ended || totals.exit_status == Some(0),
            exit_status: totals.exit_status,
            last_ns: totals.last_ns,
            devices: totals.devices.iter().map(device).collect(),
            ..ProcessFigures::begin(trace)
        }
    }

    fn begin(trace: &Trace) -> ProcessFigures {
        ProcessFigures {
            trace: trace.path().to_path_buf(),
            header: trace.header().clone(),
            running: trace.is_running(),
            live_is_known: true,
            ..ProcessFigures::default()
        }
    }

    /// Adds the names of the holders' stacks.
    fn name_holders(mut self, definitions: &Definitions) -> ProcessFigures {
        let holders = self.devices.values().flat_map(|device| &device.holders);
        let stacks = holders.map(|holder| holder.stack).chain([FREE_CACHE]);
        self.symbols = Symbols::of(definitions, &self.header, stacks);
        self
    }
}

/// Sets the kinds to 0 that are host memory or belong to another process.
fn held(mut kinds: BytesByKind) -> BytesByKind {
    for kind in Kind::ALL.into_iter().filter(|kind| !is_held(*kind)) {
        kinds[kind as usize] = 0;
    }
    kinds
}

fn refused(counters: &Counters) -> u64 {
    counters.refused_by_cap.saturating_add(counters.refused_by_driver)
}

/// What was allocated and what the driver had taken; that is all that nvidia-smi shows, as far as calls explain it.
fn in_use_at_peak(of: &DeviceSummary, device: &DeviceFigures) -> InUse {
    let managed = device.peak_by_kind[Kind::Managed as usize];
    let mut in_use = InUse { managed, ..device.in_use_at_peak };
    for holder in of.holders.iter().filter(|of| of.moment == SummaryMoment::Peak) {
        let sum = match holder.cause {
            Some(DriverCause::Context) => &mut in_use.contexts,
            Some(cause) => &mut in_use.driver_own[cause as usize],
            None => continue,
        };
        *sum = sum.saturating_add(holder.bytes);
    }
    let own = i64::try_from(in_use.named_bytes()).unwrap_or(i64::MAX);
    InUse { unattributed: (in_use.contexts > 0).then_some(own), ..in_use }
}

fn taken_by_driver(of: &DeviceSummary, moment: SummaryMoment) -> u64 {
    let here = of.holders.iter().filter(|of| of.moment == moment && of.cause.is_some());
    here.map(|of| of.bytes).fold(0, u64::saturating_add)
}

/// By the recorder's samples of allocations, and with what the driver had taken for itself at the end, contexts among it,
/// as if it had been there all along.
fn held_gib_hours(of: &DeviceSummary, ended_ns: u64) -> Option<[f64; 2]> {
    let held = of.held?;
    let beside = taken_by_driver(of, SummaryMoment::End) as f64 * ended_ns as f64 / 1e9;
    let hours = |byte_s: f64| byte_s / 3600.0 / (1u64 << 30) as f64;
    Some([hours(held.byte_s as f64 + beside), hours(held.error_byte_s as f64)])
}

/// Whether a summary has all figures. Only the events tell whether refusals ended the program, when most was held if the
/// driver took more after the peak of allocations, what a context held that has ended, and when there was one alone.
fn is_enough(summary: &EndSummary) -> bool {
    let is_enough = |device: &DeviceSummary| {
        let peak = taken_by_driver(device, SummaryMoment::Peak);
        refused(&device.counters) == 0
            && (device.counters.peak > 0) == (peak > 0)
            && taken_by_driver(device, SummaryMoment::End) <= peak
    };
    summary.cache_ooms == 0 && summary.devices.values().all(is_enough)
}

/// Whether a list of holders is full: smaller holders are not in it.
fn may_lack_holders(summary: &EndSummary) -> bool {
    let mut lists: BTreeMap<_, usize> = BTreeMap::new();
    for of in summary.devices.values().flat_map(|device| &device.holders) {
        let list = (of.device, of.moment, of.of_framework, of.cause.is_some());
        *lists.entry(list).or_default() += 1;
    }
    lists.values().any(|holders| *holders >= HOLDERS)
}
