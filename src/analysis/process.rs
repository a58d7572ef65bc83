//! One traced process, replayed to the requested moment. Input: an opened trace and a [`Moment`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use vramtrace_format::{DeviceId, Header, Refused, StackId, Stamped};

use super::curves::CurvesObserver;
use super::oom::{self, Oom, PostMortem};
use super::parallel;
use super::roles::{HeldByRole, RoleFinder};
use super::sleeps::{self, ResidentAtSleeps, Sleeps, SleepsObserver};
use super::{Curves, Holdings, Level, Moment, Standing};
use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, Key, Live, Mapping, Observer, RecorderCost, State,
    Stop, Until,
};
use crate::symbols::Symbols;
use crate::trace::{DamageFound, Definitions, Site, Trace, process_name};

#[derive(Clone, Debug)]
pub struct Process {
    pub trace: PathBuf,
    /// Size of the trace in bytes, without erased parts.
    pub trace_bytes: u64,
    pub header: Header,
    /// The process was running when the trace was opened.
    pub running: bool,
    pub definitions: Definitions,
    /// The requested moment. A peak with a known time and missing events becomes [`Moment::At`].
    pub moment: Moment,
    /// The state at that moment.
    pub state: State,
    /// How the whole trace ends, for any requested moment.
    pub ending: Ending,
    pub damage: DamageFound,
    /// Bytes of PyTorch's cache over the whole trace.
    pub curves: BTreeMap<DeviceId, Curves>,
    /// Every out-of-memory of the whole trace.
    pub ooms: Vec<Oom>,
    /// Refusals that were followed by another error, over the whole trace.
    pub swallowed: Vec<oom::Swallowed>,
    /// The devices on which the run ended out of memory. Filled by [`Process::find_fatal`].
    pub fatal: Vec<PostMortem>,
    /// Times in which memory was unmapped and mapped again later, over the whole trace.
    pub sleeps: BTreeMap<DeviceId, Sleeps>,
    /// The memory that stayed on the card in these times. Filled by [`Process::find_holders`].
    pub rests: BTreeMap<DeviceId, ResidentAtSleeps>,
    /// Filled by [`Process::find_holders`].
    pub who: Option<NamedHoldings>,
}

/// Bytes by stack at two moments, with the names of the stacks' frames.
#[derive(Clone, Debug)]
pub struct NamedHoldings {
    pub symbols: Symbols,
    /// Each device at its highest peak up to the requested moment.
    pub peak: Holdings,
    /// At the requested moment.
    pub live: Holdings,
    /// The roles of `peak`, where blocks of a framework's cache were recorded.
    pub peak_roles: Option<HeldByRole>,
}

/// How a trace ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ending {
    /// When the process's exit handlers ran.
    pub ended_ns: Option<u64>,
    /// Recording stopped before the process did.
    pub stopped: Option<Stop>,
    /// The time and memory that the recorder took, by its last record.
    pub recorder_cost: Option<RecorderCost>,
    /// Time of the last event.
    pub last_ns: u64,
    pub events: u64,
}

impl Process {
    /// Replays a trace to its end, and to the requested moment.
    pub fn read(trace: &Trace, moment: Moment) -> Process {
        Process::read_with(trace, moment, &mut |_, _| {})
    }

    fn read_with(trace: &Trace, moment: Moment, progress: &mut dyn FnMut(u64, u64)) -> Process {
        let (definitions, broken) = trace.definitions();
        let mut observer = ProcessObserver::default();
        let whole = trace.replay_until(&definitions, Until::End, &mut observer, progress);
        let mut read = |until| trace.replay_until(&definitions, until, &mut (), progress);
        let ending = Ending {
            ended_ns: whole.state.ended_ns,
            stopped: whole.state.stopped,
            recorder_cost: whole.state.recorder_cost,
            last_ns: whole.state.time_ns,
            events: whole.state.events,
        };
        let oom::OomsFound { ooms, swallowed, .. } = observer.ooms.finish(whole.state.time_ns);
        let peaks = whole.state.devices.values().map(|device| &device.peak);
        let peak = peaks.max_by_key(|peak| peak.bytes).map(|peak| (peak.offset, peak.time_ns));
        let allocated = whole.state.devices.values().map(|device| device.cache.peak_allocated);
        let allocated = allocated.max_by_key(|peak| peak.bytes).filter(|peak| peak.bytes > 0);
        let moment = match (moment, peak) {
            // The events of the peak are missing: its time is known from the counters alone.
            (Moment::Peak, Some((None, time_ns))) if time_ns > 0 => Moment::At(time_ns),
            _ => moment,
        };
        let reading = match (moment, peak) {
            (Moment::AllocatedPeak, _) => match allocated {
                Some(peak) => read(Until::Offset(peak.offset)),
                None => whole,
            },
            (Moment::At(time_ns), _) => read(Until::Time(time_ns)),
            (Moment::Peak, Some((Some(offset), _))) => read(Until::Offset(offset)),
            _ => whole,
        };
        let mut damage = reading.damage;
        damage.ranges.extend(broken);
        Process {
            trace: trace.path().to_path_buf(),
            trace_bytes: trace.data_bytes(),
            header: trace.header().clone(),
            running: trace.is_running(),
            definitions,
            moment,
            state: reading.state,
            ending,
            damage,
            curves: observer.curves.devices,
            ooms,
            swallowed,
            fatal: Vec::new(),
            sleeps: observer.sleeps.finish(),
            rests: BTreeMap::new(),
            who: None,
        }
    }

