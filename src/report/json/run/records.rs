//! The lines of `run --json`: of a process, from all its events or from the figures that a summary has; of the job, with
//! sums over its processes, cards, and how it ended.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use vramtrace_format::{DeviceId, SummaryMoment};

use crate::analysis::leaks::{Leak, Leaks, UnusedRule};
use crate::analysis::ranks::{
    Card, DeviceFigures, FiguresSource, Imbalance, ProcessFigures, cards, failed, held_at,
    imbalance,
};
use crate::analysis::roles::HeldByRole;
use crate::analysis::{GroupBy, Holder, Process, StackClassifier};
use crate::facts;
use crate::report::json::ProcessHead;
use crate::report::oom::{AdviceFacts, FailureFacts};
use crate::report::text::stack::place;

/// What a process held and how it ended. Sizes are bytes; a key that is null is not known.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessRecord {
    /// The same in all lines of one run.
    pub run: String,
    /// Of the batch system.
    pub job: Option<String>,
    #[serde(flatten)]
    pub head: ProcessHead,
    pub world_size: Option<u32>,
    pub executable: String,
    /// Where the figures come from: `events`; or, where that would have taken too long, `replay` (events, without roles,
    /// times and verdicts), `summary` or `totals` (the last that the recorder wrote).
    pub source: &'static str,
    pub devices: Vec<DeviceRecord>,
    /// The failure with which it ended.
    pub out_of_memory: Option<FailureFacts>,
    pub advice: Option<AdviceFacts>,
    /// Null: not looked for.
    pub leaks: Option<Vec<JudgedLeak>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceRecord {
    #[serde(flatten)]
    pub figures: DeviceFigures,
    pub name: Option<String>,
    /// The cap, else the size of the card.
    pub limit_bytes: Option<u64>,
    /// The part of the limit that was not used even at the peak, 0 to 1.
    pub never_used_share: Option<f64>,
    /// Bytes over time, up to the last event. Of a process that was not read in full: by the samples that its summary has;
    /// null without.
    pub held_gib_hours: Option<f64>,
    /// Most that it may differ by, where samples stand for events of a part of the time, or of all of it. 0: all is known by
    /// events.
    pub held_gib_hours_error: Option<f64>,
    pub by_library_at_peak: Option<BTreeMap<String, u64>>,
    /// Null also where no blocks of a framework's cache were recorded.
    pub by_role_at_peak: Option<BTreeMap<String, u64>>,
}

/// The source of a process whose events were all read, with all that follows from them.
const IN_FULL: &str = "events";

/// `in_full`: the process, where its events were all read, after [`Process::look_closer`].
pub(super) fn record(figures: &ProcessFigures, in_full: Option<&Process>) -> ProcessRecord {
    let failure = in_full.and_then(|process| FailureFacts::of(process, process.fatal()).pop());
    let source = match figures.source {
        _ if in_full.is_some() => IN_FULL,
        FiguresSource::Events => "replay",
        FiguresSource::Summary => "summary",
        FiguresSource::Totals => "totals",
    };
    let header = &figures.header;
    ProcessRecord {
        run: String::new(),
        job: None,
        head: ProcessHead::of(figures),
        world_size: header.world_size,
        executable: header.executable.clone(),
        source,
        devices: devices(figures, in_full),
        advice: failure.as_ref().and_then(|failure| failure.advice.first().cloned()),
        out_of_memory: failure,
        leaks: None,
    }
}

