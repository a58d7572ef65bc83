//! The state of `top`: what was seen last, and what the user chose.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use rustc_hash::FxHashMap;
use vramtrace_format::capspec::Limit;

use super::columns::Column;
use super::growth::{Line, Lines, by_name, compare};
use super::inside::Inside;
use super::look::Look;
use super::row::{Card, Row, push};

/// How many cards are kept that no process uses any more.
const MOST_CARDS: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    List,
    Process(u32),
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
    pub sort: Column,
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
        let mut histories: BTreeMap<u32, VecDeque<u64>> =
            self.rows.drain(..).map(|row| (row.pid, row.history)).collect();
        self.rows.extend(look.processes.iter().map(|process| Row::of(process, look)));
        self.nvml_note = match &look.cards {
            Some(Err(why)) => Some(format!("without NVML ({why})")),
            _ => None,
        };
        match look.has_pids_of_nvml() {
            true => {
                self.rows.extend(look.untraced().into_iter().map(|pid| Row::untraced(pid, look)))
            }
            false => self.nvml_note = Some("NVML lists other pids: a container?".into()),
        }
        for row in &mut self.rows {
            row.history = histories.remove(&row.pid).unwrap_or_default();
            push(&mut row.history, row.counted.unwrap_or(0));
        }
        self.update_cards(look);
        self.keep_chosen();
    }

    fn update_cards(&mut self, look: &Look) {
        for card in self.cards.values_mut() {
            card.devices.clear();
            card.is_listed = false;
        }
        for device in look.processes.iter().flat_map(|process| &process.devices) {
            let card = self.cards.entry(device.uuid).or_default();
            card.last = *device;
            card.devices.push(*device);
        }
        for facts in look.cards() {
            let card = self.cards.entry(facts.uuid).or_default();
            (card.facts, card.is_listed) = (Some(facts.clone()), true);
        }
        // A page may name another card at each look.
        if self.cards.len() > MOST_CARDS {
            self.cards.retain(|_, card| !card.devices.is_empty() || card.is_listed);
        }
        // Before NVML has answered the recorded part would stand for the whole.
        if look.cards.is_some() {
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
        let row = pid.and_then(|pid| self.row_of(pid)).filter(|row| row.trace().is_none());
        if let Some(why) = row.map(|row| row.tracing.why_no_trace()) {
            self.lines = Lines::None(why);
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
            let rank = row.rank().unwrap_or_default();
            let text = format!("{} {} rank {rank} {}", row.pid, row.full_name(), row.user);
            text.to_lowercase().contains(&wanted)
        };
        let mut rows: Vec<&Row> = self.rows.iter().filter(fits).collect();
        rows.sort_by(|a, b| self.sort.compare(a, b));
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
        self.row_of(pid)?.trace().map(PathBuf::from)
    }

    /// Chooses the first row if the chosen one is not listed.
    pub fn keep_chosen(&mut self) {
        let rows = self.rows();
        if !rows.iter().any(|row| Some(row.pid) == self.chosen) {
            self.chosen = rows.first().map(|row| row.pid);
        }
    }
}