    /// Fills [`Process::fatal`]. `trace`: the trace that the process was read from.
    pub fn find_fatal(&mut self, trace: &Trace) {
        self.fatal = oom::fatal(trace, &self.definitions, &self.ooms);
    }

    /// Fills [`Process::who`] and [`Process::rests`]. `trace`: the trace that the process was read
    /// from. Does nothing where the trace has no stacks.
    pub fn find_holders(&mut self, trace: &Trace) {
        if self.definitions.stacks().is_empty() {
            return;
        }
        let level = Level::of(&self.state);
        let state = &self.state;
        let peak = Holdings::at_peaks(trace, &self.definitions, state, Moment::Peak, level);
        let live = Holdings::of_state(state, level);
        let contexts = self.state.contexts.values().map(|context| context.stack);
        let fatal = self.fatal.iter().flat_map(|fatal| fatal.held.stacks());
        let devices = self.state.devices.values();
        let takers = devices.flat_map(|device| device.driver_own.makers());
        let takers = takers.map(|(maker, _)| maker.stack);
        if !self.sleeps.is_empty() {
            self.rests = sleeps::rests(trace, &self.definitions, &self.sleeps, level);
        }
        let rests = self.rests.values().flat_map(ResidentAtSleeps::stacks);
        let slept = self.sleeps.values().flat_map(Sleeps::stacks);
        let refused = self.swallowed.iter().map(|one| one.refusal.refused.stack);
        let wanted = peak.stacks().chain(live.stacks()).chain(contexts).chain(fatal).chain(takers);
        let wanted = wanted.chain(rests).chain(slept).chain(refused);
        let symbols = Symbols::of(&self.definitions, &self.header, wanted);
        let peak_roles = (level == Level::Tensor).then(|| {
            let all = Symbols::of_all(&self.definitions, &self.header);
            let finder = RoleFinder::new(trace, &self.definitions, &all);
            let mut roles = finder.at_moment(trace, &self.definitions, state, Moment::Peak, level);
            roles.retain(|device| peak.at_ns.contains_key(&device));
            roles
        });
        self.who = Some(NamedHoldings { symbols, peak, live, peak_roles });
    }

    /// The devices that the process used, the unknown one last.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &DeviceState)> {
        self.state.devices.iter().filter(|(_, state)| state.was_used()).map(|(id, s)| (*id, s))
    }

    /// Sum of the devices' highest peaks.
    pub fn peak_bytes(&self) -> u64 {
        self.devices().map(|(_, device)| device.peak.bytes).fold(0, u64::saturating_add)
    }

    /// The name of the process in reports.
    pub fn name(&self) -> String {
        process_name(&self.header, &self.trace)
    }

    /// What [`super::outliers()`] compares.
    pub fn standing(&self) -> Standing {
        Standing {
            used: self.devices().next().is_some(),
            peak: self.peak_bytes(),
            refused: self.state.refusals() > 0,
            sound: self.running || self.ended_in_order(),
            stopped: self.ending.stopped.is_some(),
        }
    }

    /// The last out-of-memory of each device on which the run ended, for any requested moment. Empty
    /// while the process runs.
    pub fn ended_out_of_memory(&self) -> Vec<Oom> {
        if self.running { Vec::new() } else { oom::ended(&self.ooms) }
    }

    /// The exit handlers of the process ran.
    pub fn ended_in_order(&self) -> bool {
        self.ending.ended_ns.is_some()
    }
}

/// Reads traces on all cores. The results have the order of `traces`. `progress` is called with bytes
/// read and bytes in all, from any thread.
pub fn read_all(traces: &[Trace], moment: Moment, progress: parallel::Progress) -> Vec<Process> {
    let all: Vec<&Trace> = traces.iter().collect();
    parallel::each(&all, progress, |_, trace, progress| Process::read_with(trace, moment, progress))
}

/// The observers of a whole trace.
#[derive(Default)]
struct ProcessObserver {
    curves: CurvesObserver,
    ooms: oom::OomObserver,
    sleeps: SleepsObserver,
}

impl Observer for ProcessObserver {
    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        self.curves.on_device_change(at, device, state);
        self.sleeps.on_device_change(at, device, state);
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&Site>) {
        self.ooms.on_refusal(at, refused, site);
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        self.ooms.on_cache_oom(at, device, oom);
    }

    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.ooms.on_alloc(at, key, live, how);
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        self.ooms.on_block_alloc(at, address, live, how);
    }

    fn on_error_after_refusal(&mut self, at: &Stamped, api: u16, result: i32) {
        self.ooms.on_error_after_refusal(at, api, result);
    }

    fn on_exit_status(&mut self, at: &Stamped, status: i32) {
        self.ooms.on_exit_status(at, status);
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.ooms.on_history_gap(at);
        self.sleeps.on_history_gap(at);
    }

    fn on_sleep(&mut self, at: &Stamped, asleep: &Asleep, by: StackId) {
        self.sleeps.on_sleep(at, asleep, by);
    }

    fn on_wake(&mut self, at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        self.sleeps.on_wake(at, mapping, object);
    }

    fn on_sleep_end(&mut self, at: &Stamped, asleep: &Asleep) {
        self.sleeps.on_sleep_end(at, asleep);
    }
}
