//! The state of `top`: what was seen last, and what the user chose.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use rustc_hash::FxHashMap;
use vramtrace_format::LiveSite;
use vramtrace_format::capspec::Limit;
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::clean;

use super::growth::{Line, Lines, by_name, compare};
use super::inside::Inside;
use super::look::{Cards, Look};
use super::rates::Rate;
use super::row::{Card, Row, Tracing, push, refused};
use super::untraced::{self, pids_are_those_of_nvml, utilization};
use crate::driver::nvml::cards::CardFacts;
use crate::live_processes::kernel_driver;

/// How many cards are kept that no process uses any more.
const MOST_CARDS: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    List,
    Process(u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Counted,
    Live,
    Rate,
    Refused,
    Pid,
    Command,
}

impl Sort {
    const ALL: [Sort; 6] =
        [Sort::Counted, Sort::Live, Sort::Rate, Sort::Refused, Sort::Pid, Sort::Command];

    pub fn name(self) -> &'static str {
        match self {
            Sort::Counted => "counted",
            Sort::Live => "live",
            Sort::Rate => "MiB/min",
            Sort::Refused => "refused",
            Sort::Pid => "pid",
            Sort::Command => "command",
        }
    }

    pub fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }
}

/// What the keys go to.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Input {
    #[default]
    Keys,
    Filter,
    /// The new cap of a process is typed.
    Cap {
        pid: u32,
        text: String,
    },
    /// The new cap is confirmed. `None`: no cap.
    Sure {
        pid: u32,
        limit: Option<Limit>,
        question: String,
    },
    /// The list of keys is shown.
    Help,
}

/// What the user ordered, for the event loop to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    Cap { pid: u32, limit: Option<Limit> },
    Page { pid: u32, trace: PathBuf },
}

#[derive(Debug, Default)]
pub struct State {
    pub cards: BTreeMap<[u8; 16], Card>,
    rows: Vec<Row>,
    traces: BTreeMap<u32, String>,
    sites: BTreeMap<u32, Vec<LiveSite>>,
    /// Rank by path of the trace; each trace is opened once.
    ranks: BTreeMap<String, Option<u32>>,
    /// What NVML does not say.
    pub nvml_note: Option<String>,
    pub view: View,
    pub lines: Lines,
    pub inside: Inside,
    /// Whose lines these are.
    shown: Option<u32>,
    /// The lines when the process was opened.
    first: Option<FxHashMap<String, u64>>,
    /// Only what changed since then is listed, what grew most first.
    pub compares: bool,
    /// Lines above the first one that is shown.
    pub scrolled: usize,
    pub chosen: Option<u32>,
    pub sort: Sort,
    pub filter: String,
    pub input: Input,
    pub order: Option<Order>,
    /// The result of the last order.
    pub message: Option<String>,
    pub is_paused: bool,
    pub is_left: bool,
}

impl State {
    /// Replaces all figures by those of a look.
    pub fn update(&mut self, look: &Look) {
        let processes = &look.processes;
        self.sites = processes.iter().map(|process| (process.pid, process.sites.clone())).collect();
        self.traces.clear();
        for process in processes.iter().filter(|process| !process.trace.is_empty()) {
            self.traces.insert(process.pid, process.trace.clone());
        }
        let traces: BTreeSet<&String> = self.traces.values().collect();
        self.ranks.retain(|path, _| traces.contains(path));
        let histories: BTreeMap<u32, VecDeque<u64>> =
            self.rows.drain(..).map(|row| (row.pid, row.history)).collect();
        let cards = match &look.cards {
            Cards::Known(cards) => cards.as_slice(),
            _ => &[],
        };
        let mut rows: Vec<Row> = Vec::new();
        for process in processes {
            let trace = &process.trace;
            let rank = *self.ranks.entry(trace.clone()).or_insert_with(|| {
                let path = (!trace.is_empty()).then(|| PathBuf::from(trace))?;
                Trace::open(&path).ok()?.header().rank
            });
            let mut row = Row::of(process, rank, look.owners.get(&process.pid));
            for (device, page) in row.devices.iter_mut().zip(&process.devices) {
                let card = cards.iter().find(|card| card.uuid == page.uuid);
                let index = card.map(|card| card.index);
                device.index = index.filter(|index| *index != u32::from(device.ordinal));
            }
            row.rate = match process.trace.is_empty() {
                true => Some(Rate::None),
                false => look.rates.get(&process.pid).copied(),
            };
            row.utilization = utilization(cards, process.pid);
            rows.push(row);
        }
        self.nvml_note = match &look.cards {
            Cards::None(why) => Some(format!("without NVML ({why})")),
            _ => None,
        };
        match pids_are_those_of_nvml(look, cards) {
            true => rows.extend(untraced::rows(look, cards)),
            false => self.nvml_note = Some("NVML lists other pids: a container?".into()),
        }
        for row in &mut rows {
            row.history = histories.get(&row.pid).cloned().unwrap_or_default();
            push(&mut row.history, row.counted.unwrap_or(0));
        }
        self.rows = rows;
        self.update_cards(look, cards);
        self.keep_chosen();
    }

