//! The state of `top`: what was seen last, what the user chose, and what each key changes.

use std::collections::BTreeMap;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rustc_hash::FxHashMap;

use super::look::Look;
use super::opened::{Lines, by_name, compare};
use super::row::{CardRow, ProcessRow};

/// How many past values of bytes in use are kept.
const HISTORY: usize = 240;

#[derive(Debug, Default)]
pub struct State {
    pub cards: BTreeMap<[u8; 16], CardRow>,
    /// The largest first.
    rows: Vec<ProcessRow>,
    /// What NVML does not say.
    pub nvml_note: Option<String>,
    pub chosen: Option<u32>,
    /// The process that is shown in place of the list.
    pub opened: Option<u32>,
    /// Its lines.
    pub lines: Lines,
    /// Bytes of its lines when it was opened.
    first: Option<FxHashMap<String, u64>>,
    /// Lines above the first one that is shown.
    pub scrolled: usize,
    pub filter: String,
    /// The keys go to the filter.
    pub is_filtering: bool,
    pub is_left: bool,
}

impl State {
    /// Replaces all figures by those of a look.
    pub fn update(&mut self, look: &Look) {
        self.nvml_note = match &look.cards {
            Some(Err(why)) => Some(format!("without NVML ({why})")),
            _ => None,
        };
        self.rows = look.processes.iter().map(|process| ProcessRow::of(process, look)).collect();
        match look.has_pids_of_nvml() {
            true => {
                self.rows.extend(look.untraced().iter().map(|pid| ProcessRow::untraced(*pid, look)))
            }
            false => self.nvml_note = Some("NVML lists other pids: a container?".into()),
        }
        self.rows.sort_by(|a, b| b.counted.cmp(&a.counted).then(a.pid.cmp(&b.pid)));
        let mut before = std::mem::take(&mut self.cards);
        for device in look.processes.iter().flat_map(|process| &process.devices) {
            self.cards.entry(device.uuid).or_default().devices.push(*device);
        }
        for facts in look.cards() {
            self.cards.entry(facts.uuid).or_default().facts = Some(facts.clone());
        }
        for (uuid, card) in &mut self.cards {
            card.history = before.remove(uuid).map(|card| card.history).unwrap_or_default();
            // Before NVML has answered the recorded part would stand for the whole.
            if look.cards.is_some() {
                card.history.push_back(card.in_use());
                card.history.drain(..card.history.len().saturating_sub(HISTORY));
            }
        }
        self.keep_chosen();
    }

    /// What was read of the trace of the opened process.
    pub fn set_lines(&mut self, mut lines: Lines) {
        if let Lines::Known { lines, .. } = &mut lines {
            compare(lines, self.first.get_or_insert_with(|| by_name(lines)));
        }
        self.lines = lines;
    }

    /// Opens a process. From now on the lines are those of this process, once they are read.
    pub fn open(&mut self, pid: u32) {
        (self.opened, self.chosen, self.first) = (Some(pid), Some(pid), None);
        self.scrolled = 0;
        self.lines = match self.row_of(pid).filter(|row| row.trace().is_none()) {
            Some(row) => Lines::None(row.why_no_trace.clone()),
            None => Lines::Reading,
        };
    }

    /// The rows that match the filter.
    pub fn rows(&self) -> Vec<&ProcessRow> {
        let wanted = self.filter.to_lowercase();
        let fits = |row: &&ProcessRow| {
            let rank = row.rank().unwrap_or_default();
            let text = format!("{} {} rank {rank} {}", row.pid, row.full_name(), row.user);
            text.to_lowercase().contains(&wanted)
        };
        self.rows.iter().filter(fits).collect()
    }

    pub fn row_of(&self, pid: u32) -> Option<&ProcessRow> {
        self.rows.iter().find(|row| row.pid == pid)
    }

    /// Chooses the first row if the chosen one is not listed.
    fn keep_chosen(&mut self) {
        let rows = self.rows();
        if !rows.iter().any(|row| Some(row.pid) == self.chosen) {
            self.chosen = rows.first().map(|row| row.pid);
        }
    }

    pub fn key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.is_left = true;
            return;
        }
        if !std::mem::take(&mut self.is_filtering) {
            self.command(key.code);
        } else {
            self.is_filtering = !matches!(key.code, KeyCode::Enter | KeyCode::Esc);
            match key.code {
                KeyCode::Esc => self.filter.clear(),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) if !c.is_control() => self.filter.push(c),
                _ => {}
            }
        }
        self.keep_chosen();
    }

    fn command(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('q') => self.is_left = true,
            KeyCode::Char('/') => (self.is_filtering, self.opened) = (true, None),
            KeyCode::Up => self.step(-1),
            KeyCode::Down => self.step(1),
            KeyCode::PageUp => self.step(-10),
            KeyCode::PageDown => self.step(10),
            KeyCode::Enter => {
                if let (None, Some(pid)) = (self.opened, self.chosen) {
                    self.open(pid);
                }
            }
            KeyCode::Esc if self.opened.is_some() => self.opened = None,
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
    }

    fn step(&mut self, by: isize) {
        if self.opened.is_some() {
            let lines = match &self.lines {
                Lines::Known { lines, .. } => lines.len(),
                _ => 0,
            };
            let last = lines.saturating_sub(1);
            self.scrolled = self.scrolled.saturating_add_signed(by).min(last);
            return;
        }
        let rows = self.rows();
        let at = rows.iter().position(|row| Some(row.pid) == self.chosen).unwrap_or(0);
        let next = at.saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.chosen = rows.get(next).map(|row| row.pid);
    }
}
