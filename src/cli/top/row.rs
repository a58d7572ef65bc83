//! Cards and processes as `top` shows them.

use std::collections::VecDeque;

use vramtrace_format::live::LiveState;
use vramtrace_format::{LiveDevice, capspec::Limit};
use vramtrace_reader::units::{clean, gib, size};

use super::look::Owner;
use super::rates::Rate;
use crate::live_processes::process::LiveProcess;

/// How many past values of bytes in use are kept.
pub const HISTORY: usize = 240;

/// A card: what NVML knows of it, and what the recorded processes of this user hold of it together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Card {
    pub ordinal: u8,
    /// NVML's index.
    pub index: Option<u32>,
    pub model: String,
    pub total: u64,
    /// In use by all processes. `None`: NVML does not say.
    pub used: Option<u64>,
    pub utilization: Option<u32>,
    /// Counted by the recorded processes.
    pub counted: u64,
    /// The sum of the caps; `None`: a process has none.
    pub cap: Option<u64>,
    pub refused: u64,
    pub processes: u64,
    pub history: VecDeque<u64>,
}

impl Card {
    /// What its curve shows: all of the use, or else the recorded part.
    pub fn in_use(&self) -> u64 {
        self.used.unwrap_or(self.counted)
    }

    /// The sum of the caps, if each of its processes has one.
    pub fn caps(&self) -> Option<u64> {
        self.cap.filter(|cap| *cap > 0 && self.processes > 0)
    }

    pub fn name(&self) -> String {
        match (self.index, self.ordinal) {
            (Some(index), _) => format!("GPU {index}"),
            (None, u8::MAX) => "GPU ?".into(),
            (None, ordinal) => format!("GPU {ordinal}"),
        }
    }

    /// Processes of the first version do not say it.
    pub fn total(&self) -> String {
        if self.total == 0 { "?".into() } else { gib(self.total) }
    }
}

pub fn push(history: &mut VecDeque<u64>, value: u64) {
    history.push_back(value);
    if history.len() > HISTORY {
        history.pop_front();
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
    /// NVML lists it, and it has no live page.
    Untraced,
    /// As untraced: it calls the kernel driver, which no preloaded library sees.
    PastLibcuda,
    /// As untraced, of another user: whether that user records it is not known here.
    OfOthers,
}

/// A device of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowDevice {
    pub ordinal: u8,
    /// NVML's index, where it is another number.
    pub index: Option<u32>,
    pub total: u64,
    pub counted: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub pid: u32,
    pub user: String,
    pub rank: Option<u32>,
    pub command: String,
    pub tracing: Tracing,
    pub devices: Vec<RowDevice>,
    /// What the caps count; of an untraced process what NVML lists. `None`: NVML does not say.
    pub counted: Option<u64>,
    pub live: u64,
    pub peak: u64,
    pub cap: Option<u64>,
    pub only_warns: bool,
    pub refused: u64,
    /// `None`: not judged yet.
    pub rate: Option<Rate>,
    /// Percent.
    pub utilization: Option<u32>,
    pub history: VecDeque<u64>,
}

impl Row {
    pub fn of(process: &LiveProcess, rank: Option<u32>, owner: Option<&Owner>) -> Row {
        let sum = |of: fn(&LiveDevice) -> u64| {
            process.devices.iter().map(of).fold(0, u64::saturating_add)
        };
        let caps: Option<Vec<u64>> = process.devices.iter().map(|device| device.cap).collect();
        let device = |device: &LiveDevice| RowDevice {
            ordinal: device.ordinal,
            index: None,
            total: device.total_bytes,
            counted: device.counted,
        };
        Row {
            pid: process.pid,
            user: owner.map(|owner| owner.user.clone()).unwrap_or_default(),
            rank,
            command: script(&clean(&process.command)),
            tracing: match process.state {
                _ if !process.off_by.is_empty() => Tracing::SwitchedOff,
                LiveState::Loaded | LiveState::Recording => Tracing::Recorded,
                _ => Tracing::NotRecorded,
            },
            devices: process.devices.iter().map(device).collect(),
            counted: Some(sum(|device| device.counted)),
            live: sum(|device| device.live),
            peak: sum(|device| device.peak),
            cap: caps
                .filter(|caps| !caps.is_empty())
                .map(|caps| caps.into_iter().fold(0, u64::saturating_add)),
            only_warns: process.devices.iter().any(|device| device.only_warns),
            refused: sum(refused),
            ..Row::default()
        }
    }

    pub fn has_page(&self) -> bool {
        matches!(self.tracing, Tracing::Recorded | Tracing::NotRecorded | Tracing::SwitchedOff)
    }

    pub fn device_names(&self) -> String {
        let name = |device: &RowDevice| match (device.ordinal, device.index) {
            (u8::MAX, None) => "?".into(),
            (u8::MAX, Some(index)) => format!("GPU {index}"),
            (ordinal, None) => format!("cuda:{ordinal}"),
            (ordinal, Some(index)) => format!("cuda:{ordinal} (GPU {index})"),
        };
        self.devices.iter().map(name).collect::<Vec<String>>().join(",")
    }

    pub fn full_name(&self) -> String {
        match self.tracing {
            Tracing::Recorded => self.command.clone(),
            Tracing::SwitchedOff => format!("{} (recording off)", self.command),
            Tracing::NotRecorded => format!("{} (not recorded)", self.command),
            Tracing::Untraced => format!("{} (not traced)", self.command),
            Tracing::PastLibcuda => format!("{} (past libcuda: not recorded)", self.command),
            Tracing::OfOthers => format!("{} (of another user)", self.command),
        }
    }

    /// What follows for the process if it gets this limit: a device of unknown size has no share, and less than is in
    /// use refuses every request.
    pub fn consequence(&self, limit: Limit) -> Result<String, String> {
        let mut words = String::new();
        for device in &self.devices {
            let cuda = || match self.devices.len() {
                1 => String::new(),
                _ => format!(" on cuda:{}", device.ordinal),
            };
            if device.total == 0 && matches!(limit, Limit::Share(_)) {
                return Err(format!(
                    "the size of cuda:{} is not known: give bytes, such as 6GiB",
                    device.ordinal
                ));
            }
            let bytes = limit.bytes(device.total);
            if bytes < device.counted {
                let follows = match self.only_warns {
                    true => "every request will be reported, none refused",
                    false => "every request will be refused",
                };
                let in_use = size(device.counted);
                words.push_str(&format!(", below the {in_use} in use{}: {follows}", cuda()));
            }
        }
        Ok(words)
    }
}

pub fn refused(device: &LiveDevice) -> u64 {
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
