//! The processes of a run, with the figures that a report of all of them prints. A figure comes from the
//! summary that a process wrote at its end. It comes from a replay by the same rules
//! ([`vramtrace_format::summary`]) where the trace has no summary (the process was killed, or unmapped
//! memory), where requests were refused (only the events have the reason), where processes share a card at
//! the same time (the sum of the card needs every moment), or where more stacks held memory than a summary
//! lists, unless the run's traces are larger than [`SHORT_RUN`].

mod cards;
mod failed;
mod held;
mod imbalance;
mod merged;
mod observer;
mod reading;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use vramtrace_format::summary::{HOLDERS, is_held};
use vramtrace_format::{
    Counters, DeviceId, Header, Kind, SummaryDriver, SummaryHolder, SummaryMoment,
};

use super::outliers::Standing;
use crate::analysis::{HeldOverTimeObserver, oom};
use crate::replay::{BytesByKind, DeviceState, Observer, State, Until};
use crate::symbols::{FREE_CACHE, Symbols};
use crate::trace::{Definitions, DeviceInfo, DeviceSummary, EndSummary, Trace, process_name};
use observer::RankObserver;
use steps::Steps;

pub use cards::{Card, cards};
pub use failed::{FailedRank, RankEnd, failed};
pub use held::holdings as held_at;
pub use imbalance::{Imbalance, imbalance};
pub use merged::{HeldByProcess, MergedHolder, holders_of, key, merge};
pub use reading::{read, read_within};

/// One process of a run.
#[derive(Clone, Debug)]
pub struct Rank {
    pub trace: PathBuf,
    pub header: Header,
    /// The process was running when the trace was opened.
    pub running: bool,
    pub ended_in_order: bool,
    /// When the request for memory failed with which the run ended; of several devices the first.
    pub failed_ns: Option<u64>,
    /// Recording stopped before the process did.
    pub stopped: bool,
    /// False: events are missing and no checkpoint says what is live.
    pub live_is_known: bool,
    /// Time of the last event.
    pub last_ns: u64,
    /// Where the figures come from.
    pub source: Source,
    /// The devices that the process used, the unknown one last.
    pub devices: BTreeMap<DeviceId, RankDevice>,
    /// Names of the holders' stacks.
    pub symbols: Symbols,
}

/// Where the figures of a process come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A replay of all events.
    Events,
    /// The summary at the end of the trace.
    Summary,
    /// The last totals that the recorder wrote: holders are not known, nor whether the run ended out of memory.
    Totals,
}

/// The figures of a process on one device. Sizes are bytes.
#[derive(Clone, Debug, Default)]
pub struct RankDevice {
    /// `None`: the trace does not describe it.
    pub info: Option<DeviceInfo>,
    pub peak_bytes: u64,
    /// Time of the peak, ns since the start of the trace.
    pub peak_ns: u64,
    pub peak_by_kind: BytesByKind,
    pub live_bytes: u64,
    pub live_by_kind: BytesByKind,
    pub live_allocations: u64,
    pub allocations: u64,
    pub frees: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    /// The holders at the peak and at the end, at both levels, largest first; of a summary the largest.
    pub holders: Vec<SummaryHolder>,
    /// What the driver took for itself, at the peak and at the end, largest first; of a summary the largest.
    pub driver: Vec<SummaryDriver>,
    /// GiB-hours, and what they may differ by. `None`: not known.
    pub held_gib_hours: Option<[f64; 2]>,
    /// The live bytes at every moment, where processes share the device.
    steps: Option<Steps>,
}

impl RankDevice {
    pub fn refused(&self) -> u64 {
        self.refused_by_cap.saturating_add(self.refused_by_driver)
    }
}

impl Rank {
    /// The name of the process in reports.
    pub fn name(&self) -> String {
        process_name(&self.header, &self.trace)
    }

    /// Sum of the devices' highest peaks.
    pub fn peak_bytes(&self) -> u64 {
        self.devices.values().map(|device| device.peak_bytes).fold(0, u64::saturating_add)
    }

    /// The sum of a figure over all devices.
    pub fn sum(&self, figure: impl Fn(&RankDevice) -> u64) -> u64 {
        self.devices.values().map(figure).fold(0, u64::saturating_add)
    }

    /// What [`crate::analysis::outliers()`] compares.
    pub fn standing(&self) -> Standing {
        Standing {
            used: !self.devices.is_empty(),
            peak: self.peak_bytes(),
            refused: self.sum(RankDevice::refused) > 0,
            sound: self.running || self.ended_in_order,
            stopped: self.stopped,
        }
    }

    /// From the summary where it has all figures, else from the events.
    pub fn read(trace: &Trace) -> Rank {
        Rank::read_with(trace, None, true, &mut |_, _| {})
    }

