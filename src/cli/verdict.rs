//! The verdict on a run: what `vramtrace run` ends with. `vramtrace` alone prints that on the newest run here, or the first
//! commands to type; `vramtrace FILE` that on this trace, run or recording of another tool.

use std::cmp::Reverse;
use std::path::PathBuf;

use vramtrace_format::Header;
use vramtrace_reader::analysis::leaks::Suppressions;
use vramtrace_reader::analysis::{Collect, Moment, Process, RolesOf, Wanted, read_all};
use vramtrace_reader::report::shell;
use vramtrace_reader::report::text::verdict::{Finding, RunVerdict, verdict};
use vramtrace_reader::trace::{Trace, TraceError, load};

use super::caveats;
use super::select::{ProcessArgs, Selected};
use crate::console::print;
use crate::error::{DONE, Outcome};

const FIRST: &str = "\
There is no recorded run in this directory yet. Begin with one of these:
  vramtrace demo                   a recorded out-of-memory, explained; needs no GPU
  vramtrace run python train.py    records your program, and ends with a verdict
  vramtrace doctor                 what prevents recording on this machine
All commands: vramtrace --help
";

pub fn run() -> Outcome {
    match load(&[]) {
        Err(TraceError::NoneHere(_)) => {
            print(FIRST)?;
            Ok(DONE)
        }
        _ => of(Vec::new()),
    }
}

/// The verdict on the recordings that these paths name; of none, on the newest run here.
pub fn of(paths: Vec<PathBuf>) -> Outcome {
    let args = ProcessArgs::of(paths);
    let Selected { mut traces, chosen } = args.open()?;
    let given = chosen.map_or_else(|| args.given(), |chosen| format!(" {}", shell::path(&chosen)));
    let mut processes = read_all(&traces, Moment::End, collect(&traces), &|_, _| {});
    caveats::retain_known(&mut processes, &mut traces, |_| false)?;
    caveats::warn_damage(&traces);
    caveats::warn_tails_in_memory(&traces);
    let headers: Vec<Header> = traces.iter().map(|trace| trace.header().clone()).collect();
    let lines = lines(&mut processes, &traces, &headers, &given);
    print(&format!("{}\n{}\n", given.trim_start(), lines.join("\n")))?;
    Ok(DONE)
}

/// With more bytes of traces than this, leaks are not searched: that takes longer than the other figures.
const LEAKS_MOST: u64 = 64 << 20;

/// What [`lines`] needs of the first pass over the traces.
pub fn collect(traces: &[Trace]) -> Collect {
    let leaks = traces.iter().map(Trace::len).sum::<u64>() <= LEAKS_MOST;
    Collect { roles: Some(RolesOf::Blocks), leaks, points: true, ..Collect::default() }
}

/// Lines to print: the verdict, the line of code, a setting that helps, the next command. `given`: the
/// arguments that name the run in a command, each after a space. The processes were read with [`collect`]; `headers`: of
/// all processes of the run, also of those that were not read.
pub fn lines(
    processes: &mut [Process],
    traces: &[Trace],
    headers: &[Header],
    given: &str,
) -> Vec<String> {
    let mut worst: Option<(Severity, usize, RunVerdict)> = None;
    for (index, (process, trace)) in processes.iter_mut().zip(traces).enumerate() {
        let rules = Suppressions::default();
        let leaks = process.ended_out_of_memory().is_empty().then_some((&rules, 0));
        let leaks = process.look_closer(trace, Wanted { fatal: true, holders: true, leaks });
        let found = verdict(process, leaks.as_ref());
        let severity = Severity::of(process, found.finding);
        if worst.as_ref().is_none_or(|(worst, ..)| severity > *worst) {
            worst = Some((severity, index, found));
        }
    }
    let Some((_, index, found)) = worst else { return Vec::new() };
    let process = &processes[index];
    let several = headers.len() > 1;
    let of = if several { format!("{}: ", process.name()) } else { String::new() };
    let line = found.line.map(|line| format!("  line       {line}"));
    let fix = found.fix.map(|fix| format!("  fix        {fix}"));
    let mut lines = vec![format!("  verdict    {of}{}", found.what)];
    lines.extend(line.into_iter().chain(fix));
    let one = shell::of_process(given, &process.header, &process.trace, headers.iter());
    // Nothing is wrong with one of them: the command is about all.
    let is_fine = found.finding <= Finding::Fine;
    lines.push(next(found.finding, if is_fine { given } else { &one }));
    lines
}

/// Of several processes the one with the greatest is shown: of failures the first, as the others often
/// follow from it; of other findings the one with the highest peak.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Severity {
    finding: Finding,
    first: Reverse<u64>,
    peak: u64,
}

impl Severity {
    fn of(process: &Process, finding: Finding) -> Severity {
        let at_ns = match finding {
            Finding::OutOfMemory => process.fatal.iter().map(|fatal| fatal.oom.time_ns).min(),
            Finding::CutOff => Some(process.ending.last_ns),
            _ => None,
        };
        let first = at_ns.map_or(0, |at_ns| process.header.start_unix_ns.saturating_add(at_ns));
        Severity { finding, first: Reverse(first), peak: process.peak_bytes() }
    }
}

/// The line with the command to run next. `given`: as in [`lines`].
pub fn next(finding: Finding, given: &str) -> String {
    format!("  next       vramtrace {}{given}", finding.command())
}
