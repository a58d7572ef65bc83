//! Cards and processes as `top` shows them.

use std::collections::VecDeque;

use vramtrace_format::capspec::Limit;
use vramtrace_format::live::LiveState;
use vramtrace_format::{LiveDevice, LiveSite};
use vramtrace_reader::units::{clean, gib, size};

use super::look::{Look, Verdict};
use crate::driver::nvml::cards::CardFacts;
use crate::live_processes::kernel_driver;
use crate::live_processes::process::{LiveProcess, refused};

/// How many past values of bytes in use are kept.
pub const HISTORY: usize = 240;

pub fn push(history: &mut VecDeque<u64>, value: u64) {
    history.push_back(value);
    if history.len() > HISTORY {
        history.pop_front();
    }
}

/// A card: what NVML knows of it, and what the recorded processes of this user have of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Card {
    /// What NVML said last.
    pub facts: Option<CardFacts>,
    /// NVML says so now.
    pub is_listed: bool,
    /// The card as each recorded process sees it.
    pub devices: Vec<LiveDevice>,
    /// As of the last process that used it.
    pub last: LiveDevice,
    pub history: VecDeque<u64>,
}

impl Card {
    fn listed(&self) -> Option<&CardFacts> {
        self.facts.as_ref().filter(|_| self.is_listed)
    }

    /// In use by all processes. `None`: NVML does not say.
    pub fn used(&self) -> Option<u64> {
        self.listed().map(|facts| facts.used)
    }

    pub fn utilization(&self) -> Option<u32> {
        self.listed()?.utilization
    }

    /// What its curve shows: all of the use, or else the recorded part.
    pub fn in_use(&self) -> u64 {
        self.used().unwrap_or_else(|| self.counted())
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
        match (&self.facts, self.last.ordinal) {
            (Some(facts), _) => format!("GPU {}", facts.index),
            (None, u8::MAX) => "GPU ?".into(),
            (None, ordinal) => format!("GPU {ordinal}"),
        }
    }

    /// 0: not known.
    pub fn bytes(&self) -> u64 {
        let by_nvml = self.facts.as_ref().map(|facts| facts.total);
        by_nvml.filter(|total| *total > 0).unwrap_or(self.last.total_bytes)
    }

    pub fn total(&self) -> String {
        if self.bytes() == 0 { "?".into() } else { gib(self.bytes()) }
    }
}

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracing {
    #[default]
    Recorded,
    /// Its cap holds, and nothing is recorded.
    NotRecorded,
    /// The recording is switched off.
    SwitchedOff,
    /// A process of this user without the recorder.
    Untraced,
    /// It calls the kernel driver, and passes libcuda by.
    PastLibcuda,
    /// Its live page belongs to another user, or cannot be seen from here.
    OfOthers,
}

impl Tracing {
    /// What stands behind the command.
    fn note(self) -> &'static str {
        match self {
            Tracing::Recorded => "",
            Tracing::SwitchedOff => " (recording off)",
            Tracing::NotRecorded => " (not recorded)",
            Tracing::Untraced => " (not traced)",
            Tracing::PastLibcuda => " (past libcuda: not recorded)",
            Tracing::OfOthers => " (of another user)",
        }
    }

    /// Why there is no trace.
    pub fn why_no_trace(self) -> String {
        match self {
            Tracing::Recorded | Tracing::NotRecorded => "the process records nothing".into(),
            Tracing::SwitchedOff => "its recording is off".into(),
            Tracing::Untraced => {
                "it runs without the recorder: start it by `vramtrace run` to see its lines".into()
            }
            Tracing::PastLibcuda => format!("it {}", kernel_driver::UNRECORDED),
            Tracing::OfOthers => "it belongs to another user, whose traces are not read".into(),
        }
    }
}

/// A process of the list.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub pid: u32,
    pub user: String,
    /// The command line from the name of the program or script on.
    pub command: String,
    pub tracing: Tracing,
    /// `None`: only NVML lists it.
    pub page: Option<LiveProcess>,
    /// `cuda:0 (GPU 3)`.
    pub devices: String,
    /// What the cap counts; without a page, what NVML lists. `None`: it does not say.
    pub counted: Option<u64>,
    /// `None`: not judged yet.
    pub verdict: Option<Verdict>,
    /// Percent, the highest of its cards.
    pub utilization: Option<u32>,
    pub history: VecDeque<u64>,
}

