//! The verdict on a run: what `vramtrace run` ends with, and `vramtrace` alone prints.

use vramtrace_reader::analysis::leaks::Suppressions;
use vramtrace_reader::analysis::{Collect, Process, RolesOf, Wanted};
use vramtrace_reader::report::text::verdict::{Finding, Verdict, verdict};
use vramtrace_reader::trace::Trace;

/// With more bytes of traces than this, leaks are not searched: that takes longer than the other figures.
const LEAKS_MOST: u64 = 64 << 20;

/// What [`lines`] needs of the first pass over the traces.
pub fn collect(traces: &[Trace]) -> Collect {
    let leaks = traces.iter().map(Trace::len).sum::<u64>() <= LEAKS_MOST;
    Collect { roles: Some(RolesOf::Blocks), leaks, sizes: false, steps: false }
}

/// Lines to print: the verdict, the line of code, a setting that helps, the next command.
/// `given`: how the run is named in a command. The processes were read with [`collect`].
pub fn lines(processes: &mut [Process], traces: &[Trace], given: &str) -> Vec<String> {
    let several = processes.len() > 1;
    let mut worst: Option<(u64, String, Verdict)> = None;
    for (process, trace) in processes.iter_mut().zip(traces) {
        let rules = Suppressions::default();
        let leaks = process.ended_out_of_memory().is_empty().then_some((&rules, 0));
        let leaks = process.look_closer(trace, Wanted { fatal: true, holders: true, leaks });
        let found = verdict(process, leaks.as_ref());
        // Of equal findings the process with the highest peak is shown.
        let peak = process.peak_bytes();
        let is_worse = |(most, _, worst): &(u64, String, Verdict)| {
            (found.finding, peak) > (worst.finding, *most)
        };
        if worst.as_ref().is_none_or(is_worse) {
            worst = Some((peak, process.name(), found));
        }
    }
    let Some((_, name, found)) = worst else { return Vec::new() };
    let of = if several { format!("{name}: ") } else { String::new() };
    let line = found.line.map(|line| format!("  line       {line}"));
    let fix = found.fix.map(|fix| format!("  fix        {fix}"));
    let mut lines = vec![format!("  verdict    {of}{}", found.what)];
    lines.extend(line.into_iter().chain(fix));
    lines.push(next(found.finding, given));
    lines
}

/// The line with the command to run next.
pub fn next(finding: Finding, given: &str) -> String {
    format!("  next       vramtrace {} {given}", finding.command())
}
