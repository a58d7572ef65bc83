//! How fast recorded processes grow, and when a card or cap is full: the verdicts of `vramtrace leaks` on their
//! growing traces, by a thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vramtrace_format::DeviceId;

use super::background::Background;
use crate::live_processes::followed::{Followed, Growth};
use crate::live_processes::process::{self, LiveProcess};

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
    pub fn of(devices: &BTreeMap<DeviceId, Growth>) -> Rate {
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
    followed: Followed,
    rate: Option<Rate>,
}

impl History {
    /// `None`: not known yet.
    pub fn rate(&mut self, path: &Path) -> Option<Rate> {
        match self.followed.read([path.to_path_buf()], process::user(), |_| true) {
            Some(true) => self.rate = Some(Rate::of(&self.followed.figures.growth)),
            Some(false) => {}
            None => self.rate = Some(Rate::None),
        }
        self.rate
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
                Some((pid, known.entry(pid).or_default().rate(&trace)?))
            };
            wanted.into_iter().filter_map(rate).collect()
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
