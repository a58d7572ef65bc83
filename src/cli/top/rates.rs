//! How fast recorded processes grow, and when a card or cap is full: the verdicts of `vramtrace leaks` on their
//! growing traces, by a thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vramtrace_reader::analysis::leaks::{GrowthObserver, Leaks, Suppressions, Watched};
use vramtrace_reader::replay::{Follower, GrowingReplay, Observer};
use vramtrace_reader::trace::{Definitions, OpenError, Trace};

use super::background::Background;
use crate::live_processes::followed::growth_by_device;
use crate::live_processes::process::LiveProcess;

/// What the verdicts on a process say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// No line grows, or the trace cannot be read.
    None,
    Growing {
        bytes_per_s: f64,
        /// Seconds until the cap or the card is full at this rate. `None`: its size is not known.
        full_in_s: Option<f64>,
    },
}

impl Rate {
    /// The lines with the verdict GROWING together; of several devices the one that is full first.
    pub fn of(found: &Leaks) -> Rate {
        let devices = growth_by_device(found);
        match devices.is_empty() {
            true => Rate::None,
            false => Rate::Growing {
                bytes_per_s: devices.values().map(|growth| growth.bytes_per_s).sum(),
                full_in_s: devices.values().filter_map(|growth| growth.full_in_s).reduce(f64::min),
            },
        }
    }
}

/// The history of a growing trace. Each reading goes on where the last one ended.
#[derive(Default)]
pub(super) struct History {
    uuid: [u8; 16],
    replay: GrowingReplay,
    observed: Observed,
    events: u64,
    rate: Option<Rate>,
}

#[derive(Default)]
struct Observed(GrowthObserver);

impl Follower for Observed {
    fn on_definitions(&mut self, _definitions: &Definitions) {}

    fn observer(&mut self) -> impl Observer {
        &mut self.0
    }
}

impl History {
    pub fn rate(&mut self, path: &Path) -> Result<Rate, OpenError> {
        let trace = Trace::open(path)?;
        let begin = || History { uuid: trace.header().uuid, ..History::default() };
        if self.uuid != trace.header().uuid {
            *self = begin();
        }
        if !self.replay.read(&trace, &mut self.observed) {
            *self = begin();
            self.replay.read(&trace, &mut self.observed);
        }
        let state = self.replay.state();
        if let Some(rate) = self.rate.filter(|_| state.events == self.events) {
            return Ok(rate);
        }
        let definitions = self.replay.definitions();
        let watched = Watched::new(self.observed.0.clone(), state);
        let mut rests = watched.rests();
        trace.visit(definitions, &mut [&mut rests]);
        let rules = Suppressions::default();
        let found = watched.judge(&trace, definitions.clone(), state, rests, &rules, 0);
        self.events = state.events;
        Ok(*self.rate.insert(Rate::of(&found)))
    }
}

/// The rates of all processes that are watched, by pid.
pub struct Rates {
    traces: Arc<Mutex<BTreeMap<u32, PathBuf>>>,
    rates: Background<BTreeMap<u32, Rate>>,
}

impl Rates {
    pub fn start() -> Rates {
        let traces: Arc<Mutex<BTreeMap<u32, PathBuf>>> = Arc::default();
        let wanted = traces.clone();
        let mut known: BTreeMap<u32, History> = BTreeMap::new();
        let next = move || {
            let wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
            known.retain(|pid, _| wanted.contains_key(pid));
            let rate = |(pid, trace): (u32, PathBuf)| {
                let history = known.entry(pid).or_default();
                (pid, history.rate(&trace).unwrap_or(Rate::None))
            };
            wanted.into_iter().map(rate).collect()
        };
        let rates = Background::start(BTreeMap::new(), Duration::from_millis(500), next);
        Rates { traces, rates }
    }

    /// From now on these processes are watched.
    pub fn watch(&self, processes: &[LiveProcess]) {
        let traced = processes.iter().filter(|process| !process.trace.is_empty());
        let traces = traced.map(|process| (process.pid, PathBuf::from(&process.trace))).collect();
        *self.traces.lock().unwrap_or_else(PoisonError::into_inner) = traces;
    }

    pub fn latest(&self) -> BTreeMap<u32, Rate> {
        self.rates.latest()
    }
}
