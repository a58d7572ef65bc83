//! One traced process, replayed to the requested moment. Input: an opened trace and a [`Moment`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use vramtrace_format::{DeviceId, Header};

use super::StackClassifier;
use super::engines;
use super::frag::RequestSizes;
use super::leaks::{GrowthObserver, Leaks, Suppressions, Watched};
use super::memory::holdings::HoldingsAtPeaks;
use super::oom::{self, Oom, OomObserver, PostMortem, PostMortems};
use super::parallel;
use super::roles::{HeldByRole, RoleFinder, RoleLearner, RolesAt};
use super::sleeps::{ResidentAtSleeps, RestsAtSleeps, Sleeps, SleepsObserver};
use super::steps::{StepObserver, Steps};
use super::{AllocationSizes, OverTime, OverTimeObserver, SleepsFacts};
use super::{Holdings, Level, Moment, SampledMoment, SampledPhase, phases_at_peak, phases_before};
use crate::replay::history::Sampled;
use crate::replay::{
    ByDevice, DeviceState, History, Kept, Observer, OffSpan, Peak, RecorderCost, State, Stop,
    Until, Visitor,
};
use crate::symbols::Symbols;
use crate::trace::{DamageFound, Definitions, Trace, process_name};

#[derive(Clone, Debug)]
pub struct Process {
    pub trace: PathBuf,
    /// Size of the trace in bytes, without erased parts.
    pub trace_bytes: u64,
    pub header: Header,
    /// The process was running when the trace was opened.
    pub running: bool,
    pub definitions: Definitions,
    /// The requested moment. A peak with a known time and missing events becomes [`Moment::At`]; an out-of-memory and a
    /// moment of an iteration become [`Moment::Event`] where there is one.
    pub moment: Moment,
    /// The state at that moment.
    pub state: State,
    /// How the whole trace ends, for any requested moment.
    pub ending: Ending,
    pub damage: DamageFound,
    /// Bytes over the whole trace.
    pub over_time: ByDevice<OverTime>,
    /// Every out-of-memory of the whole trace.
    pub ooms: Vec<Oom>,
    /// Refusals that were followed by another error, over the whole trace.
    pub swallowed: Vec<oom::Swallowed>,
    /// The failures with which the run ended, one for each device; of none the last one after which it went on. Filled by
    /// [`Process::look_closer`].
    pub failures: Vec<PostMortem>,
    /// Times in which memory was unmapped and mapped again later, over the whole trace.
    pub sleeps: BTreeMap<DeviceId, Sleeps>,
    /// The memory that stayed on the card in these times. Filled by [`Process::look_closer`].
    pub rests: BTreeMap<DeviceId, ResidentAtSleeps>,
    /// Filled by [`Process::look_closer`].
    pub who: Option<NamedHoldings>,
    /// Filled by [`Process::look_closer`] where [`Collect::leaks`] was collected.
    pub leaks: Option<Leaks>,
    /// The iterations of the whole trace, if they were collected.
    pub steps: Option<Steps>,
    /// What the first pass collected.
    pub collected: Collected,
}

/// What the first pass over a trace collects beside the state at its end. What is not collected costs a pass
/// of its own where it is wanted later.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collect {
    /// For [`Wanted::holders`].
    pub roles: Option<RolesOf>,
    /// For [`Process::leaks`].
    pub leaks: bool,
    /// The sizes of all allocations.
    pub sizes: bool,
    /// The iterations of a training. A moment of one is found in any case.
    pub steps: bool,
    /// [`OverTime::held`].
    pub over_time: bool,
    /// Maximum number of moments of each device that are kept in [`OverTime::live`].
    pub moments: Option<usize>,
    /// Points before the peaks, from which [`Process::look_closer`] and [`Process::held_at`] begin.
    pub points: bool,
}

/// The allocations whose roles are wanted. Finding roles needs the names of all stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolesOf {
    /// Blocks of PyTorch's cache: nothing is collected of programs without its library.
    Blocks,
    All,
}

/// What [`Process::look_closer`] finds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    pub fatal: bool,
    pub holders: bool,
}