fn devices(figures: &ProcessFigures, in_full: Option<&Process>) -> Vec<DeviceRecord> {
    let who = in_full.and_then(|process| process.who.as_ref());
    let symbols = who.map_or(&figures.symbols, |who| &who.symbols);
    let classifier = StackClassifier::new(symbols, &figures.header);
    let held = match (in_full, who) {
        (None, _) if figures.source == FiguresSource::Totals => None,
        (None, _) => Some(Cow::Owned(held_at(figures, &classifier, SummaryMoment::Peak))),
        (Some(_), who) => who.map(|who| Cow::Borrowed(&who.peak)),
    };
    let holders = held.map(|held| classifier.holders(&held, GroupBy::Library));
    let roles = who.and_then(|who| who.peak_roles.as_ref());
    let of_roles = |roles: &HeldByRole, id| {
        let sums = roles.of_device(id).into_iter();
        sums.map(|(role, held)| (role.name().to_string(), held.bytes)).collect()
    };
    let device = |device: &DeviceFigures| {
        let of_total = [device.cap_bytes, device.group_cap_bytes, device.total_bytes];
        let limit_bytes = of_total.into_iter().flatten().filter(|bytes| *bytes > 0).min();
        let most_used = device.in_use_at_peak.counted_by_cap();
        let unused = |limit: u64| facts::part(limit.saturating_sub(most_used), limit);
        DeviceRecord {
            name: device.info.as_ref().map(|info| info.name.clone()),
            limit_bytes,
            never_used_share: limit_bytes.map(unused),
            held_gib_hours: device.held_gib_hours.map(|[held, _]| rounded(held)),
            held_gib_hours_error: device.held_gib_hours.map(|[_, error]| rounded(error)),
            by_library_at_peak: holders.as_ref().map(|holders| by_library(holders, device.id)),
            by_role_at_peak: roles.map(|roles| of_roles(roles, device.id)),
            figures: device.clone(),
        }
    };
    figures.devices.values().map(device).collect()
}

/// Sums of a device by the name of the library. What is free in a framework's cache is no library's.
fn by_library(holders: &[Holder], id: DeviceId) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for holder in holders.iter().filter(|holder| holder.device == id && holder.bytes > 0) {
        let name = match holder.stack.is_free_cache() {
            true => "free in cache",
            false => holder.library.as_deref().unwrap_or("unknown"),
        };
        add(&mut all, name, holder.bytes);
    }
    bounded(all)
}

/// The leaks of a process, each with whether the run fails by it.
pub(super) fn leaks(found: &Leaks, least: Option<u64>) -> Vec<JudgedLeak> {
    let judged = |leak: &Leak| JudgedLeak {
        fails: leak.fails(least),
        line: place(&leak.stack),
        leak: leak.clone(),
    };
    found.leaks.iter().map(judged).collect()
}

/// A run: all processes of one command.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobRecord {
    #[serde(flatten)]
    pub ended: RunEnd,
    /// Processes with a trace, and those of them whose events were all read. The others have no roles, no time and no
    /// verdicts: reading them would have taken too long.
    pub processes: usize,
    pub processes_in_full: usize,
    pub hosts: usize,
    /// Different ranks; 0: no process has one.
    pub ranks: usize,
    pub world_size: Option<u32>,
    /// How many; `cards` has the fullest, at most 64.
    pub cards_in_all: usize,
    pub cards: Vec<Card>,
    /// Of the fullest card.
    pub peak_bytes: Option<u64>,
    /// Of the process that used the largest part of its limit.
    pub never_used_share: Option<f64>,
    /// The sum over the processes where it is known.
    pub held_gib_hours: f64,
    /// The sum of what these may differ by.
    pub held_gib_hours_error: f64,
    /// Sums over the processes, each at its own peak.
    pub by_library_at_peak: BTreeMap<String, u64>,
    pub by_role_at_peak: BTreeMap<String, u64>,
    pub refused: u64,
    /// The process that failed first; the others often follow it.
    pub first_failure: Option<FailureRecord>,
    pub failed_processes: usize,
    /// With a confidence of at least 0.5. Null: no process was looked at.
    pub leaks: Option<u64>,
    pub worst_leak: Option<JudgedLeak>,
    /// For the process that failed first.
    pub advice: Option<AdviceFacts>,
    /// `lowest` and `highest` count the lines of the processes from 0. Null: fewer than two used GPU memory.
    pub imbalance: Option<Imbalance>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FailureRecord {
    #[serde(flatten)]
    pub head: ProcessHead,
    pub unix_s: f64,
    /// Null: it did not run out of memory, or its events were not read.
    pub out_of_memory: Option<FailureFacts>,
}

/// How the command ended, and what its checks said.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunEnd {
    /// The same in all lines of one run.
    pub run: String,
    /// Of the batch system.
    pub job: Option<String>,
    pub host: String,
    /// The name of the program, without its arguments.
    pub command: String,
    pub started_unix_s: f64,
    pub duration_s: f64,
    /// All requested checks passed. The command itself may have failed.
    pub passed: bool,
    /// How the command ended: one of the two is null.
    pub exit_status: Option<u8>,
    pub signal: Option<i32>,
    pub reasons: Vec<String>,
    pub max_peak_bytes: Option<u64>,
    pub unused_suppressions: Vec<UnusedRule>,
}

