//! The state of `top` and what each key changes in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use vramtrace_format::live::LiveState;
use vramtrace_format::{LiveDevice, LiveSite};
use vramtrace_reader::report::text::layout::{PLAIN, Table};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{clean, count, gib, shorten};

use super::growth::Lines;
use super::inside::Inside;
use crate::live_processes::process::LiveProcess;

/// How many past values of bytes in use are kept for each card.
pub const HISTORY: usize = 240;

/// How many cards are kept that no process uses any more.
const MOST_CARDS: usize = 256;

/// A card, with what the recorded processes of this user hold of it together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Card {
    pub ordinal: u8,
    pub total: u64,
    pub used: u64,
    /// The sum of the caps; `None`: a process has none.
    pub cap: Option<u64>,
    pub refused: u64,
    pub processes: u64,
    pub history: VecDeque<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub pid: u32,
    pub rank: Option<u32>,
    pub name: String,
    pub devices: String,
    pub live: u64,
    pub used: u64,
    pub cap: Option<u64>,
    pub only_warns: bool,
    pub refused: u64,
    pub recorded: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    List,
    Process(u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Used,
    Allocated,
    Refused,
    Pid,
    Name,
}

impl Sort {
    const ALL: [Sort; 5] = [Sort::Used, Sort::Allocated, Sort::Refused, Sort::Pid, Sort::Name];

    pub fn name(self) -> &'static str {
        match self {
            Sort::Used => "use",
            Sort::Allocated => "allocated",
            Sort::Refused => "refused",
            Sort::Pid => "pid",
            Sort::Name => "program",
        }
    }

    fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }
}

#[derive(Debug, Default)]
pub struct State {
    pub cards: BTreeMap<[u8; 16], Card>,
    rows: Vec<Row>,
    traces: BTreeMap<u32, String>,
    sites: BTreeMap<u32, Vec<LiveSite>>,
    /// Rank by path of the trace; each trace is opened once.
    ranks: BTreeMap<String, Option<u32>>,
    pub view: View,
    pub lines: Lines,
    pub inside: Inside,
    pub chosen: Option<u32>,
    pub sort: Sort,
    pub filter: String,
    pub is_typing: bool,
    pub is_paused: bool,
    pub is_left: bool,
}

impl State {
    /// Replaces all figures by those of the live pages.
    pub fn update(&mut self, processes: Vec<LiveProcess>) {
        for card in self.cards.values_mut() {
            (card.used, card.refused, card.processes) = (0, 0, 0);
            card.cap = Some(0);
        }
        for device in processes.iter().flat_map(|process| &process.devices) {
            let card =
                self.cards.entry(device.uuid).or_insert(Card { cap: Some(0), ..Card::default() });
            (card.ordinal, card.total) = (device.ordinal, device.total_bytes);
            card.used = card.used.saturating_add(device.counted);
            card.cap = card.cap.zip(device.cap).map(|(sum, cap)| sum.saturating_add(cap));
            card.refused = card.refused.saturating_add(refused(device));
            card.processes += 1;
        }
        // A page may name another card at each look.
        if self.cards.len() > MOST_CARDS {
            self.cards.retain(|_, card| card.processes > 0);
        }
        for card in self.cards.values_mut() {
            card.history.push_back(card.used);
            if card.history.len() > HISTORY {
                card.history.pop_front();
            }
        }
        self.sites = processes.iter().map(|process| (process.pid, process.sites.clone())).collect();
        self.traces.clear();
        for process in processes.iter().filter(|process| !process.trace.is_empty()) {
            self.traces.insert(process.pid, process.trace.clone());
        }
        let traces: BTreeSet<&String> = self.traces.values().collect();
        self.ranks.retain(|path, _| traces.contains(path));
        self.rows = processes.iter().map(|process| self.row(process)).collect();
        if !self.rows.iter().any(|row| Some(row.pid) == self.chosen) {
            self.chosen = self.rows().first().map(|row| row.pid);
        }
    }

    fn row(&mut self, process: &LiveProcess) -> Row {
        let sum = |of: fn(&LiveDevice) -> u64| {
            process.devices.iter().map(of).fold(0, u64::saturating_add)
        };
        let caps: Option<Vec<u64>> = process.devices.iter().map(|device| device.cap).collect();
        let devices: Vec<String> = process
            .devices
            .iter()
            .map(|device| match device.ordinal {
                u8::MAX => "?".into(),
                ordinal => ordinal.to_string(),
            })
            .collect();
        let trace = &process.trace;
        let rank = *self.ranks.entry(trace.clone()).or_insert_with(|| {
            let path = (!trace.is_empty()).then(|| PathBuf::from(trace))?;
            Trace::open(&path).ok()?.header().rank
        });
        Row {
            pid: process.pid,
            rank,
            name: script(&clean(&process.command)),
            devices: devices.join(","),
            live: sum(|device| device.live),
            used: sum(|device| device.counted),
            cap: caps
                .filter(|caps| !caps.is_empty())
                .map(|caps| caps.into_iter().fold(0, u64::saturating_add)),
            only_warns: process.devices.iter().any(|device| device.only_warns),
            refused: sum(refused),
            recorded: matches!(process.state, LiveState::Loaded | LiveState::Recording),
        }
    }