    /// From the events, also where the trace has a summary.
    pub fn replayed(trace: &Trace) -> Rank {
        let (definitions, _) = trace.definitions();
        Rank::replayed_with(trace, &definitions, &mut (), &mut |_, _| {}).0
    }

    /// As [`Rank::replayed`], with an observer of that replay. Returns also the state at its end.
    pub fn replayed_with(
        trace: &Trace,
        definitions: &Definitions,
        observer: &mut impl Observer,
        progress: &mut dyn FnMut(u64, u64),
    ) -> (Rank, State) {
        Rank::of_replay(trace, definitions, None, observer, progress)
    }

    /// `steps`: the most moments of each device that are kept; `None`: none. `all_holders`: the largest ones of a
    /// summary do not suffice.
    fn read_with(
        trace: &Trace,
        steps: Option<usize>,
        all_holders: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Rank {
        let (definitions, broken) = trace.definitions();
        let wanted = |summary: &EndSummary| {
            is_enough(summary) && !(all_holders && may_lack_holders(summary))
        };
        let summary = match steps {
            None if broken.is_empty() => trace.summary(),
            _ => None,
        };
        match summary {
            Some(summary) if wanted(&summary) => Rank::of_summary(trace, &definitions, &summary),
            _ => Rank::of_replay(trace, &definitions, steps, &mut (), progress).0,
        }
    }

    /// Without a replay. The second value: whether a replay would say more.
    fn read_short(trace: &Trace) -> (Rank, bool) {
        let (definitions, broken) = trace.definitions();
        match trace.summary().filter(|_| broken.is_empty()) {
            Some(summary) => {
                (Rank::of_summary(trace, &definitions, &summary), !is_enough(&summary))
            }
            None => (Rank::of_totals(trace, &definitions), true),
        }
    }

    fn of_summary(trace: &Trace, definitions: &Definitions, summary: &EndSummary) -> Rank {
        let mut rank = Rank::begin(trace);
        (rank.source, rank.ended_in_order) = (Source::Summary, true);
        rank.last_ns = summary.ended_ns;
        for (id, of_device) in &summary.devices {
            let (id, counters) = (*id, of_device.counters);
            let (mut peak_by_kind, mut live_by_kind) =
                (BytesByKind::default(), BytesByKind::default());
            for (kind, at_peak, live) in of_device.kinds.iter().copied() {
                if let Some(slot) = peak_by_kind.get_mut(usize::from(kind)) {
                    *slot = at_peak;
                }
                if let Some(slot) = live_by_kind.get_mut(usize::from(kind)) {
                    *slot = live;
                }
            }
            let device = RankDevice {
                info: definitions.device(id).cloned(),
                peak_by_kind,
                live_by_kind,
                holders: of_device.holders.clone(),
                driver: of_device.driver.clone(),
                held_gib_hours: held_gib_hours(of_device, summary.ended_ns),
                ..of_counters(&counters)
            };
            rank.devices.insert(id, device);
        }
        rank.name_holders(definitions)
    }

    /// Without a replay, of a trace without a summary.
    fn of_totals(trace: &Trace, definitions: &Definitions) -> Rank {
        let mut rank = Rank::begin(trace);
        let totals = trace.last_totals();
        (rank.source, rank.ended_in_order) = (Source::Totals, totals.ended);
        rank.last_ns = totals.last_ns;
        for (id, counters) in totals.devices {
            let info = definitions.device(id).cloned();
            rank.devices.insert(id, RankDevice { info, ..of_counters(&counters) });
        }
        rank
    }

    /// Reads a rank by replaying its trace, for a trace without a summary at its end.
    fn of_replay(
        trace: &Trace,
        definitions: &Definitions,
        steps: Option<usize>,
        observed: &mut impl Observer,
        progress: &mut dyn FnMut(u64, u64),
    ) -> (Rank, State) {
        let mut observer = RankObserver::new(steps);
        let mut over_time = HeldOverTimeObserver::default();
        let mut all = ((&mut observer, &mut over_time), observed);
        let state = trace.replay_until(definitions, Until::End, &mut all, progress).state;
        let over_time = over_time.finish(state.time_ns, state.history.as_deref());
        let mut rank = Rank::begin(trace);
        rank.ended_in_order = state.ended_ns.is_some();
        rank.stopped = state.stopped.is_some();
        rank.live_is_known = state.live_is_known();
        rank.last_ns = state.time_ns;
        let ooms = observer.ooms.finish(state.time_ns).ooms;
        let ended = oom::ended(&ooms).into_iter().filter(|_| !rank.running);
        rank.failed_ns = ended.map(|oom| oom.time_ns).min();
        let owners = observer.slept.then(|| held::by_owner(trace, definitions, &state));
        for (id, device) in state.devices.iter().filter(|(_, device)| device.was_used()) {
            let holders = match &owners {
                Some(owners) => owners.get(id).cloned().unwrap_or_default(),
                None => observer.held.holders(*id),
            };
            let driver = observer.held.driver(*id);
            let steps = observer.steps.remove(id);
            let info = definitions.device(*id).cloned();
            let held = over_time.get(id);
            let held_gib_hours = held.map(|held| [held.gib_hours(), held.error_gib_hours()]);
            let of = of_state(device);
            let of = RankDevice { info, holders, driver, steps, held_gib_hours, ..of };
            rank.devices.insert(*id, of);
        }
        (rank.name_holders(definitions), state)
    }

    fn begin(trace: &Trace) -> Rank {
        Rank {
            trace: trace.path().to_path_buf(),
            header: trace.header().clone(),
            running: trace.is_running(),
            ended_in_order: false,
            failed_ns: None,
            stopped: false,
            live_is_known: true,
            last_ns: 0,
            source: Source::Events,
            devices: BTreeMap::new(),
            symbols: Symbols::default(),
        }
    }

    /// Adds the names of the holders' stacks.
    fn name_holders(mut self, definitions: &Definitions) -> Rank {
        let holders = self.devices.values().flat_map(|device| &device.holders);
        let driver = self.devices.values().flat_map(|device| &device.driver);
        let stacks = holders.map(|holder| holder.stack).chain(driver.map(|of| of.stack));
        let stacks = stacks.chain([FREE_CACHE]);
        self.symbols = Symbols::of(definitions, &self.header, stacks);
        self
    }
}

fn of_counters(counters: &Counters) -> RankDevice {
    RankDevice {
        peak_bytes: counters.peak,
        peak_ns: counters.peak_time_ns >> 6 << 6,
        live_bytes: counters.live,
        live_allocations: counters.live_allocations,
        allocations: counters.allocations,
        frees: counters.frees,
        refused_by_cap: counters.refused_by_cap,
        refused_by_driver: counters.refused_by_driver,
        ..RankDevice::default()
    }
}

fn of_state(device: &DeviceState) -> RankDevice {
    RankDevice {
        peak_bytes: device.peak.bytes,
        peak_ns: device.peak.time_ns,
        peak_by_kind: held(device.peak.by_kind),
        live_bytes: device.live_bytes,
        live_by_kind: held(device.bytes_by_kind()),
        live_allocations: device.live_allocations,
        allocations: device.allocations,
        frees: device.frees,
        refused_by_cap: device.refused_by_cap,
        refused_by_driver: device.refused_by_driver,
        ..RankDevice::default()
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

/// By the recorder's samples of allocations, and with what the driver had taken for itself at the end, contexts among it,
/// as if it had been there all along.
fn held_gib_hours(of: &DeviceSummary, ended_ns: u64) -> Option<[f64; 2]> {
    let held = of.held?;
    let at_end = of.driver.iter().filter(|of| of.moment == SummaryMoment::End);
    let beside = at_end.map(|of| of.bytes).fold(0, u64::saturating_add);
    let beside = beside as f64 * ended_ns as f64 / 1e9;
    let hours = |byte_s: f64| byte_s / 3600.0 / (1u64 << 30) as f64;
    Some([hours(held.byte_s as f64 + beside), hours(held.error_byte_s as f64)])
}

/// Whether a summary has all figures. Only the events tell whether refusals ended the program, and what the driver took
/// for itself where the recorder is an older one.
fn is_enough(summary: &EndSummary) -> bool {
    summary.has_driver_memory
        && summary.cache_ooms == 0
        && summary.devices.values().all(|device| refused(&device.counters) == 0)
}

/// Whether a list of holders is full: smaller holders are not in it.
fn may_lack_holders(summary: &EndSummary) -> bool {
    let mut lists: BTreeMap<(DeviceId, bool, bool), usize> = BTreeMap::new();
    let mut driver: BTreeMap<(DeviceId, bool), usize> = BTreeMap::new();
    for holder in summary.devices.values().flat_map(|device| &device.holders) {
        let at_peak = holder.moment == SummaryMoment::Peak;
        *lists.entry((holder.device, at_peak, holder.of_framework)).or_default() += 1;
    }
    for of in summary.devices.values().flat_map(|device| &device.driver) {
        *driver.entry((of.device, of.moment == SummaryMoment::Peak)).or_default() += 1;
    }
    lists.values().chain(driver.values()).any(|holders| *holders >= HOLDERS)
}