impl Wanted {
    pub const ALL: Wanted = Wanted { fatal: true, holders: true };
}

/// What the first pass collected.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    pub roles: Option<RoleFinder>,
    pub watched: Option<Watched>,
    pub sizes: Option<(RequestSizes, AllocationSizes)>,
    /// Points from which a later pass begins.
    pub kept: Kept,
}

/// Bytes by stack at two moments, with the names of the stacks' frames.
#[derive(Clone, Debug)]
pub struct NamedHoldings {
    pub symbols: Symbols,
    /// Each device at its highest peak up to the requested moment.
    pub peak: Holdings,
    /// At the requested moment.
    pub live: Holdings,
    /// The roles of `peak`, where blocks of a framework's cache were recorded, or functions of an engine hold memory.
    pub peak_roles: Option<HeldByRole>,
}

/// How a trace ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// When the process's exit handlers ran.
    pub ended_ns: Option<u64>,
    pub exit_status: Option<i32>,
    /// How it ended, by `vramtrace run`; not in the trace.
    pub seen: Option<String>,
    /// Recording stopped before the process did.
    pub stopped: Option<Stop>,
    /// When the recording was switched off.
    pub off: Vec<OffSpan>,
    /// The time and memory that the recorder took, by its last record.
    pub recorder_cost: Option<RecorderCost>,
    /// The recorder's samples, of a trace with a limit.
    pub history: Option<Arc<History>>,
    /// Time of the last event.
    pub last_ns: u64,
    pub events: u64,
}

impl Process {
    /// Replays a trace to its end, and to the requested moment.
    pub fn read(trace: &Trace, moment: Moment) -> Process {
        Process::read_with(trace, moment, Collect::default(), &mut |_, _| {})
    }

