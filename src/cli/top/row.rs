//! Cards and processes as `top` shows them, and the columns of the list, by the words of `vramtrace ps`.

use std::collections::VecDeque;

use vramtrace_format::live::LiveState;
use vramtrace_format::{LiveDevice, LiveSite};
use vramtrace_reader::report::wording::age;
use vramtrace_reader::units::{clean, count, limit, size};

use super::look::{GrowthVerdict, Look};
use crate::driver::nvml::CardFacts;
use crate::live_processes::process::{LiveProcess, refused};

/// A card: what NVML knows of it, and what the recorded processes of this user have of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CardRow {
    /// `None`: NVML does not list it.
    pub facts: Option<CardFacts>,
    /// The card as each recorded process sees it.
    pub devices: Vec<LiveDevice>,
    /// Bytes in use at the last looks.
    pub history: VecDeque<u64>,
}

impl CardRow {
    /// In use by all processes; without NVML, by those that are recorded.
    pub fn in_use(&self) -> u64 {
        self.facts.as_ref().map_or_else(|| self.counted(), |facts| facts.used)
    }

    fn sum(&self, figure: impl Fn(&LiveDevice) -> u64) -> u64 {
        self.devices.iter().map(figure).fold(0, u64::saturating_add)
    }

    /// Counted by the recorded processes.
    pub fn counted(&self) -> u64 {
        self.sum(|device| device.counted)
    }

    pub fn refused(&self) -> u64 {
        self.sum(refused)
    }

    /// The sum of the caps, if each of its processes has one.
    pub fn caps(&self) -> Option<u64> {
        let all = self.devices.iter().all(|device| device.cap.is_some());
        Some(self.sum(|device| device.cap.unwrap_or(0))).filter(|caps| all && *caps > 0)
    }

    pub fn name(&self) -> String {
        match (&self.facts, self.devices.first().map(|device| device.ordinal)) {
            (Some(facts), _) => format!("GPU {}", facts.index),
            (None, None | Some(u8::MAX)) => "GPU ?".into(),
            (None, Some(ordinal)) => format!("GPU {ordinal}"),
        }
    }

    /// 0: not known.
    pub fn bytes(&self) -> u64 {
        let by_processes = || self.devices.iter().map(|device| device.total_bytes).max();
        let by_nvml = self.facts.as_ref().map(|facts| facts.total).filter(|total| *total > 0);
        by_nvml.or_else(by_processes).unwrap_or(0)
    }

    pub fn total(&self) -> String {
        if self.bytes() == 0 { "?".into() } else { size(self.bytes()) }
    }
}

/// A process of the list.
#[derive(Clone, Debug, Default)]
pub struct ProcessRow {
    pub pid: u32,
    pub user: String,
    /// The command line from the name of the program or script on.
    command: String,
    /// What stands behind the command where nothing is recorded.
    note: &'static str,
    /// Why its lines cannot be shown, if it has no trace.
    pub why_no_trace: String,
    /// `None`: only NVML lists it.
    pub page: Option<LiveProcess>,
    /// `cuda:0 (GPU 3)`.
    devices: String,
    /// What the cap counts; without a page, what NVML lists. `None`: it does not say.
    pub counted: Option<u64>,
    /// `None`: not judged yet.
    pub verdict: Option<GrowthVerdict>,
    /// Percent, the highest of its cards.
    utilization: Option<u32>,
}

impl ProcessRow {
    /// A recorded process.
    pub fn of(process: &LiveProcess, look: &Look) -> ProcessRow {
        let device = |device: &LiveDevice| {
            let card = look.cards().iter().find(|card| card.uuid == device.uuid);
            let other = card.filter(|card| card.index != u32::from(device.ordinal));
            let gpu = other.map_or(String::new(), |card| format!(" (GPU {})", card.index));
            match (device.ordinal, other) {
                (u8::MAX, None) => "?".into(),
                (u8::MAX, Some(card)) => format!("GPU {}", card.index),
                (ordinal, _) => format!("cuda:{ordinal}{gpu}"),
            }
        };
        let devices: Vec<String> = process.devices.iter().map(device).collect();
        let (note, why) = match process.state {
            _ if !process.off_by.is_empty() => (" (recording off)", "its recording is off"),
            LiveState::Loaded | LiveState::Recording => ("", "the process records nothing"),
            _ => (" (not recorded)", "the process records nothing"),
        };
        ProcessRow {
            note,
            why_no_trace: why.into(),
            devices: devices.join(","),
            counted: Some(process.sum(|device| device.counted)),
            verdict: match process.trace.is_empty() {
                true => Some(None),
                false => look.verdicts.get(&process.pid).copied(),
            },
            page: Some(process.clone()),
            ..ProcessRow::new(process.pid, look)
        }
    }

