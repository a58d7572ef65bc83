//! The summary that `vramtrace run` prints on stderr at the end: traces, peak, refusals, verdict.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, Header};
use vramtrace_reader::analysis::parallel::Progress;
use vramtrace_reader::analysis::ranks::{self, FiguresSource, ProcessEnd, ProcessFigures};
use vramtrace_reader::analysis::{Collect, Moment, Process, read_all};
use vramtrace_reader::replay::InUse;
use vramtrace_reader::report::shell;
use vramtrace_reader::report::wording::{cut_off, headline, numbered};
use vramtrace_reader::trace::{self, Trace};
use vramtrace_reader::units::{self, size};

use super::reading::with_progress;
use super::{caveats, verdict};
use crate::console::message;
use crate::launch::RunResult;
use crate::launch::child::Status;
use crate::launch::output::from_here;

/// Of a larger trace, and of several that are larger together, the processes' summaries are read, and one process in full.
const LONG: u64 = 256 << 20;
const LARGE_RUN: u64 = 512 << 20;
/// How many devices a line names; the rest are counted.
const NAMED: usize = 8;

pub fn print(ended: &RunResult) {
    if ended.output.is_off() {
        return;
    }
    let traces = ended.output.traces();
    let Some(shown) = ended.output.shown().filter(|_| !traces.is_empty()) else {
        if !ended.observed.still_running {
            ended.output.remove_if_empty();
        }
        message("no process took GPU memory: there is no trace");
        return ended.starved("").iter().for_each(message);
    };
    let shown = from_here(&shown);
    match traces.as_slice() {
        [only] if from_here(only) == shown => message(format_args!("the trace is {shown}")),
        _ => message(format_args!("{} in {shown}", units::several(traces.len() as u64, "trace"))),
    }
    let given = format!(" {}", shell::quoted(&shown));
    let loaded = match trace::load(&traces) {
        Ok(loaded) => loaded.traces,
        Err(error) => return message(error),
    };
    caveats::warn_versions(&loaded);
    let headers: Vec<Header> = loaded.iter().map(|trace| trace.header().clone()).collect();
    let bytes = loaded.iter().map(Trace::len).fold(0, u64::saturating_add);
    let is_long = loaded.iter().any(|trace| trace.len() > LONG);
    let (mut all, mut whole, traces) = match is_long || bytes > LARGE_RUN {
        true => of_large(loaded),
        false => in_full(loaded),
    };
    all.iter_mut().for_each(|one| one.seen = ended.end_of(&one.header));
    whole.iter_mut().for_each(|one| one.ending.seen = ended.end_of(&one.header));
    let mut of_all = lines(&all, ended.status);
    for why in ended.starved(&of_all[3]) {
        of_all[3].push_str(&format!("; {why}"));
    }
    of_all.iter().for_each(message);
    if let Some(cap) = ended.cap.as_ref().filter(|_| all.len() > 1) {
        message(format_args!(
            "  the cap of {cap} was for each process by itself, not for all together"
        ));
    }
    for line in verdict::lines(&mut whole, &traces, &headers, &given) {
        message(line);
    }
    if whole.is_empty() {
        let gave_up = all.iter().any(|process| process.failed_ns.is_some());
        message(verdict::next(if gave_up { "oom" } else { "report" }, &given));
    }
}

/// Figures of all processes, and those that were read in full, with their traces.
type RunFigures = (Vec<ProcessFigures>, Vec<Process>, Vec<Trace>);

/// Of a large run the figures of its processes, and the process in full on which the verdict is: the first that failed, else
/// the one with the highest peak. What is not read is not known.
fn of_large(mut traces: Vec<Trace>) -> RunFigures {
    let ranks = ranks::read_within(&traces, LONG, &|_, _| {});
    caveats::warn_damage(&traces);
    let unread = ranks.iter().filter(|rank| rank.source == FiguresSource::Totals).count();
    if unread > 0 {
        message(format_args!(
            "reading all traces would take too long: of {unread} of {} processes these figures have the last totals \
             alone; `vramtrace report` reads all",
            ranks.len()
        ));
    }
    let first = ranks::failed(&ranks).first().map(|failed| failed.index);
    let highest = || (0..ranks.len()).rev().max_by_key(|index| ranks[*index].peak_bytes());
    let shown = first.or_else(highest).map(|index| traces.swap_remove(index)).into_iter();
    let shown: Vec<Trace> = shown.filter(|trace| trace.len() <= LONG).collect();
    let processes = read_all(&shown, Moment::End, Collect::for_verdict(&shown), &|_, _| {});
    (ranks, processes, shown)
}