    /// As [`Process::read`], with what is collected on the way.
    pub fn read_with(
        trace: &Trace,
        moment: Moment,
        collect: Collect,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Process {
        Process::read_observed(trace, moment, collect, &mut (), progress)
    }

    /// As [`Process::read_with`]; `more` observes the same pass.
    pub fn read_observed(
        trace: &Trace,
        moment: Moment,
        collect: Collect,
        more: &mut impl Observer,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Process {
        let (definitions, broken) = trace.definitions();
        let learns = match collect.roles {
            None => false,
            Some(RolesOf::Blocks) => {
                definitions.imported_from().is_some() || definitions.has_library(CACHE_LIBRARY)
            }
            Some(RolesOf::All) => true,
        };
        let steps = collect.steps || matches!(moment, Moment::Step(_));
        let all = (learns || steps).then(|| Symbols::of_all(&definitions, trace.header()));
        let all = all.as_ref();
        let (mut ooms, mut sleeps) = (OomObserver::default(), SleepsObserver::default());
        let mut over_time = OverTimeObserver::new(collect.over_time, collect.moments);
        let mut roles = all.filter(|_| learns).map(|all| RoleLearner::new(&definitions, all));
        let mut steps = all.filter(|_| steps).map(|all| StepObserver::new(&definitions, all));
        let mut growth = collect.leaks.then(GrowthObserver::default);
        let mut sizes: Option<(RequestSizes, AllocationSizes)> =
            collect.sizes.then(Default::default);
        let always = (&mut over_time, (&mut ooms, &mut sleeps));
        let training = (roles.as_mut().map(RoleLearner::observer), steps.as_mut());
        let mut observers = ((always, training), ((growth.as_mut(), sizes.as_mut()), more));
        let mut kept = Kept::default();
        let keep = Some(&mut kept).filter(|_| collect.points);
        let whole = trace.replay_keeping(keep, &definitions, &mut observers, progress);
        let watched = growth.map(|growth| Watched::new(growth, &whole.state));
        let collected = Collected { roles: roles.map(RoleLearner::finish), watched, sizes, kept };
        let ending = Ending {
            ended_ns: whole.state.ended_ns,
            exit_status: whole.state.exit_status,
            seen: None,
            stopped: whole.state.stopped,
            off: whole.state.off.clone(),
            recorder_cost: whole.state.recorder_cost,
            history: whole.state.history.clone(),
            last_ns: whole.state.time_ns,
            events: whole.state.events,
        };
        let oom::OomsFound { ooms, swallowed, .. } = ooms.finish(ending.last_ns, trace);
        let steps = steps.map(StepObserver::finish);
        let devices = whole.state.devices.values();
        let event = |at: Option<(u64, u64)>| match at {
            Some((offset, time_ns)) => (Moment::Event { offset, time_ns }, Until::Offset(offset)),
            None => (moment, Until::End),
        };
        let (moment, until) = match moment {
            Moment::End => (moment, Until::End),
            Moment::At(time_ns) => (moment, Until::Time(time_ns)),
            Moment::Event { offset, .. } => (moment, Until::Offset(offset)),
            Moment::Step(asked) => {
                let place = steps.as_ref().and_then(|steps| steps.moment(asked));
                event(place.map(|place| (place.offset, place.time_ns)))
            }
            Moment::OutOfMemory => {
                let fatal = ooms.iter().rfind(|oom| !oom.went_on).or(ooms.last());
                event(fatal.map(|oom| (oom.offset, oom.time_ns)))
            }
            Moment::Peak => match devices.map(|device| device.peak).max_by_key(|peak| peak.bytes) {
                Some(Peak { offset: Some(offset), .. }) => (moment, Until::Offset(offset)),
                // The events of the peak are missing: its time is known from the counters alone.
                Some(Peak { time_ns, .. }) if time_ns > 0 => {
                    (Moment::At(time_ns), Until::Time(time_ns))
                }
                _ => (moment, Until::End),
            },
            Moment::AllocatedPeak => {
                let peaks = devices.map(|device| device.cache.peak_allocated);
                let peak = peaks.max_by_key(|peak| peak.bytes).filter(|peak| peak.bytes > 0);
                (moment, peak.map_or(Until::End, |peak| Until::Offset(peak.offset)))
            }
        };
        let over_time = over_time.finish(ending.last_ns, ending.history.as_deref());
        let reading = match until {
            Until::End => whole,
            until => trace.replay_until(&definitions, until, &mut (), progress),
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
            over_time,
            ooms,
            swallowed,
            failures: Vec::new(),
            sleeps: sleeps.finish(),
            rests: BTreeMap::new(),
            who: None,
            leaks: None,
            steps,
            collected,
        }
    }

    /// Fills [`Process::failures`], [`Process::who`] and [`Process::rests`] as wanted, and [`Process::leaks`], in one more
    /// pass over `trace`, from which the process was read.
    pub fn look_closer(&mut self, trace: &Trace, wanted: Wanted) {
        let definitions = &self.definitions;
        let level = Level::of(&self.state);
        let holders = wanted.holders && !definitions.stacks().is_empty();
        let failures = if wanted.fatal { oom::worst(&self.ooms) } else { Vec::new() };
        let mut post_mortems = PostMortems::new(definitions, failures);
        let mut peaks = HoldingsAtPeaks::new(&self.state, Moment::Peak, level);
        let mut rests = RestsAtSleeps::new(&self.sleeps, level);
        let by_role = holders && level == Level::Tensor;
        let mut roles = by_role.then(|| self.roles_at(trace, Moment::Peak, level));
        let mut visitors: Vec<&mut dyn Visitor> = vec![&mut post_mortems];
        if holders {
            visitors.extend([&mut peaks as &mut dyn Visitor, &mut rests]);
        }
        visitors.extend(roles.as_mut().map(|roles| roles as &mut dyn Visitor));
        self.visit(trace, &mut visitors);
        let failures = post_mortems.finish();
        self.judge(trace, failures);
        if holders {
            self.rests = rests.found;
            self.name_holders(trace, peaks.found, roles.map(RolesAt::of_devices));
        }
    }

    /// Fills [`Process::failures`] with what helps, and [`Process::leaks`] if they were collected and the process was read to its
    /// end.
    pub fn judge(&mut self, trace: &Trace, failures: Vec<PostMortem>) {
        let watched = self.collected.watched.as_ref().filter(|_| self.moment == Moment::End);
        let rules = Suppressions::default();
        let judge = |of: &Watched| of.judge(trace, &self.definitions, &self.state, &rules, 0);
        self.leaks = watched.map(judge);
        self.failures = failures;
        for failure in &mut self.failures {
            failure.find_remedy(trace, &self.definitions);
            self.leaks.iter().for_each(|leaks| failure.find_leak(leaks));
            failure.option = oom::program_option(failure, &self.header, &self.definitions);
        }
    }

    /// The failures with which the run ended.
    pub fn fatal(&self) -> &[PostMortem] {
        if self.handled().is_some() { &[] } else { &self.failures }
    }

    /// Of a run that no failure ended the last one.
    pub fn handled(&self) -> Option<&PostMortem> {
        self.failures.first().filter(|one| one.oom.went_on)
    }

    /// The memory that each device holds at a moment, by stack and, if wanted, by role: in one more pass over
    /// `trace`, or in none. The process was read to that moment; for peaks, to the end.
    pub fn held_at(
        &self,
        trace: &Trace,
        moment: Moment,
        level: Level,
        wants_roles: bool,
    ) -> (Holdings, Option<HeldByRole>) {
        let moment = match moment {
            Moment::Step(_) | Moment::OutOfMemory => self.moment,
            moment => moment,
        };
        let roles = wants_roles.then(|| self.roles_at(trace, moment, level));
        if !moment.is_peak() {
            let roles = roles.map(|roles| roles.in_state(&self.state));
            return (Holdings::of_state(&self.state, level), roles);
        }
        let mut roles = roles;
        let mut peaks = HoldingsAtPeaks::new(&self.state, moment, level);
        let mut visitors: Vec<&mut dyn Visitor> = vec![&mut peaks];
        visitors.extend(roles.as_mut().map(|roles| roles as &mut dyn Visitor));
        self.visit(trace, &mut visitors);
        (peaks.found, roles.map(RolesAt::of_devices))
    }

    /// Goes to places of the trace, from which the process was read.
    pub(crate) fn visit(&self, trace: &Trace, visitors: &mut [&mut dyn Visitor]) {
        trace.visit_from(Some(&self.collected.kept), &self.definitions, visitors, &mut ());
    }

    fn roles_at(&self, trace: &Trace, moment: Moment, level: Level) -> RolesAt {
        let read = (trace, &self.definitions);
        RolesAt::new(&self.role_finder(trace), read, &self.state, moment, level)
    }

    /// What the first pass learned about roles, or else by a pass of its own.
    pub fn role_finder(&self, trace: &Trace) -> Cow<'_, RoleFinder> {
        let learn = || {
            let all = Symbols::of_all(&self.definitions, &self.header);
            RoleFinder::new(trace, &self.definitions, &all)
        };
        self.collected.roles.as_ref().map_or_else(|| Cow::Owned(learn()), Cow::Borrowed)
    }

    fn name_holders(&mut self, trace: &Trace, peak: Holdings, peak_roles: Option<HeldByRole>) {
        let live = Holdings::of_state(&self.state, peak.level);
        let contexts = self.state.contexts.values().map(|context| context.stack);
        let failed = self.failures.iter().flat_map(|one| one.held.stacks());
        let devices = self.state.devices.values();
        let takers = devices.flat_map(|device| device.driver_own.makers());
        let takers = takers.map(|(maker, _)| maker.stack);
        let rests = self.rests.values().flat_map(ResidentAtSleeps::stacks);
        let slept = self.sleeps.values().flat_map(Sleeps::stacks);
        let refused = self.swallowed.iter().map(|one| one.refusal.refused.stack);
        let wanted = peak.stacks().chain(live.stacks()).chain(contexts).chain(failed).chain(takers);
        let wanted = wanted.chain(rests).chain(slept).chain(refused);
        let symbols = Symbols::of(&self.definitions, &self.header, wanted);
        // Of programs without blocks little has a role: it is looked for where functions of an engine hold memory.
        let is_engine = || symbols.frames().iter().any(engines::names_holder);
        let mut peak_roles = match peak_roles {
            None if is_engine() => self.held_at(trace, Moment::Peak, peak.level, true).1,
            found => found,
        };
        // Without devices whose memory at the peak is not known.
        if let Some(roles) = &mut peak_roles {
            roles.retain(|device| peak.at_ns.contains_key(&device));
        }
        self.who = Some(NamedHoldings { symbols, peak, live, peak_roles });
    }

    /// The devices that the process used, the unknown one last.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &DeviceState)> {
        self.state.devices.iter().filter(|(_, state)| state.was_used()).map(|(id, s)| (*id, s))
    }

