//! What ended a run of several processes, where and why: the head of the overview.

use std::collections::BTreeMap;

use super::layout::{BAD, BOLD, DIM, WARN, paint};
use super::oom;
use crate::analysis::Process;
use crate::analysis::ranks::{DeviceFigures, Failed, ProcessEnd, ProcessFigures};
use crate::report::{names, shell, wording};
use crate::units::{count, seconds, size};

/// `1 out of memory, 3 in order`; `all in order`. Empty where nothing is known.
pub(super) fn endings(processes: &[ProcessFigures]) -> String {
    let mut counts: BTreeMap<ProcessEnd, u64> = BTreeMap::new();
    for end in processes.iter().map(ProcessFigures::end).filter(|end| *end != ProcessEnd::Unknown) {
        *counts.entry(end).or_default() += 1;
    }
    match counts.first_key_value() {
        Some((end, n)) if *n == processes.len() as u64 => format!("all {}", end.words()),
        _ => {
            let parts = counts.iter().map(|(end, n)| format!("{} {}", count(*n), end.words()));
            parts.collect::<Vec<_>>().join(", ")
        }
    }
}

/// The first failure in full, the others in a line. Empty if no process failed. `first`: the process
/// that failed first, with its post-mortems. `given`: the trace arguments as the user gave them, each
/// after a space.
pub(super) fn head(
    processes: &[ProcessFigures],
    failed: &[Failed],
    first: Option<&Process>,
    given: &str,
) -> String {
    let Some((cause, others)) = failed.split_first() else { return String::new() };
    let rank = &processes[cause.index];
    let headers = processes.iter().map(|process| &process.header);
    let given = shell::of_process(given, &rank.header, &rank.trace, headers);
    let also = match others {
        [] => String::new(),
        _ => format!("{}   {}\n", paint(BOLD, "ALSO"), also(processes, cause, others)),
    };
    let name = rank.name();
    if let Some(process) = first.filter(|process| !process.fatal.is_empty()) {
        return oom::fatal_of(process, &format!(" {name}"), &given, &also);
    }
    let at_ns = cause.unix_ns.saturating_sub(rank.header.start_unix_ns);
    let (title, how, command) = match cause.end {
        ProcessEnd::OutOfMemory => (paint(BAD, "OUT OF MEMORY"), "", "oom"),
        _ => (paint(WARN, "CUT OFF"), ": killed, crashed or left by _exit", "report"),
    };
    let (at, live) = (seconds(at_ns), size(rank.sum(|device: &DeviceFigures| device.live_bytes)));
    let next = paint(DIM, &format!("NEXT   vramtrace {command}{given}"));
    format!("\n{title}  {name} at {at}{how}, with {live} live at the end\n{also}{next}\n")
}

/// `ranks 0, 2 cut off 0.5 to 0.7 s later`, for each kind of end.
fn also(processes: &[ProcessFigures], cause: &Failed, others: &[Failed]) -> String {
    let mut ends: Vec<ProcessEnd> = others.iter().map(|one| one.end).collect();
    ends.sort_unstable();
    ends.dedup();
    let one = |end: &ProcessEnd| {
        let all: Vec<&Failed> = others.iter().filter(|one| one.end == *end).collect();
        let who = all.iter().map(|one| &processes[one.index]);
        let who = names::several(who.map(|rank| (&rank.header, rank.trace.as_path())));
        // Sorted by time.
        let [first, last] =
            [all.first(), all.last()].map(|one| one.map_or(String::new(), |one| apart(cause, one)));
        let times = if first == last { first } else { format!("{first} to {last}") };
        format!("{who} {} {times}", end.words())
    };
    ends.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// `1.5 s later`.
fn apart(cause: &Failed, other: &Failed) -> String {
    match (other.unix_ns.checked_sub(cause.unix_ns), cause.unix_ns.abs_diff(other.unix_ns)) {
        (_, 0) => "at the same time".to_string(),
        (Some(_), later) => format!("{} later", wording::age(later)),
        (None, earlier) => format!("{} earlier", wording::age(earlier)),
    }
}