/// Maximum number of cards in a line.
const MAX_CARDS: usize = 64;

/// `processes`: in the order of `ranks`.
pub(super) fn of_run(
    processes: &[ProcessRecord],
    ranks: &[ProcessFigures],
    ended: RunEnd,
) -> JobRecord {
    let devices = || processes.iter().flat_map(|process| &process.devices);
    let (mut by_library, mut by_role) = (BTreeMap::new(), BTreeMap::new());
    for device in devices() {
        let sums = [
            (&mut by_library, &device.by_library_at_peak),
            (&mut by_role, &device.by_role_at_peak),
        ];
        for (sums, of) in sums {
            of.iter().flatten().for_each(|(name, bytes)| add(sums, name, *bytes));
        }
    }
    let failures = failed(ranks);
    let first = failures.first();
    let first_failure = first.map(|first| {
        let process = &processes[first.index];
        FailureRecord {
            head: process.head.clone(),
            unix_s: rounded(first.unix_ns as f64 / 1e9),
            out_of_memory: process.out_of_memory.clone(),
        }
    });
    let judged = processes.iter().filter_map(|process| process.leaks.as_ref());
    let sure = judged.clone().flatten().filter(|leak| leak.leak.is_sure());
    let worst = sure.clone().max_by_key(|leak| (leak.fails, leak.leak.bytes));
    let mut cards = cards(ranks);
    let cards_in_all = cards.len();
    let peak_bytes = cards.iter().map(|card| card.peak_bytes).max().flatten();
    cards.truncate(MAX_CARDS);
    let numbered: BTreeSet<u32> =
        processes.iter().filter_map(|process| process.head.id.rank).collect();
    let hosts: BTreeSet<&str> = processes.iter().map(|process| &*process.head.host).collect();
    let in_full = processes.iter().filter(|process| process.source == IN_FULL);
    let shares = devices().filter_map(|device| device.never_used_share);
    JobRecord {
        ended: RunEnd {
            started_unix_s: rounded(ended.started_unix_s),
            duration_s: rounded(ended.duration_s),
            ..ended
        },
        processes: processes.len(),
        processes_in_full: in_full.count(),
        hosts: hosts.len(),
        ranks: numbered.len(),
        world_size: processes.iter().filter_map(|process| process.world_size).max(),
        cards_in_all,
        peak_bytes,
        cards,
        never_used_share: shares.min_by(f64::total_cmp),
        held_gib_hours: rounded(devices().filter_map(|device| device.held_gib_hours).sum()),
        held_gib_hours_error: rounded(
            devices().filter_map(|device| device.held_gib_hours_error).sum(),
        ),
        by_library_at_peak: bounded(by_library),
        by_role_at_peak: bounded(by_role),
        refused: devices().map(|device| device.figures.refused()).fold(0, u64::saturating_add),
        first_failure,
        failed_processes: failures.len(),
        leaks: judged.clone().next().map(|_| sure.count() as u64),
        worst_leak: worst.cloned(),
        advice: first.and_then(|first| processes[first.index].advice.clone()),
        imbalance: imbalance(ranks),
    }
}

/// As in `vramtrace leaks --json`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JudgedLeak {
    /// The run fails because of it.
    pub fails: bool,
    /// The line that holds it, as text.
    pub line: Option<String>,
    #[serde(flatten)]
    pub leak: Leak,
}

/// Names with more bytes than the others have a key of their own.
const NAMED: usize = 24;

/// Adds bytes to the sums of others by name.
fn add(to: &mut BTreeMap<String, u64>, name: &str, bytes: u64) {
    let sum = to.entry(name.to_string()).or_default();
    *sum = sum.saturating_add(bytes);
}

/// Keeps the largest, and sums the others as `other`.
pub(super) fn bounded(mut all: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    if all.len() <= NAMED {
        return all;
    }
    let mut sizes: Vec<u64> = all.values().copied().collect();
    sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let least = sizes[NAMED - 1];
    let before: u64 = all.values().copied().fold(0, u64::saturating_add);
    all.retain(|_, bytes| *bytes >= least);
    let kept: u64 = all.values().copied().fold(0, u64::saturating_add);
    add(&mut all, "other", before - kept);
    all
}

fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
