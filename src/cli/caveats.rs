//! Lines on stderr: warnings about traces that are damaged, incomplete or of another version, and why a check failed.

use std::path::Path;
use vramtrace_format::DamageKind;
use vramtrace_reader::analysis::{Knowledge, MAX_OPEN_RANGES, Moment, Process, knowledge};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{clean, several, size};

use crate::console::message;
use crate::error::{DONE, FOUND, Failure};

fn name(trace: &Trace) -> String {
    clean(&trace.path().to_string_lossy())
}

/// Call it after the traces were read: prints one line for each damaged trace, and one for records of unknown
/// kinds.
pub fn warn_damage<'t>(traces: impl IntoIterator<Item = &'t Trace>) {
    let traces: Vec<&Trace> = traces.into_iter().collect();
    for trace in &traces {
        let found = trace.damage();
        let Some(first) = found.ranges.first() else { continue };
        message(format_args!(
            "{}: damaged in {} ({}): records there are missing, all others were read; first: {first}",
            name(trace),
            several(found.ranges.len() as u64, "place"),
            size(found.bytes())
        ));
        if found.ranges.iter().any(|damage| damage.kind == DamageKind::TailElsewhere) {
            message(format_args!("{}: recorded on host {}", name(trace), host(trace)));
        }
    }
    warn_unknown_records(&traces);
}

/// Prints one line if the last events of killed processes are in memory: the traces alone do not have them.
pub fn warn_tails_in_memory(traces: &[Trace]) {
    let with: Vec<&Trace> = traces.iter().filter(|trace| trace.tail_in_memory()).collect();
    let Some(first) = with.first() else { return };
    message(format_args!(
        "{}{}: the last events before the kill are in memory of this host ({}) alone, until it \
         reboots; `vramtrace pack` writes a trace that has them",
        name(first),
        others(with.len()),
        host(first)
    ));
}

fn host(trace: &Trace) -> String {
    clean(&trace.header().host)
}

/// Prints one line for each recorder version that differs from this command's version.
pub fn warn_versions<'t>(traces: impl IntoIterator<Item = &'t Trace>) {
    const THIS: &str = env!("CARGO_PKG_VERSION");
    let mut seen = vec![THIS.to_string()];
    for trace in traces {
        let recorder = clean(&trace.header().writer);
        // Others than a recorder have no version.
        if recorder.starts_with(|c: char| c.is_ascii_digit()) && !seen.contains(&recorder) {
            message(format_args!(
                "{}: recorded by vramtrace {recorder}; this is {THIS}: it skips records that it does not know, and \
                 events that only later versions record may be missing",
                name(trace)
            ));
            seen.push(recorder);
        }
    }
}

/// Prints one line if records of a newer format version were skipped.
fn warn_unknown_records(traces: &[&Trace]) {
    let unknown = |trace: &&Trace| {
        let found = trace.damage();
        found.unknown.saturating_add(found.unknown_definitions)
    };
    let with: Vec<&Trace> = traces.iter().copied().filter(|trace| unknown(trace) > 0).collect();
    let Some(first) = with.first() else { return };
    let records = several(with.iter().map(unknown).sum(), "record");
    let others = others(with.len());
    message(format_args!(
        "{}{others}: {records} of kinds that this version does not know were skipped: written by \
         a newer recorder, format {}.{}",
        name(first),
        first.header().major,
        first.header().minor
    ));
}

/// The end of a subject that names the first of so many traces.
fn others(all: usize) -> String {
    match all {
        1 => String::new(),
        all => format!(" and {} more", several(all as u64 - 1, "trace")),
    }
}

/// Prints that so many phases of a program were not counted to their ends.
pub fn warn_cut_phases(trace: &Trace, cut: u64) {
    if cut > 0 {
        message(format_args!(
            "{}: {} counted only up to the moment when {MAX_OPEN_RANGES} others were open: end them with nvtxRangeEnd or \
             nvtxRangePop",
            name(trace),
            several(cut, "NVTX range"),
        ));
    }
}

/// Prints why a check failed, the first ten reasons. Returns the exit status.
pub fn status(reasons: &[String]) -> u8 {
    const REASONS: usize = 10;
    reasons.iter().take(REASONS).for_each(|reason| message(format_args!("FAILED: {reason}")));
    if reasons.len() > REASONS {
        message(format_args!("FAILED: and {} reasons more", reasons.len() - REASONS));
    }
    if reasons.is_empty() { DONE } else { FOUND }
}

/// Prints that events before the moment are missing.
pub fn warn_missing_events(trace: &Path) {
    message(format_args!(
        "{}: events before this moment are missing: what is live may be wrong",
        clean(&trace.to_string_lossy())
    ));
}

/// Fails if what was live at the moment is not known, or if there is no such moment; prints a warning if it may be
/// wrong.
pub fn require_known(trace: &Trace, process: &Process) -> Result<(), Failure> {
    if let Moment::Step(asked) = process.moment {
        let why = process.steps.as_ref().map_or(String::new(), |steps| steps.why_not(asked.number));
        return Err(Failure::new(format!("{}: --at step:{}: {why}", name(trace), asked.number)));
    }
    if process.moment == Moment::OutOfMemory {
        return Err(Failure::new(format!("{}: --at oom: no request failed", name(trace))));
    }
    match knowledge(trace, &process.definitions, &process.state, process.moment) {
        Knowledge::Known => {}
        Knowledge::Unsure => warn_missing_events(trace.path()),
        Knowledge::NotKnown(why) => {
            return Err(Failure::new(format!(
                "{}: {why}; give another moment, e.g. --at peak or --at end",
                name(trace)
            )));
        }
    }
    Ok(())
}

/// [`require_known`] for each process: removes those whose state is not known, with a message, unless they are `shown`.
/// Fails if none is left.
pub fn retain_known(
    processes: &mut Vec<Process>,
    traces: &mut Vec<Trace>,
    shown: impl Fn(&Process) -> bool,
) -> Result<(), Failure> {
    let (mut kept, mut failures) = (Vec::new(), Vec::new());
    for (process, trace) in std::mem::take(processes).into_iter().zip(std::mem::take(traces)) {
        match if shown(&process) { Ok(()) } else { require_known(&trace, &process) } {
            Ok(()) => kept.push((process, trace)),
            Err(failure) => failures.push(failure),
        }
    }
    let last = if kept.is_empty() { failures.pop() } else { None };
    failures.iter().for_each(|failure| message(&failure.message));
    (*processes, *traces) = kept.into_iter().unzip();
    last.map_or(Ok(()), Err)
}