    /// The rows that match the filter, sorted.
    pub fn rows(&self) -> Vec<&Row> {
        let wanted = self.filter.to_lowercase();
        let fits = |row: &&Row| {
            let text = format!("{} {} rank {}", row.pid, row.name, row.rank.unwrap_or_default());
            text.to_lowercase().contains(&wanted)
        };
        let mut rows: Vec<&Row> = self.rows.iter().filter(fits).collect();
        rows.sort_by(|a, b| {
            let order = match self.sort {
                Sort::Used => b.used.cmp(&a.used),
                Sort::Allocated => b.live.cmp(&a.live),
                Sort::Refused => b.refused.cmp(&a.refused),
                Sort::Pid => a.pid.cmp(&b.pid),
                Sort::Name => a.name.cmp(&b.name),
            };
            order.then(a.pid.cmp(&b.pid))
        });
        rows
    }

    pub fn row_of(&self, pid: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.pid == pid)
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

    pub fn key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.is_left = true;
            return;
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => {
                    self.filter.pop();
                }
                KeyCode::Char(c) if !c.is_control() => self.filter.push(c),
                _ => {}
            }
            return self.keep_chosen();
        }
        match key.code {
            KeyCode::Char('q') => self.is_left = true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => (self.is_typing, self.view) = (true, View::List),
            KeyCode::Up => self.step(-1),
            KeyCode::Down => self.step(1),
            KeyCode::Enter => {
                if let (View::List, Some(pid)) = (self.view, self.chosen) {
                    (self.view, self.lines) = (View::Process(pid), Lines::Reading);
                    if !self.traces.contains_key(&pid) {
                        self.lines = Lines::None("the process records nothing".into());
                    }
                }
            }
            KeyCode::Esc => match self.view {
                View::Process(_) => self.view = View::List,
                View::List => self.filter.clear(),
            },
            _ => {}
        }
        self.keep_chosen();
    }

    fn step(&mut self, by: isize) {
        let rows = self.rows();
        let at = rows.iter().position(|row| Some(row.pid) == self.chosen).unwrap_or(0);
        let next = at.saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.chosen = rows.get(next).map(|row| row.pid);
    }

    /// Chooses the first row if the filter hides the chosen one.
    fn keep_chosen(&mut self) {
        let rows = self.rows();
        if !rows.iter().any(|row| Some(row.pid) == self.chosen) {
            self.chosen = rows.first().map(|row| row.pid);
        }
    }

    /// The state as text, for output that is not a terminal.
    pub fn once(&self) -> String {
        if self.rows.is_empty() {
            return format!("{NO_PROCESS}\n");
        }
        let mut cards = Table::new(0, "lrrrr");
        cards.head(&["card", "in use", "of", "caps", "refused"]);
        for card in self.cards.values() {
            let cap = card.cap.map_or("-".into(), gib);
            let cells = [card_name(card), gib(card.used), total(card), cap, count(card.refused)];
            cards.row(cells);
        }
        let mut table = Table::new(0, "rrlrrrrl");
        table.head(&["pid", "rank", "GPU", "in use", "allocated", "cap", "refused", "program"]);
        for row in self.rows() {
            let [pid, rank, devices, used, live, cap, refused] = cells(row);
            let all = [pid, rank, devices, used, live, cap, refused, shorten(&row.name, 60)];
            table.styled(all.map(|cell| (cell, PLAIN)));
        }
        format!("{}\n{}", cards.render(), table.render())
    }
}

pub const NO_PROCESS: &str =
    "no recorded process of this user is running; start one: vramtrace run python train.py";

/// pid, rank, devices, what the cap counts, what the program allocated of it, cap, refusals.
pub fn cells(row: &Row) -> [String; 7] {
    let cap = match (row.cap, row.only_warns) {
        (None, _) => "-".into(),
        (Some(cap), false) => gib(cap),
        (Some(cap), true) => format!("{} warns", gib(cap)),
    };
    let rank = row.rank.map_or(String::new(), |rank| rank.to_string());
    let (used, live) = (gib(row.used), gib(row.live));
    [row.pid.to_string(), rank, row.devices.clone(), used, live, cap, count(row.refused)]
}

/// The size of a card. Processes of the first version do not say it.
pub fn total(card: &Card) -> String {
    if card.total == 0 { "?".into() } else { gib(card.total) }
}

pub fn card_name(card: &Card) -> String {
    match card.ordinal {
        u8::MAX => "GPU ?".into(),
        ordinal => format!("GPU {ordinal}"),
    }
}

fn refused(device: &LiveDevice) -> u64 {
    device.refused_by_cap.saturating_add(device.refused_by_driver)
}

/// Shortens a command line: `/opt/venv/bin/python3 -u /home/me/train.py --lr 3` gives `train.py --lr 3`.
pub(super) fn script(command: &str) -> String {
    let base = |word: &str| word.rsplit('/').next().unwrap_or(word).to_string();
    let mut words = command.split(' ').filter(|word| !word.is_empty()).peekable();
    let Some(program) = words.next() else { return "(no command)".into() };
    let program = base(program);
    if !program.starts_with("python") {
        let rest: Vec<&str> = words.collect();
        return [&[program.as_str()][..], &rest].concat().join(" ");
    }
    while let Some(option) = words.next_if(|word| word.starts_with('-')) {
        match option {
            "-m" => break,
            "-c" => return format!("{program} -c {}", words.collect::<Vec<_>>().join(" ")),
            "-W" | "-X" => {
                words.next();
            }
            _ => {}
        }
    }
    let Some(script) = words.next() else { return program };
    let rest: Vec<&str> = words.collect();
    let script = base(script);
    [&[script.as_str()][..], &rest].concat().join(" ")
}
