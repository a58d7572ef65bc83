//! What `top` sees at one moment: live pages, NVML's cards, the users of processes, rates of growth.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vramtrace_reader::units::clean;

use super::background::Background;
use super::rates::{Rate, Rates};
use crate::driver::nvml::cards::{self, CardFacts};
use crate::live_processes::process::{self, LiveProcess};
use crate::live_processes::{PageProblem, owner};

/// NVML's answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Cards {
    #[default]
    Reading,
    Known(Vec<CardFacts>),
    /// Why there is none.
    None(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owner {
    pub user: String,
    /// It belongs to the user of this command.
    pub is_mine: bool,
    /// Of a process without a live page.
    pub command: String,
}

#[derive(Debug, Default)]
pub struct Look {
    pub processes: Vec<LiveProcess>,
    pub cards: Cards,
    /// By pid. A process that is not here cannot be seen from this pid namespace, or has ended.
    pub owners: BTreeMap<u32, Owner>,
    pub rates: BTreeMap<u32, Rate>,
    /// The pids here are those of the machine.
    pub in_first_namespace: bool,
}

/// The sources of looks.
pub struct Sources {
    cards: Background<Cards>,
    rates: Rates,
}

impl Sources {
    pub fn start(interval: Duration) -> Sources {
        let mut opened = None;
        let next = move || {
            let cards = match &mut opened {
                Some(cards) => cards,
                None => match cards::Cards::open() {
                    Ok(cards) => opened.insert(cards),
                    Err(error) => return Cards::None(clean(&error.to_string())),
                },
            };
            cards.read().map_or_else(|error| Cards::None(clean(&error.to_string())), Cards::Known)
        };
        let cards = Background::start(Cards::Reading, interval, next);
        Sources { cards, rates: Rates::start() }
    }

    pub fn look(&self) -> (Look, Vec<PageProblem>) {
        let (processes, problems) = process::all();
        self.rates.watch(&processes);
        let cards = self.cards.latest();
        let mut pids: BTreeSet<u32> = processes.iter().map(|process| process.pid).collect();
        let traced = pids.clone();
        if let Cards::Known(known) = &cards {
            pids.extend(known.iter().flat_map(|card| card.processes.keys()));
        }
        let owner = |pid: &u32| {
            let user = owner::user_of(*pid)?;
            let command =
                if traced.contains(pid) { String::new() } else { clean(&process::command(*pid)) };
            let is_mine = user == process::user();
            Some((*pid, Owner { user: clean(&owner::user_name(user)), is_mine, command }))
        };
        let look = Look {
            owners: pids.iter().filter_map(owner).collect(),
            rates: self.rates.latest(),
            in_first_namespace: owner::is_in_first_namespace(),
            processes,
            cards,
        };
        (look, problems)
    }
}

impl Look {
    pub fn has_cards(&self) -> bool {
        self.cards != Cards::Reading
    }

    /// Whether there are verdicts on each process.
    pub fn has_verdicts(&self) -> bool {
        let judged = |process: &LiveProcess| {
            process.trace.is_empty() || self.rates.contains_key(&process.pid)
        };
        self.processes.iter().all(judged)
    }
}
