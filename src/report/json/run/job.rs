//! The line of the job: sums over its processes, cards, and how it ended.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::process::IN_FULL;
use super::{AdviceRecord, OomRecord, ProcessRecord, SCHEMA, add, bounded, rounded, share};
use crate::analysis::leaks::UnusedRule;
use crate::analysis::ranks::{Card, Imbalance, ProcessFigures, cards, failed, imbalance};

/// A run: all processes of one command.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobRecord {
    pub schema: &'static str,
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
        schema: SCHEMA,
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