impl Row {
    /// A recorded process.
    pub fn of(process: &LiveProcess, look: &Look) -> Row {
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
        Row {
            tracing: match process.state {
                _ if !process.off_by.is_empty() => Tracing::SwitchedOff,
                LiveState::Loaded | LiveState::Recording => Tracing::Recorded,
                _ => Tracing::NotRecorded,
            },
            devices: devices.join(","),
            counted: Some(process.sum(|device| device.counted)),
            verdict: match process.trace.is_empty() {
                true => Some(None),
                false => look.verdicts.get(&process.pid).copied(),
            },
            page: Some(process.clone()),
            ..Row::new(process.pid, look)
        }
    }

    /// A process that only NVML lists.
    pub fn untraced(pid: u32, look: &Look) -> Row {
        let on = look.cards().iter().filter_map(|card| Some((card, card.processes.get(&pid)?)));
        let on: Vec<_> = on.collect();
        let bytes: Option<Vec<u64>> = on.iter().map(|(_, process)| process.bytes).collect();
        let devices: Vec<String> =
            on.iter().map(|(card, _)| format!("GPU {}", card.index)).collect();
        let passes_libcuda_by =
            || kernel_driver::is_called_by(pid, &kernel_driver::mapped_files(pid));
        Row {
            tracing: match look.owners.get(&pid) {
                Some(owner) if owner.is_mine && passes_libcuda_by() => Tracing::PastLibcuda,
                Some(owner) if owner.is_mine => Tracing::Untraced,
                _ => Tracing::OfOthers,
            },
            devices: devices.join(","),
            counted: bytes.map(|all| all.into_iter().fold(0, u64::saturating_add)),
            verdict: Some(None),
            ..Row::new(pid, look)
        }
    }

    fn new(pid: u32, look: &Look) -> Row {
        let owner = look.owners.get(&pid);
        let cards = look.cards().iter();
        Row {
            pid,
            user: owner.map_or("?".into(), |owner| owner.user.clone()),
            command: match owner {
                Some(owner) => script(&owner.command),
                None => "(not visible from here)".into(),
            },
            utilization: cards.filter_map(|card| card.processes.get(&pid)?.utilization).max(),
            ..Row::default()
        }
    }

    /// A figure of all devices; without a page `None`.
    pub fn sum(&self, figure: impl Fn(&LiveDevice) -> u64) -> Option<u64> {
        self.page.as_ref().map(|page| page.sum(figure))
    }

    pub fn refused(&self) -> u64 {
        self.sum(refused).unwrap_or(0)
    }

    /// The sum of the caps, if each device has one.
    pub fn cap(&self) -> Option<u64> {
        let devices = self.page.iter().flat_map(|page| &page.devices);
        let caps: Option<Vec<u64>> = devices.map(|device| device.cap).collect();
        caps.filter(|caps| !caps.is_empty())
            .map(|caps| caps.into_iter().fold(0, u64::saturating_add))
    }

    pub fn only_warns(&self) -> bool {
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
        format!("{}{}", self.command, self.tracing.note())
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

    /// What follows for the process if it gets this limit: a device of unknown size has no share, and less than is in
    /// use refuses every request.
    pub fn consequence(&self, limit: Limit) -> Result<String, String> {
        let mut words = String::new();
        let devices = self.page.as_ref().map_or(&[][..], |page| &page.devices);
        for device in devices {
            let (ordinal, in_use) = (device.ordinal, device.counted);
            if device.total_bytes == 0 && matches!(limit, Limit::Share(_)) {
                return Err(format!(
                    "the size of cuda:{ordinal} is not known: give bytes, such as 6GiB"
                ));
            }
            if limit.bytes(device.total_bytes) < in_use {
                let on =
                    if devices.len() > 1 { format!(" on cuda:{ordinal}") } else { String::new() };
                let follows = match self.only_warns() {
                    true => "every request will be reported, none refused",
                    false => "every request will be refused",
                };
                words.push_str(&format!(", below the {} in use{on}: {follows}", size(in_use)));
            }
        }
        Ok(words)
    }
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