fn in_full(traces: Vec<Trace>) -> RunFigures {
    let collect = Collect::for_verdict(&traces);
    let read = |progress: Progress| read_all(&traces, Moment::End, collect, progress);
    let processes = with_progress(read);
    caveats::warn_damage(&traces);
    (processes.iter().map(ProcessFigures::of).collect(), processes, traces)
}

/// The lines `peak`, `at the end`, `refused` and `processes`.
fn lines(processes: &[ProcessFigures], status: Status) -> [String; 4] {
    let mut peaks: BTreeMap<DeviceId, InUse> = BTreeMap::new();
    let mut live: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let (mut allocations, mut by_cap, mut by_driver) = (0, 0, 0);
    for (device, of) in processes.iter().flat_map(|process| &process.devices) {
        if of.peak_bytes > peaks.get(device).map_or(0, InUse::headline) {
            peaks.insert(*device, of.in_use_at_peak);
        }
        if of.live_bytes > 0 {
            *live.entry(*device).or_default() += of.live_bytes;
        }
        allocations += of.live_allocations;
        by_cap += of.refused_by_cap;
        by_driver += of.refused_by_driver;
    }
    let took = match (processes.iter().filter(|of| of.peak_bytes() > 0).count(), processes.len()) {
        (took, all) if took == all => all.to_string(),
        (took, all) => format!("{took} of {all}"),
    };
    let [several, each] = match processes.len() {
        ..2 => ["", ""],
        _ => [" (the highest of one process)", " (each process at its own end)"],
    };
    [
        format!("  peak       {}{several}", by_device(&peaks, headline)),
        match allocations {
            0 => "  at the end nothing is live".to_string(),
            n => {
                let live = by_device(&live, |bytes| size(*bytes));
                format!("  at the end {live} in {}{each}", units::several(n, "allocation"))
            }
        },
        format!("  refused    {by_cap} by the cap, {by_driver} by the driver"),
        format!("  processes  {took} took GPU memory: {}", ends(processes, status)),
    ]
}

/// `2 ended in order, 1 killed by signal 9 (SIGKILL)`: the worst last.
fn ends(processes: &[ProcessFigures], status: Status) -> String {
    let failed = match (processes, status) {
        ([_], Status::Exited(code)) if code != 0 => Some(code),
        _ => None,
    };
    let mut counts: BTreeMap<(u8, String), usize> = BTreeMap::new();
    for process in processes {
        let of_trace = process.exit_status.filter(|status| *status != 0);
        let how = match (process.end(), of_trace.or(failed.map(i32::from))) {
            (ProcessEnd::Running, _) => (1, "still running".into()),
            (ProcessEnd::OutOfMemory, _) => (3, "out of memory".into()),
            (ProcessEnd::InOrder, Some(code)) => (2, format!("exited with status {code}")),
            (ProcessEnd::InOrder, None) => (0, "ended in order".into()),
            (ProcessEnd::CutOff | ProcessEnd::Unknown, _) => {
                (4, cut_off(process.exit_status, &process.seen, "whose end was not recorded"))
            }
        };
        *counts.entry(how).or_default() += 1;
    }
    let words = counts.into_iter().map(|((_, how), count)| format!("{count} {how}"));
    words.collect::<Vec<_>>().join(", ")
}

fn by_device<B>(bytes: &BTreeMap<DeviceId, B>, figure: impl Fn(&B) -> String) -> String {
    if bytes.is_empty() {
        return "nothing".into();
    }
    let named = bytes.iter().take(NAMED);
    let mut parts: Vec<String> = named
        .map(|(device, bytes)| format!("{}: {}", numbered("device ", *device), figure(bytes)))
        .collect();
    if bytes.len() > NAMED {
        parts.push(format!("and {} more", bytes.len() - NAMED));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_up_to_a_point() {
        let bytes = (0..10).map(|n| (DeviceId(n), u64::from(n) << 30)).collect();
        let text = by_device(&bytes, |bytes| size(*bytes));
        assert!(text.starts_with("device 0: 0 B, device 1: 1.00 GiB"), "{text}");
        assert!(text.ends_with("device 7: 7.00 GiB, and 2 more"), "{text}");
        assert_eq!(by_device(&BTreeMap::<DeviceId, u64>::new(), |bytes| size(*bytes)), "nothing");
    }
}