    /// A process that only NVML lists.
    pub fn untraced(pid: u32, look: &Look) -> ProcessRow {
        let on = look.cards().iter().filter_map(|card| Some((card, card.processes.get(&pid)?)));
        let on: Vec<_> = on.collect();
        let bytes: Option<Vec<u64>> = on.iter().map(|(_, process)| process.bytes).collect();
        let devices: Vec<String> =
            on.iter().map(|(card, _)| format!("GPU {}", card.index)).collect();
        let (note, why_no_trace) = match look.owners.get(&pid) {
            Some(owner) if owner.is_mine => {
                let start = "start it by `vramtrace run` to see its lines";
                (" (not traced)", format!("it runs without the recorder: {start}"))
            }
            _ => (
                " (of another user)",
                "it belongs to another user, whose traces are not read".into(),
            ),
        };
        ProcessRow {
            note,
            why_no_trace,
            devices: devices.join(","),
            counted: bytes.map(|all| all.into_iter().fold(0, u64::saturating_add)),
            verdict: Some(None),
            ..ProcessRow::new(pid, look)
        }
    }

    fn new(pid: u32, look: &Look) -> ProcessRow {
        let owner = look.owners.get(&pid);
        let cards = look.cards().iter();
        ProcessRow {
            pid,
            user: owner.map_or("?".into(), |owner| owner.user.clone()),
            command: owner.map_or("(not visible from here)".into(), |owner| script(&owner.command)),
            utilization: cards.filter_map(|card| card.processes.get(&pid)?.utilization).max(),
            ..ProcessRow::default()
        }
    }

    pub fn refused(&self) -> u64 {
        self.page.as_ref().map_or(0, |page| page.sum(refused))
    }

    /// The sum of the caps, if each device has one.
    fn cap(&self) -> Option<u64> {
        let devices = self.page.iter().flat_map(|page| &page.devices);
        let caps: Option<Vec<u64>> = devices.map(|device| device.cap).collect();
        caps.filter(|caps| !caps.is_empty())
            .map(|caps| caps.into_iter().fold(0, u64::saturating_add))
    }

    fn only_warns(&self) -> bool {
        self.page.iter().flat_map(|page| &page.devices).any(|device| device.only_warns)
    }

    pub fn rank(&self) -> Option<u32> {
        self.page.as_ref()?.owner.rank
    }

    /// Path of its trace.
    pub fn trace(&self) -> Option<&str> {
        self.page.as_ref().map(|page| page.trace.as_str()).filter(|trace| !trace.is_empty())
    }

    pub fn full_name(&self) -> String {
        format!("{}{}", self.command, self.note)
    }

    /// What the largest call sites hold, by library, largest first: name, bytes, allocations.
    pub fn libraries(&self) -> Vec<(String, u64, u64)> {
        let all = self.page.iter().flat_map(|page| page.by_library(|_: &LiveSite| true));
        let name = |library: &str| if library.is_empty() { "?".into() } else { clean(library) };
        let mut all: Vec<(String, u64, u64)> =
            all.map(|(library, (bytes, count))| (name(library), bytes, count)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all
    }
}

/// A column of the list.
pub struct Column {
    pub heading: &'static str,
    /// Its cells stand at the right.
    pub is_number: bool,
    /// When room is found for it: 0 always.
    order: u8,
    /// Characters, at least and at most.
    width: [u16; 2],
    cell: Cell,
}

type Cell = fn(&ProcessRow) -> String;

const fn figure(heading: &'static str, order: u8, width: [u16; 2], cell: Cell) -> Column {
    Column { heading, is_number: true, order, width, cell }
}

const fn words(heading: &'static str, order: u8, width: [u16; 2], cell: Cell) -> Column {
    Column { heading, is_number: false, order, width, cell }
}

/// In the order of a line.
pub const COLUMNS: [Column; 13] = [
    figure("pid", 0, [7, 7], |row| row.pid.to_string()),
    words("user", 7, [4, 10], |row| row.user.clone()),
    figure("rank", 6, [4, 4], |row| row.rank().map_or(String::new(), |rank| rank.to_string())),
    words("device", 10, [6, 24], |row| row.devices.clone()),
    figure("util", 8, [5, 5], |row| row.utilization.map_or("-".into(), |part| format!("{part} %"))),
    figure("live", 9, [10, 11], |row| of_page(row, |page| size(page.sum(|device| device.live)))),
    figure("peak", 4, [10, 11], |row| of_page(row, |page| size(page.sum(|device| device.peak)))),
    figure("counted", 0, [10, 11], |row| row.counted.map_or("?".into(), size)),
    figure("cap", 1, [9, 16], cap),
    figure("refused", 5, [7, 7], |row| of_page(row, |page| count(page.sum(refused)))),
    figure("MiB/min", 2, [8, 8], rate),
    figure("full in", 3, [9, 9], full_in),
    words("command", 0, [13, 13], ProcessRow::full_name),
];

impl Column {
    pub fn cell(&self, row: &ProcessRow) -> String {
        (self.cell)(row)
    }

