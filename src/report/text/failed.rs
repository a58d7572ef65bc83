//! What ended a run of several processes or leaks in it, where and why: the head of the overview.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::{BAD, PLAIN, WARN, paint};
use super::oom::{self, labelled, next};
use super::process::leak;
use crate::analysis::Process;
use crate::analysis::ranks::{Failed, ProcessEnd, ProcessFigures};
use crate::report::wording::{END_NOT_RECORDED, cut_off};
use crate::report::{names, shell, wording};
use crate::units::{count, seconds, size};

/// `1 out of memory, 3 in order`; `all ended in order`, after `2 of 4 ranks` where others were not recorded. Empty where nothing
/// is known.
pub fn endings(processes: &[ProcessFigures]) -> String {
    let mut counts: BTreeMap<(ProcessEnd, i32), u64> = BTreeMap::new();
    for process in processes.iter().filter(|process| process.end() != ProcessEnd::Unknown) {
        let in_order = process.end() == ProcessEnd::InOrder;
        let status = process.exit_status.filter(|_| in_order).unwrap_or(0);
        *counts.entry((process.end(), status)).or_default() += 1;
    }
    let words = |(end, status): &(ProcessEnd, i32)| match (end, status) {
        (ProcessEnd::InOrder, 0) if counts.len() == 1 => "ended in order".to_string(),
        (_, 0) => end.words().to_string(),
        (_, status) => format!("ended with status {status}"),
    };
    let ranks: BTreeSet<u32> = processes.iter().filter_map(|it| it.header.rank).collect();
    let of = processes.iter().filter_map(|it| it.header.world_size).max().unwrap_or(0);
    let some = ranks.len() == processes.len() && (1..of as usize).contains(&ranks.len());
    let mut parts = Vec::from_iter(some.then(|| format!("{} of {of} ranks", ranks.len())));
    match counts.first_key_value() {
        Some((end, n)) if *n == processes.len() as u64 => parts.push(format!("all {}", words(end))),
        _ => parts.extend(counts.iter().map(|(end, n)| format!("{} {}", count(*n), words(end)))),
    }
    parts.join(", ")
}

/// The first failure in full, the others in a line; or a leak. Empty if nothing is wrong. `worst`: the process whose verdict
/// is that of the run, where it ran out of memory or leaks. `given`: the trace arguments as the user gave them, each after a
/// space.
pub(super) fn head(
    processes: &[ProcessFigures],
    failed: &[Failed],
    worst: Option<&Process>,
    given: &str,
) -> String {
    let headers = processes.iter().map(|process| &process.header);
    let of = |header, trace| shell::of_process(given, header, trace, headers.clone());
    let leak =
        worst.map(|one| leak(one, &format!("{}: ", one.name()), &of(&one.header, &one.trace)));
    if let Some(leak) = leak.filter(|leak| !leak.is_empty()) {
        return leak;
    }
    let Some((cause, others)) = failed.split_first() else { return String::new() };
    let rank = &processes[cause.index];
    let given = of(&rank.header, &rank.trace);
    let also = labelled("also", PLAIN, also(processes, cause, others).as_slice());
    if let Some(process) = worst.filter(|process| !process.fatal().is_empty()) {
        return oom::fatal_of(process, &given, &also);
    }
    let at = seconds(cause.unix_ns.saturating_sub(rank.header.start_unix_ns));
    let (title, how, command) = match cause.end {
        ProcessEnd::OutOfMemory => (paint(BAD, oom::TITLE), String::new(), "oom"),
        _ => {
            let how = cut_off(rank.exit_status, &rank.seen, END_NOT_RECORDED);
            (paint(WARN, "CUT OFF"), format!(": {how}"), "report")
        }
    };
    let (name, live) = (rank.name(), size(rank.sum(|device| device.live_bytes)));
    let next = next(command, &given);
    format!("\n{title}  {name} at {at}{how}, with {live} live\n{also}{next}")
}

/// `ranks 0, 2 out of memory 0.5 to 0.7 s later`, for each kind of end. `None`: no other failed.
pub fn also(processes: &[ProcessFigures], cause: &Failed, others: &[Failed]) -> Option<String> {
    let end = |one: &Failed| match &processes[one.index] {
        of if one.end == ProcessEnd::CutOff => cut_off(of.exit_status, &of.seen, one.end.words()),
        _ => one.end.words().into(),
    };
    let ends: BTreeSet<(ProcessEnd, String)> =
        others.iter().map(|one| (one.end, end(one))).collect();
    let one = |(kind, words): (ProcessEnd, String)| {
        // Sorted by time.
        let all: Vec<&Failed> = others.iter().filter(|one| end(one) == words).collect();
        let who = all.iter().map(|one| &processes[one.index]);
        let who = names::several(who.map(|rank| (&rank.header, rank.trace.as_path())));
        let times = match [apart(cause, all[0]), apart(cause, all[all.len() - 1])] {
            [first, last] if first == last => first,
            [first, last] => format!("{first} to {last}"),
        };
        // The last event of a process that was cut off is not its end.
        let of = if kind == ProcessEnd::CutOff { ", last event" } else { "" };
        format!("{who} {words}{of} {times}")
    };
    let all: Vec<String> = ends.into_iter().map(one).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// `1.5 s later`.
fn apart(cause: &Failed, other: &Failed) -> String {
    match (other.unix_ns.checked_sub(cause.unix_ns), cause.unix_ns.abs_diff(other.unix_ns)) {
        (_, 0) => "at the same time".to_string(),
        (Some(_), later) => format!("{} later", wording::age(later)),
        (None, earlier) => format!("{} earlier", wording::age(earlier)),
    }
}
