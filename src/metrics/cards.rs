//! A thread that asks NVML, whose calls may take long or never return: memory of the cards, and since when a process
//! has used none of its time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::driver::nvml::{CardFacts, Cards};
use crate::live_processes::background::Background;

/// Between two questions.
const EVERY: Duration = Duration::from_secs(5);

/// NVML's answer.
#[derive(Clone, Debug)]
pub struct NvmlAnswer {
    pub at: Instant,
    pub cards: Vec<CardFacts>,
    /// By card and pid: since when no utilization was seen. Only of cards that tell it.
    idle_since: BTreeMap<([u8; 16], u32), Instant>,
}

impl NvmlAnswer {
    /// For how long NVML has shown no utilization of a process on a card. `None`: it does not tell.
    pub fn idle(&self, uuid: &[u8; 16], pid: u32) -> Option<Duration> {
        self.idle_since.get(&(*uuid, pid)).map(|since| self.at - *since)
    }
}

/// The thread, with NVML's last answer.
pub fn watch() -> Background<Option<NvmlAnswer>> {
    let (mut opened, mut idle, mut last) = (None, Idle::default(), None);
    Background::start(None, EVERY, move || {
        if opened.is_none() {
            opened = Cards::open().ok();
        }
        match opened.as_mut().and_then(|cards| cards.read().ok()) {
            Some(cards) => {
                let at = Instant::now();
                let idle_since = idle.update(&cards, at).clone();
                last = Some(NvmlAnswer { at, cards, idle_since });
            }
            None => opened = None,
        }
        last.clone()
    })
}

/// Since when each process has shown no utilization.
#[derive(Default)]
struct Idle(BTreeMap<([u8; 16], u32), Instant>);

impl Idle {
    fn update(&mut self, cards: &[CardFacts], now: Instant) -> &BTreeMap<([u8; 16], u32), Instant> {
        let mut seen: BTreeSet<([u8; 16], u32)> = BTreeSet::new();
        for card in cards.iter().filter(|card| card.tells_utilization) {
            for (pid, process) in &card.processes {
                let since = self.0.entry((card.uuid, *pid)).or_insert(now);
                if process.utilization.unwrap_or(0) > 0 {
                    *since = now;
                }
                seen.insert((card.uuid, *pid));
            }
        }
        self.0.retain(|key, _| seen.contains(key));
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::nvml::CardProcess;

    #[test]
    fn a_process_is_idle_since_its_last_sample_and_unknown_where_nvml_is_silent() {
        let card = |utilization, tells_utilization| CardFacts {
            uuid: [1; 16],
            processes: [(7, CardProcess { bytes: Some(1), utilization })].into(),
            tells_utilization,
            ..CardFacts::default()
        };
        let mut idle = Idle::default();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut since = |utilization, tells, s| {
            let all = idle.update(&[card(utilization, tells)], at(s));
            all.get(&([1; 16], 7)).map(|since| (*since - start).as_secs())
        };
        assert_eq!(since(None, true, 0), Some(0), "since it was seen first");
        assert_eq!(since(None, true, 10), Some(0));
        assert_eq!(since(Some(3), true, 20), Some(20));
        assert_eq!(since(Some(0), true, 30), Some(20));
        assert_eq!(since(Some(0), false, 40), None, "MIG, or a driver that does not tell");
        assert_eq!(since(Some(0), true, 50), Some(50));
    }
}