    fn width(&self, rows: &[&ProcessRow]) -> u16 {
        let [least, most] = self.width;
        let longest = rows.iter().map(|row| self.cell(row).chars().count()).max().unwrap_or(0);
        (longest as u16).clamp(least, most)
    }
}

fn of_page(row: &ProcessRow, figure: impl Fn(&LiveProcess) -> String) -> String {
    row.page.as_ref().map_or("-".into(), figure)
}

fn cap(row: &ProcessRow) -> String {
    match (row.cap(), row.only_warns()) {
        // A narrow list cuts the words behind the command.
        (None, _) if row.page.is_none() => "untraced".into(),
        (None, _) => "-".into(),
        (Some(cap), false) => limit(cap),
        (Some(cap), true) => format!("{} warns", limit(cap)),
    }
}

fn rate(row: &ProcessRow) -> String {
    match row.verdict.map(|verdict| verdict.map(|growth| growth.bytes_per_s * 60.0)) {
        None => "?".into(),
        Some(None) => "-".into(),
        Some(Some(a_minute)) => match a_minute / f64::from(1 << 20) {
            small if small < 99.95 => format!("{small:.1}"),
            large => count(large as u64),
        },
    }
}

fn full_in(row: &ProcessRow) -> String {
    match row.verdict.map(|verdict| verdict.map(|growth| growth.full_in_s)) {
        Some(None) => "-".into(),
        None | Some(Some(None)) => "?".into(),
        Some(Some(Some(seconds))) => age((seconds.clamp(0.0, 1e10) * 1e9) as u64),
    }
}

/// The columns that fit beside each other, with their widths; the last one has the rest.
pub fn that_fit(width: u16, rows: &[&ProcessRow]) -> Vec<(&'static Column, u16)> {
    let has_ranks = rows.iter().any(|row| row.rank().is_some());
    let useful = COLUMNS.iter().filter(|column| has_ranks || column.heading != "rank");
    let mut all: Vec<(usize, &Column, u16)> =
        useful.enumerate().map(|(place, column)| (place, column, column.width(rows))).collect();
    all.sort_by_key(|(_, column, _)| column.order);
    let mut rest = width.saturating_sub(1);
    all.retain(|(_, column, width)| {
        let fits = column.order == 0 || *width < rest;
        rest = rest.saturating_sub(if fits { width + 1 } else { 0 });
        fits
    });
    all.sort_by_key(|(place, ..)| *place);
    let last = all.len().saturating_sub(1);
    let wide = |(n, (_, column, width)): (usize, (usize, _, u16))| {
        (column, if n == last { width + rest } else { width })
    };
    all.into_iter().enumerate().map(wide).collect()
}

/// Shortens a command line: `/opt/venv/bin/python3 -u /home/me/train.py --lr 3` gives `train.py --lr 3`.
pub(super) fn script(command: &str) -> String {
    let base = |word: &str| word.rsplit('/').next().unwrap_or(word).to_string();
    let mut words = command.split(' ').filter(|word| !word.is_empty()).peekable();
    let Some(program) = words.next() else { return "(no command)".into() };
    let mut named = vec![base(program)];
    if named[0].starts_with("python") {
        while let Some(option) = words.next_if(|word| word.starts_with('-')) {
            match option {
                "-m" => break,
                "-c" => {
                    named.push(option.into());
                    named.extend(words.map(String::from));
                    return named.join(" ");
                }
                "-W" | "-X" => drop(words.next()),
                _ => {}
            }
        }
        if let Some(script) = words.next() {
            named = vec![base(script)];
        }
    }
    named.extend(words.map(String::from));
    named.join(" ")
}
