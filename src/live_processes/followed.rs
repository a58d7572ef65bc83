//! What the growing trace of a running process says: roles, leak verdicts, growth, out-of-memory failures. Each
//! reading goes on where the last one ended.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vramtrace_format::oom::{Figures, OomCause, OtherLimit};
use vramtrace_format::{DeviceId, Header, PostMortem, Stamped};
use vramtrace_reader::analysis::leaks::{GrowthObserver, Leaks, Suppressions, Verdict, Watched};
use vramtrace_reader::analysis::roles::{LiveRoles, Role, RoleLearner};
use vramtrace_reader::replay::{Follower, GrowingReplay, Observer, State};
use vramtrace_reader::trace::{Definitions, Trace, open_of};

/// The lines of a device that grow, together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Growth {
    pub bytes_per_s: f64,
    /// Seconds until the cap or the card is full at this rate. `None`: its size is not known.
    pub full_in_s: Option<f64>,
}

/// The lines with the verdict GROWING, summed for each device.
pub fn growth_by_device(found: &Leaks) -> BTreeMap<DeviceId, Growth> {
    let mut all: BTreeMap<DeviceId, Growth> = BTreeMap::new();
    let sure = found.leaks.iter().filter(|leak| leak.is_sure() && leak.growth.is_some());
    for leak in sure.filter(|leak| leak.verdict == Verdict::Growing) {
        let growth = all.entry(leak.device).or_default();
        growth.bytes_per_s += leak.rate.unwrap_or(0.0);
        // The parts of the room that a second takes add up.
        let part = |left: f64| 1.0 / left.max(1e-3);
        let parts = [growth.full_in_s, leak.exhausted_in_s].into_iter().flatten().map(part);
        growth.full_in_s = parts.reduce(|a, b| a + b).map(|sum| 1.0 / sum);
    }
    all
}

/// What the trace says, as far as it is read.
#[derive(Clone, Debug, Default)]
pub struct TraceFigures {
    /// Live bytes by role, by [`Role::index`].
    pub roles: BTreeMap<DeviceId, [u64; Role::ALL.len()]>,
    pub growth: BTreeMap<DeviceId, Growth>,
    /// Of a confidence that counts as a leak.
    pub leaks: Vec<(DeviceId, Verdict)>,
    /// As the recorder found them.
    pub ooms: Vec<(DeviceId, OomCause)>,
    /// Longest time for which growth and leaks have one value, by samples of the recorder. `None`: all events are known.
    pub coarsest_ns: Option<u64>,
}

/// A trace that is followed.
#[derive(Default)]
pub struct Followed {
    replay: GrowingReplay,
    observers: Observers,
    /// Events at the last verdicts.
    judged: u64,
    pub figures: TraceFigures,
}

#[derive(Default)]
struct Observers {
    growth: GrowthObserver,
    failures: PostMortems,
    roles: Option<RoleLearner>,
    header: Header,
}

#[derive(Default)]
struct PostMortems(Vec<PostMortem>);

/// Maximum number of kept failures of one process. Each is a series of refused requests.
const MAX_FAILURES: usize = 1000;

impl Observer for PostMortems {
    fn on_post_mortem(&mut self, _: &Stamped, post_mortem: &PostMortem) {
        if self.0.len() < MAX_FAILURES {
            self.0.push(*post_mortem);
        }
    }
}

impl Follower for Observers {
    fn on_definitions(&mut self, definitions: &Definitions) {
        if let Some(roles) = &mut self.roles {
            roles.add_new_stacks(definitions, &self.header);
        }
    }

    fn observer(&mut self) -> impl Observer {
        let roles = self.roles.as_mut().map(RoleLearner::observer);
        ((&mut self.growth, &mut self.failures), roles)
    }
}

/// Events that are read at once: for about 0.1 s.
const AT_ONCE: usize = 1 << 19;

impl Followed {
    /// Reads a part of what was written since the last time: of the first of these files that is the user's and whose
    /// header says that it is the right trace. Returns whether it was read to its end: then the figures are new. `None`:
    /// there is no such trace.
    pub fn read(
        &mut self,
        places: impl IntoIterator<Item = PathBuf>,
        user: u32,
        is_its: impl Fn(&Header) -> bool,
    ) -> Option<bool> {
        let mut opened = places.into_iter().filter_map(|path| open_of(user, &path).ok());
        let is_its = |trace: &Trace| is_its(trace.header());
        let trace = opened.find(is_its)?;
        if self.observers.header.uuid != trace.header().uuid {
            self.begin(trace.header());
        }
        let whole = self.replay.read(&trace, AT_ONCE, &mut self.observers);
        let whole = whole.or_else(|| {
            self.begin(trace.header());
            self.replay.read(&trace, AT_ONCE, &mut self.observers)
        });
        if whole != Some(true) {
            return Some(false);
        }
        let state = self.replay.state();
        if state.events != self.judged || state.events == 0 {
            self.judged = state.events;
            self.figures = self.judge(&trace, state);
        }
        Some(true)
    }

    /// The trace as far as it is read.
    #[cfg(feature = "top")]
    pub fn now(&self) -> (&Header, &Definitions, &State) {
        (&self.observers.header, self.replay.definitions(), self.replay.state())
    }

    /// What is held in memory for it: [`GrowingReplay::entries`].
    pub fn entries(&self) -> usize {
        self.replay.entries()
    }

    /// Learns roles too, which takes the names of all stacks.
    pub fn with_roles() -> Followed {
        let observers = Observers { roles: Some(RoleLearner::default()), ..Observers::default() };
        Followed { observers, ..Followed::default() }
    }

    fn begin(&mut self, header: &Header) {
        let roles = self.observers.roles.as_ref().map(|_| RoleLearner::default());
        let observers = Observers { roles, header: header.clone(), ..Observers::default() };
        *self = Followed { observers, ..Followed::default() };
    }

    fn judge(&self, trace: &Trace, state: &State) -> TraceFigures {
        let definitions = self.replay.definitions();
        let roles = |roles| LiveRoles::now(roles).sums(state).into_iter().collect();
        let watched = Watched::new(self.observers.growth.clone(), state);
        let found = watched.judge(trace, definitions, state, &Suppressions::default(), 0);
        let sure = found.leaks.iter().filter(|leak| leak.is_sure());
        TraceFigures {
            roles: self.observers.roles.as_ref().map(roles).unwrap_or_default(),
            growth: growth_by_device(&found),
            leaks: sure.map(|leak| (leak.device, leak.verdict)).collect(),
            ooms: self.ooms(definitions),
            coarsest_ns: found.sampled.map(|sampled| sampled.coarsest_ns),
        }
    }

    fn ooms(&self, definitions: &Definitions) -> Vec<(DeviceId, OomCause)> {
        let other = OtherLimit::of(|name| definitions.setting(name));
        let oom = |found: &PostMortem| {
            let free = found.cache.map_or(0, |cache| cache.free());
            (found.device, Figures { other, ..Figures::of(found, free) }.cause())
        };
        self.observers.failures.0.iter().map(oom).collect()
    }
}