    /// Sum of the devices' highest peaks.
    pub fn peak_bytes(&self) -> u64 {
        let peaks = self.devices().map(|(_, device)| device.peak.in_use.headline());
        peaks.fold(0, u64::saturating_add)
    }

    /// The name of the process in reports.
    pub fn name(&self) -> String {
        process_name(&self.header, &self.trace)
    }

    /// What the recorder's samples say of the requested moment, where its events are missing: then the state is not
    /// known. `None`: it is, or no sample is of that time.
    pub fn sampled(&self) -> Option<SampledMoment> {
        let Moment::At(asked_ns) = self.moment else { return None };
        let history = self.ending.history.as_ref().filter(|_| !self.state.live_is_known())?;
        let named = (&self.header, self.trace.as_path());
        SampledMoment::at(history, &self.definitions, named, asked_ns)
    }

    /// The names of the stacks that hold memory. `None`: they were not looked up.
    pub fn classifier(&self) -> Option<StackClassifier<'_>> {
        self.who.as_ref().map(|who| StackClassifier::new(&who.symbols, &self.header))
    }

    /// The times in which memory of a device was unmapped. `None`: there was none.
    pub fn sleeps_of(&self, id: DeviceId) -> Option<SleepsFacts> {
        let sleeps = self.sleeps.get(&id)?;
        Some(SleepsFacts::of(sleeps, self.rests.get(&id), self.classifier().as_ref()))
    }

    /// The phases that were open at a device's highest peak, by the recorder's history. Empty: not known.
    pub fn phases_at_peak(&self, id: DeviceId, device: &DeviceState) -> Vec<SampledPhase> {
        let Some(history) = &self.ending.history else { return Vec::new() };
        phases_at_peak(history, &self.definitions, id, device.live_peak_bytes, device.peak.time_ns)
    }

    /// What the recorder's samples resolve of the time whose events were erased. `None`: none were, or there are no samples.
    pub fn erased_time(&self) -> Option<Sampled> {
        let from_ns = self.state.history_from_ns;
        self.ending.history.as_ref().filter(|_| from_ns > 0)?.sampled(from_ns)
    }

    /// The phases of the time whose events were erased, by the recorder's history.
    pub fn phases_before(&self) -> BTreeMap<DeviceId, Vec<SampledPhase>> {
        let history = self.ending.history.as_ref().filter(|_| self.state.history_from_ns > 0);
        history.map_or_else(BTreeMap::new, |history| {
            phases_before(history, &self.definitions, self.state.history_from_ns)
        })
    }

    /// The last out-of-memory of each device on which the run ended, for any requested moment. Empty
    /// while the process runs.
    pub fn ended_out_of_memory(&self) -> Vec<Oom> {
        if self.running { Vec::new() } else { oom::ended(&self.ooms) }
    }

    /// The exit handlers of the process ran, or it left by `_exit` with status 0.
    pub fn ended_in_order(&self) -> bool {
        self.ending.ended_ns.is_some() || self.ending.exit_status == Some(0)
    }
}

/// Reads traces on all cores. The results have the order of `traces`. `progress` is called with bytes
/// read and bytes in all, from any thread.
pub fn read_all(
    traces: &[Trace],
    moment: Moment,
    collect: Collect,
    progress: parallel::Progress,
) -> Vec<Process> {
    let all: Vec<&Trace> = traces.iter().collect();
    parallel::each(&all, progress, |_, trace, progress| {
        Process::read_with(trace, moment, collect, progress)
    })
}

/// The beginning of the file name of the library with PyTorch's cache.
const CACHE_LIBRARY: &str = "libc10_cuda";
