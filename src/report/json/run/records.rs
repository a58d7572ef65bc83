//! The lines of `run --json`: of a process, from all its events or from the figures that a summary has; of the job, with
//! sums over its processes, cards, and how it ended.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use vramtrace_format::{DeviceId, SummaryMoment};

use crate::analysis::leaks::{Leak, Leaks, UnusedRule};
use crate::analysis::oom::{AdvisedChange, PostMortem, advice};
use crate::analysis::ranks::{
    Card, DeviceFigures, FiguresSource, Imbalance, ProcessFigures, cards, failed, held_at,
    imbalance,
};
use crate::analysis::roles::HeldByRole;
use crate::analysis::{GroupBy, Holder, Process, StackClassifier};
use crate::replay::InUse;
use crate::report::text::oom;
use crate::report::text::stack::place;
use crate::report::wording::ordinal;
use crate::symbols::Symbols;

/// What a process held and how it ended. Sizes are bytes; a key that is null is not known.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessRecord {
    /// The same in all lines of one run.
    pub run: String,
    /// Of the batch system.
    pub job: Option<String>,
    pub host: String,
    pub pid: u32,
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub executable: String,
    pub trace: String,
    pub started_unix_s: f64,
    /// Up to the last event.
    pub duration_s: f64,
    /// `in_order`, `out_of_memory`, `cut_off` (killed, crashed or left by _exit), `running` or `unknown`.
    pub ended: &'static str,
    /// Where the figures come from: `events`; or, where that would have taken too long, `replay` (events, without roles,
    /// times and verdicts), `summary` or `totals` (the last that the recorder wrote).
    pub source: &'static str,
    pub devices: Vec<DeviceRecord>,
    /// The failure with which it ended.
    pub out_of_memory: Option<OomRecord>,
    pub advice: Option<AdviceRecord>,
    /// Null: not looked for.
    pub leaks: Option<Vec<JudgedLeak>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceRecord {
    #[serde(flatten)]
    pub figures: DeviceFigures,
    pub name: Option<String>,
    /// All memory of the process at the peak, split.
    #[cfg_attr(test, schemars(with = "Option<crate::replay::InUseFacts>"))]
    pub in_use_at_peak: Option<InUse>,
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

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OomRecord {
    pub device: Option<u8>,
    /// Since the start of the process's trace.
    pub at_s: f64,
    pub size_bytes: u64,
    /// As in `vramtrace oom --json`.
    pub cause: &'static str,
    /// The cause in words.
    pub text: String,
    /// `cap`, `group`, `bad_cap` or `driver`; null: no refused call is known.
    pub refused_by: Option<&'static str>,
    pub limit_bytes: Option<u64>,
    /// The line that asked.
    pub line: Option<String>,
}

/// The source of a process whose events were all read, with all that follows from them.
const IN_FULL: &str = "events";

/// `in_full`: the process, where its events were all read, after [`Process::look_closer`].
pub(super) fn record(figures: &ProcessFigures, in_full: Option<&Process>) -> ProcessRecord {
    let fatal = in_full.and_then(|process| process.fatal.first());
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
        host: header.host.clone(),
        pid: header.pid,
        rank: header.rank,
        world_size: header.world_size,
        executable: header.executable.clone(),
        trace: figures.trace.display().to_string(),
        started_unix_s: rounded(header.start_unix_ns as f64 / 1e9),
        duration_s: rounded(figures.last_ns as f64 / 1e9),
        ended: figures.end().name(),
        source,
        devices: devices(figures, in_full),
        out_of_memory: in_full.zip(fatal).map(|(process, fatal)| oom_record(process, fatal)),
        advice: fatal.and_then(advice_record),
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
        let in_use = device.in_use_at_peak.filter(|_| in_full.is_some());
        let most_used = in_use.map_or(device.peak_bytes, |in_use| in_use.counted_by_cap());
        let unused = |limit: u64| share(limit.saturating_sub(most_used), limit);
        DeviceRecord {
            name: device.info.as_ref().map(|info| info.name.clone()),
            in_use_at_peak: in_use,
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

fn oom_record(process: &Process, fatal: &PostMortem) -> OomRecord {
    let symbols = Symbols::of(&process.definitions, &process.header, [fatal.oom.stack]);
    let classifier = StackClassifier::new(&symbols, &process.header);
    let refused = fatal.oom.refusal.map(|at| at.refused);
    OomRecord {
        device: ordinal(fatal.oom.device),
        at_s: rounded(fatal.oom.time_ns as f64 / 1e9),
        size_bytes: fatal.oom.size,
        cause: fatal.cause.name(),
        text: oom::why(fatal),
        refused_by: refused.map(|refused| refused.by.name()),
        limit_bytes: refused.map(|refused| refused.limit).filter(|limit| *limit > 0),
        line: place(&classifier.named(fatal.oom.stack)),
    }
}

fn advice_record(fatal: &PostMortem) -> Option<AdviceRecord> {
    let best = advice(fatal).into_iter().next()?;
    let text = oom::advice(&best);
    Some(AdviceRecord { what: best.what, conf: best.conf, text })
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
    pub ended: Ended,
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
    pub cards: Vec<CardRecord>,
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
    pub worst_leak: Option<WorstLeak>,
    /// For the process that failed first.
    pub advice: Option<AdviceRecord>,
    /// `lowest` and `highest` count the lines of the processes from 0. Null: fewer than two used GPU memory.
    pub imbalance: Option<Imbalance>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CardRecord {
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub total_bytes: Option<u64>,
    pub processes: usize,
    /// The most that its processes held together at one moment. Null: it would have taken too long.
    pub peak_bytes: Option<u64>,
    pub sum_of_peaks_bytes: u64,
    /// Of the card's size, at that moment.
    pub never_used_share: Option<f64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FailureRecord {
    pub host: String,
    pub pid: u32,
    pub rank: Option<u32>,
    /// As `ended` of a process.
    pub ended: &'static str,
    pub unix_s: f64,
    /// Null: it did not run out of memory, or its events were not read.
    pub out_of_memory: Option<OomRecord>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorstLeak {
    pub pid: u32,
    pub rank: Option<u32>,
    pub verdict: &'static str,
    pub bytes: u64,
    pub rate_bytes_per_s: Option<f64>,
    pub line: Option<String>,
}

/// How the command ended, and what its checks said.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ended {
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

/// Cards that a line lists.
const MOST_CARDS: usize = 64;

fn card_record(card: Card) -> CardRecord {
    let total_bytes = card.total_bytes.filter(|bytes| *bytes > 0);
    let peak_bytes = Some(card.peak_bytes).filter(|_| card.is_exact);
    let unused = |(total, peak): (u64, u64)| share(total.saturating_sub(peak), total);
    CardRecord {
        uuid: card.uuid,
        name: card.name,
        total_bytes,
        processes: card.users.len(),
        peak_bytes,
        sum_of_peaks_bytes: card.sum_of_peaks_bytes,
        never_used_share: total_bytes.zip(peak_bytes).map(unused),
    }
}

/// `processes`: in the order of `ranks`.
pub(super) fn of_run(
    processes: &[ProcessRecord],
    ranks: &[ProcessFigures],
    ended: Ended,
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
            host: process.host.clone(),
            pid: process.pid,
            rank: process.rank,
            ended: process.ended,
            unix_s: rounded(first.unix_ns as f64 / 1e9),
            out_of_memory: process.out_of_memory.clone(),
        }
    });
    let judged = processes.iter().filter_map(|process| Some((process, process.leaks.as_ref()?)));
    let sure = judged.clone().flat_map(|(process, leaks)| {
        leaks.iter().filter(|leak| leak.leak.confidence >= 0.5).map(move |leak| (process, leak))
    });
    let worst = sure.clone().max_by_key(|(_, leak)| (leak.fails, leak.leak.bytes));
    let mut cards: Vec<CardRecord> = cards(ranks).into_iter().map(card_record).collect();
    let cards_in_all = cards.len();
    let peak_bytes = cards.iter().map(|card| card.peak_bytes).max().flatten();
    cards.truncate(MOST_CARDS);
    let numbered: BTreeSet<u32> = processes.iter().filter_map(|process| process.rank).collect();
    let hosts: BTreeSet<&str> = processes.iter().map(|process| &*process.host).collect();
    let in_full = processes.iter().filter(|process| process.source == IN_FULL);
    let shares = devices().filter_map(|device| device.never_used_share);
    JobRecord {
        ended: Ended {
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
        worst_leak: worst.map(|(process, leak)| WorstLeak {
            pid: process.pid,
            rank: process.rank,
            verdict: leak.leak.verdict.name(),
            bytes: leak.leak.bytes,
            rate_bytes_per_s: leak.leak.rate,
            line: leak.line.clone(),
        }),
        advice: first.and_then(|first| processes[first.index].advice.clone()),
        imbalance: imbalance(ranks),
    }
}

/// As in `vramtrace leaks --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JudgedLeak {
    /// The run fails because of it.
    pub fails: bool,
    /// The line that holds it, as text.
    pub line: Option<String>,
    #[serde(flatten)]
    pub leak: Leak,
}

/// The best thing to try after an out-of-memory.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AdviceRecord {
    /// As in `vramtrace oom --json`: `setting`, `cap`, `card`, `smaller_request`, ...
    #[cfg_attr(test, schemars(with = "String"))]
    pub what: AdvisedChange,
    /// A PYTORCH_CUDA_ALLOC_CONF under which the replayed run fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    /// The same in words.
    pub text: String,
}

/// Names with more bytes than the others have a key of their own.
const NAMED: usize = 24;

/// Adds bytes to the sums of others by name.
fn add(to: &mut BTreeMap<String, u64>, name: &str, bytes: u64) {
    let sum = match to.get_mut(name) {
        Some(sum) => sum,
        None => to.entry(name.to_string()).or_default(),
    };
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
    let small = |_: &String, bytes: &mut u64| *bytes >= least;
    let before: u64 = all.values().copied().fold(0, u64::saturating_add);
    all.retain(small);
    let kept: u64 = all.values().copied().fold(0, u64::saturating_add);
    add(&mut all, "other", before - kept);
    all
}

/// A part from 0 to 1, to four digits.
fn share(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 10_000.0).round() / 10_000.0
}

fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
