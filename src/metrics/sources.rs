//! What a scrape reads: live pages now, and what the threads found last.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::cards::{self, Answer};
use super::collect::{self, Found};
use super::counters::Counters;
use super::limits::{self, MOST_OF_NODE};
use super::passes::Passes;
use super::text::{self, Format};
use crate::live_processes::background::Background;
use crate::live_processes::places::Places;
use crate::live_processes::process;

pub struct Sources {
    places: Places,
    passes: Passes,
    cards: Background<Option<Answer>>,
    counters: Mutex<Counters>,
}

/// Between two readings of one trace.
pub const PASS_EVERY: Duration = Duration::from_secs(60);
/// How long a single look waits for NVML.
const NVML_WAIT: Duration = Duration::from_secs(2);

impl Sources {
    /// Starts the threads.
    pub fn start() -> Sources {
        let places = Places::of_environment();
        let passes = Passes::start(places.clone(), PASS_EVERY, false);
        Sources { places, passes, cards: cards::watch(), counters: Mutex::default() }
    }

    /// Reads all traces now, and waits for NVML: for a single look.
    pub fn once() -> Sources {
        let places = Places::of_environment();
        let cards = cards::watch();
        let passes = Passes::once(&places);
        cards.wait(NVML_WAIT, Option::is_some);
        Sources { places, passes, cards, counters: Mutex::default() }
    }

    /// The metrics now.
    pub fn text(&self, format: Format) -> String {
        // One at a time: the counters go from one look to the next.
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let (processes, problems) = process::of_users(&self.places, |_| true);
        self.passes.saw(&processes);
        let answer = self.cards.latest();
        let known = processes.iter().map(|process| self.passes.known(process.key)).collect();
        let found = Found {
            processes,
            known,
            problems: problems.len(),
            answer,
            pass_cpu_s: self.passes.cpu_s(),
            failures: self.passes.failures(),
        };
        let processes = collect::processes(&found);
        let mut node = collect::node(&found);
        let room = MOST_OF_NODE.saturating_sub(node.len() + 1);
        let (groups, folded) = limits::of_node(counters.grouped(processes), room);
        collect::add_folded(&mut node, folded);
        text::encode(&groups, &node, format)
    }
}
