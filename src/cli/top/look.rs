//! What `top` sees at one moment: live pages, NVML's cards, the users of processes, and how fast their lines grow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vramtrace_format::LiveDevice;
use vramtrace_reader::units::clean;

use crate::driver::nvml::{CardFacts, Cards};
use crate::live_processes::background::Background;
use crate::live_processes::followed::{Followed, Growth};
use crate::live_processes::process::{self, LiveProcess, user};
use crate::live_processes::{PageProblem, owner};

/// NVML's cards, or why there are none. `None`: it has not answered yet.
pub type CardsAnswer = Option<Result<Vec<CardFacts>, String>>;

/// The lines of a process with the verdict GROWING, together; `None`: no line grows, or the trace cannot be read.
pub type GrowthVerdict = Option<Growth>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessOwner {
    pub user: String,
    /// It belongs to the user of this command.
    pub is_mine: bool,
    pub command: String,
}

#[derive(Debug, Default)]
pub struct Look {
    pub processes: Vec<LiveProcess>,
    pub cards: CardsAnswer,
    /// By pid. A process that is not here cannot be seen from this pid namespace, or has ended.
    pub owners: BTreeMap<u32, ProcessOwner>,
    /// By pid; of processes that are judged.
    pub verdicts: BTreeMap<u32, GrowthVerdict>,
    /// The pids here are those of the machine.
    pub in_first_namespace: bool,
}

/// The sources of looks.
pub struct Sources {
    cards: Background<CardsAnswer>,
    /// The traces that are judged, by pid.
    traces: Arc<Mutex<BTreeMap<u32, PathBuf>>>,
    verdicts: Background<BTreeMap<u32, GrowthVerdict>>,
}

impl Sources {
    pub fn start(interval: Duration) -> Sources {
        let mut opened = None;
        let mut read = move || {
            let cards = match &mut opened {
                Some(cards) => cards,
                None => opened.insert(Cards::open()?),
            };
            cards.read()
        };
        let cards = move || Some(read().map_err(|error| clean(&error.to_string())));
        let traces: Arc<Mutex<BTreeMap<u32, PathBuf>>> = Arc::default();
        let wanted = traces.clone();
        let mut judged = Judged::default();
        let verdicts =
            move || judged.read(wanted.lock().unwrap_or_else(PoisonError::into_inner).clone());
        Sources {
            cards: Background::start(None, interval, cards),
            traces,
            verdicts: Background::start(BTreeMap::new(), Duration::from_millis(500), verdicts),
        }
    }

    pub fn look(&self) -> (Look, Vec<PageProblem>) {
        let (processes, problems) = process::all();
        let traced = processes.iter().filter(|process| !process.trace.is_empty());
        let traces = traced.map(|process| (process.pid, PathBuf::from(&process.trace))).collect();
        *self.traces.lock().unwrap_or_else(PoisonError::into_inner) = traces;
        let cards = self.cards.latest();
        let listed = cards.iter().flatten().flatten().flat_map(|card| card.processes.keys());
        let pids: BTreeSet<u32> =
            processes.iter().map(|process| process.pid).chain(listed.copied()).collect();
        let owner = |pid: u32| {
            let of = owner::user_of(pid)?;
            let (user, command) = (clean(&owner::user_name(of)), clean(&process::command(pid)));
            Some((pid, ProcessOwner { user, is_mine: of == self::user(), command }))
        };
        let look = Look {
            owners: pids.into_iter().filter_map(owner).collect(),
            verdicts: self.verdicts.latest(),
            in_first_namespace: owner::is_in_first_namespace(),
            processes,
            cards,
        };
        (look, problems)
    }
}

/// The traces that are judged. Each reading goes on where the last one ended.
#[derive(Default)]
pub(super) struct Judged {
    followed: BTreeMap<u32, Followed>,
    verdicts: BTreeMap<u32, GrowthVerdict>,
}

impl Judged {
    /// The verdicts on these traces that are known by now.
    pub(super) fn read(&mut self, traces: BTreeMap<u32, PathBuf>) -> BTreeMap<u32, GrowthVerdict> {
        self.followed.retain(|pid, _| traces.contains_key(pid));
        self.verdicts.retain(|pid, _| traces.contains_key(pid));
        for (pid, trace) in traces {
            let followed = self.followed.entry(pid).or_default();
            let verdict = match followed.read([trace], user(), |_| true) {
                Some(true) => together(&followed.figures.growth),
                Some(false) => continue,
                None => None,
            };
            self.verdicts.insert(pid, verdict);
        }
        self.verdicts.clone()
    }
}

/// The growth of all devices, with the time until the first of them is full.
fn together<K>(devices: &BTreeMap<K, Growth>) -> GrowthVerdict {
    (!devices.is_empty()).then(|| Growth {
        bytes_per_s: devices.values().map(|growth| growth.bytes_per_s).sum(),
        full_in_s: devices.values().filter_map(|growth| growth.full_in_s).reduce(f64::min),
    })
}

impl Look {
    pub fn cards(&self) -> &[CardFacts] {
        self.cards.iter().flatten().next().map_or(&[], Vec::as_slice)
    }

    /// Whether there are verdicts on each process.
    pub fn has_verdicts(&self) -> bool {
        let judged = |process: &LiveProcess| {
            process.trace.is_empty() || self.verdicts.contains_key(&process.pid)
        };
        self.processes.iter().all(judged)
    }

    /// The processes of the cards that have no live page of this user.
    pub fn untraced(&self) -> BTreeSet<u32> {
        let listed = self.cards().iter().flat_map(|card| card.processes.keys());
        let is_traced = |pid: &u32| self.processes.iter().any(|process| process.pid == *pid);
        listed.copied().filter(|pid| !is_traced(pid)).collect()
    }

    /// Whether NVML knows processes by the pids that they have here. In a container it lists those of the machine.
    pub fn has_pids_of_nvml(&self) -> bool {
        let cards = self.cards();
        let is_listed = |pid: &u32| cards.iter().any(|card| card.processes.contains_key(pid));
        let on_a_card = |device: &LiveDevice| {
            device.resident > 0 && cards.iter().any(|card| card.uuid == device.uuid)
        };
        let mut traced =
            self.processes.iter().filter(|it| it.devices.iter().any(on_a_card)).peekable();
        match traced.peek() {
            _ if cards.iter().all(|card| card.processes.is_empty()) => true,
            None => self.in_first_namespace,
            Some(_) => traced.any(|process| is_listed(&process.pid)),
        }
    }
}