    fn update_cards(&mut self, look: &Look, facts: &[CardFacts]) {
        for card in self.cards.values_mut() {
            (card.counted, card.refused, card.processes) = (0, 0, 0);
            (card.cap, card.used, card.utilization) = (Some(0), None, None);
        }
        for device in look.processes.iter().flat_map(|process| &process.devices) {
            let card =
                self.cards.entry(device.uuid).or_insert(Card { cap: Some(0), ..Card::default() });
            (card.ordinal, card.total) = (device.ordinal, device.total_bytes);
            card.counted = card.counted.saturating_add(device.counted);
            card.cap = card.cap.zip(device.cap).map(|(sum, cap)| sum.saturating_add(cap));
            card.refused = card.refused.saturating_add(refused(device));
            card.processes += 1;
        }
        for fact in facts {
            let card =
                self.cards.entry(fact.uuid).or_insert(Card { cap: Some(0), ..Card::default() });
            (card.index, card.model) = (Some(fact.index), clean(&fact.name));
            (card.used, card.utilization) = (Some(fact.used), fact.utilization);
            if fact.total > 0 {
                card.total = fact.total;
            }
        }
        // A page may name another card at each look.
        if self.cards.len() > MOST_CARDS {
            self.cards.retain(|_, card| card.processes > 0 || card.used.is_some());
        }
        // Before NVML has answered the recorded part would stand for the whole.
        if look.cards != Cards::Reading {
            for card in self.cards.values_mut() {
                let in_use = card.in_use();
                push(&mut card.history, in_use);
            }
        }
    }

    /// What was read of the trace of the process that is shown.
    pub fn set_lines(&mut self, (mut lines, inside): (Lines, Inside)) {
        if let Lines::Known(known) = &mut lines {
            if let View::Process(_) = self.view {
                compare(known, self.first.get_or_insert_with(|| by_name(known)));
            } else {
                compare(known, &by_name(known));
            }
        }
        (self.lines, self.inside) = (lines, inside);
    }

    /// Opens a process. If its lines were shown before, they are compared with what they are now.
    pub fn open(&mut self, pid: u32) {
        (self.view, self.chosen, self.first) = (View::Process(pid), Some(pid), None);
        (self.compares, self.scrolled) = (false, 0);
        if self.shown != Some(pid) {
            self.show(Some(pid));
        }
    }

    /// From now on the lines are those of this process, once they are read.
    pub fn show(&mut self, pid: Option<u32>) {
        (self.shown, self.lines, self.inside) = (pid, Lines::Reading, Inside::default());
        if let Some(why) = pid.and_then(|pid| self.why_no_trace(pid)) {
            self.lines = Lines::None(why);
        }
    }

    fn why_no_trace(&self, pid: u32) -> Option<String> {
        let tracing = self.row_of(pid)?.tracing;
        match tracing {
            _ if self.traces.contains_key(&pid) => None,
            Tracing::Recorded | Tracing::NotRecorded => Some("the process records nothing".into()),
            Tracing::SwitchedOff => Some("its recording is off".into()),
            Tracing::Untraced => Some(
                "it runs without the recorder: start it by `vramtrace run` to see its lines".into(),
            ),
            Tracing::PastLibcuda => Some(format!("it {}", kernel_driver::UNRECORDED)),
            Tracing::OfOthers => {
                Some("it belongs to another user, whose traces are not read".into())
            }
        }
    }

    /// The lines that are listed: all, or those that changed.
    pub fn listed_lines(&self) -> Vec<&Line> {
        let Lines::Known(lines) = &self.lines else { return Vec::new() };
        let mut listed: Vec<&Line> =
            lines.iter().filter(|line| !self.compares || line.grew != 0).collect();
        if self.compares {
            listed.sort_by(|a, b| b.grew.cmp(&a.grew).then_with(|| a.name.cmp(&b.name)));
        }
        listed
    }

    /// The rows that match the filter, sorted.
    pub fn rows(&self) -> Vec<&Row> {
        let wanted = self.filter.to_lowercase();
        let fits = |row: &&Row| {
            let rank = row.rank.unwrap_or_default();
            let text = format!("{} {} rank {rank} {}", row.pid, row.full_name(), row.user);
            text.to_lowercase().contains(&wanted)
        };
        let mut rows: Vec<&Row> = self.rows.iter().filter(fits).collect();
        let speed = |row: &Row| match row.rate {
            Some(Rate::Growing { bytes_per_s, .. }) => bytes_per_s,
            _ => 0.0,
        };
        rows.sort_by(|a, b| {
            let order = match self.sort {
                Sort::Counted => b.counted.cmp(&a.counted),
                Sort::Live => b.live.cmp(&a.live),
                Sort::Rate => speed(b).total_cmp(&speed(a)),
                Sort::Refused => b.refused.cmp(&a.refused),
                Sort::Pid => a.pid.cmp(&b.pid),
                Sort::Command => a.command.cmp(&b.command),
            };
            order.then(a.pid.cmp(&b.pid))
        });
        rows
    }

    pub fn row_of(&self, pid: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.pid == pid)
    }

    /// The process that keys act on.
    pub fn subject(&self) -> Option<&Row> {
        self.row_of(match self.view {
            View::Process(pid) => pid,
            View::List => self.chosen?,
        })
    }

    pub fn trace_of(&self, pid: u32) -> Option<PathBuf> {
        self.traces.get(&pid).map(PathBuf::from)
    }

    /// What the largest call sites of a process hold, by library: name, bytes, allocations.
    pub fn libraries_of(&self, pid: u32) -> Vec<(String, u64, u64)> {
        let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for site in self.sites.get(&pid).into_iter().flatten() {
            let (bytes, count) = sums.entry(&site.library).or_default();
            *bytes = bytes.saturating_add(site.bytes);
            *count = count.saturating_add(site.count);
        }
        let name = |library: &str| if library.is_empty() { "?".into() } else { clean(library) };
        let all = sums.into_iter().map(|(library, (bytes, count))| (name(library), bytes, count));
        let mut all: Vec<(String, u64, u64)> = all.collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all
    }

    /// Chooses the first row if the chosen one is not listed.
    pub fn keep_chosen(&mut self) {
        let rows = self.rows();
        if !rows.iter().any(|row| Some(row.pid) == self.chosen) {
            self.chosen = rows.first().map(|row| row.pid);
        }
    }
}
