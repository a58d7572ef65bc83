//! The verdict on a run: what `vramtrace run` ends with. `vramtrace` alone prints that on the newest run here, or the first
//! commands to type; `vramtrace FILE` that on this trace, run or recording of another tool.

use std::path::PathBuf;

use vramtrace_format::Header;
use vramtrace_reader::analysis::ranks::{self, ProcessFigures};
use vramtrace_reader::analysis::{Collect, Moment, Process, Verdict, Wanted, read_all};
use vramtrace_reader::report::text::{engine, failed, guests};
use vramtrace_reader::report::{WordedVerdict, holder_line, shell};
use vramtrace_reader::trace::{Trace, TraceError, load};
use vramtrace_reader::units::{several, size};

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
    let mut processes = read_all(&traces, Moment::End, Collect::for_verdict(&traces), &|_, _| {});
    caveats::retain_known(&mut processes, &mut traces, |_| false)?;
    caveats::warn_damage(&traces);
    caveats::warn_tails_in_memory(&traces);
    let headers: Vec<Header> = traces.iter().map(|trace| trace.header().clone()).collect();
    let lines = lines(&mut processes, &traces, &headers, &given);
    print(&format!("{}\n{}\n", given.trim_start(), lines.join("\n")))?;
    Ok(DONE)
}

/// Lines to print: the verdict, the line of code, a setting that helps, the next command. `given`: the
/// arguments that name the run in a command, each after a space. The processes were read with [`Collect::for_verdict`]; `headers`: of
/// all processes of the run, also of those that were not read.
pub fn lines(
    processes: &mut [Process],
    traces: &[Trace],
    headers: &[Header],
    given: &str,
) -> Vec<String> {
    for (process, trace) in processes.iter_mut().zip(traces) {
        process.look_closer(trace, Wanted::ALL);
    }
    let Some(worst) = Verdict::worst(processes) else { return Vec::new() };
    let process = &processes[worst];
    let found = WordedVerdict::of(process);
    let Verdict { kind, device, next: command, .. } = found.verdict;
    let failure = process.failures.first().filter(|failure| failure.leak.is_none());
    let remedy = failure.and_then(|failure| failure.remedy.as_ref()?.fix.as_ref());
    let fix = remedy.map(|(conf, spare)| {
        let (conf, spare) = (shell::quoted(conf), size(*spare));
        format!("  fix        PYTORCH_CUDA_ALLOC_CONF={conf} (replayed: it fits, {spare} to spare)")
    });
    let figures: Vec<ProcessFigures> = processes.iter().map(ProcessFigures::of).collect();
    let of = match (failed::endings(&figures), process.name()) {
        _ if headers.len() < 2 => String::new(),
        (ends, name) if kind.is_fine() && !ends.is_empty() && figures.len() == headers.len() => {
            format!("{} processes, {ends}; the highest is {name}: ", figures.len())
        }
        (_, name) => format!("{name}: "),
    };
    let failed = ranks::failed(&figures);
    let first = failed.split_first().filter(|(first, _)| first.index == worst);
    let also = first.and_then(|(first, others)| failed::also(&figures, first, others));
    let also = also.map(|also| format!("  also       {also}"));
    let line = found.line.as_ref().map(|line| format!("  line       {line}"));
    let mut lines = vec![format!("  verdict    {of}{}", found.headline(process))];
    let setting = engine::setting(process, device).map(|text| format!("  setting    {text}"));
    lines.extend(line.into_iter().chain(setting).chain(fix).chain(also));
    // Who holds the most beside it.
    let beside = process.failures.iter().flat_map(|failure| &failure.oom.neighbours);
    let beside = beside.filter(|other| other.of_run).max_by_key(|other| other.bytes);
    let beside = beside.and_then(|other| processes.iter().find(|it| it.header.pid == other.pid));
    let holds =
        |other: &Process| Some(format!("{}: {}", other.name(), holder_line(&Verdict::of(other))?));
    lines.extend(beside.and_then(holds).map(|text| format!("  beside     {text}")));
    // What others were refused and survived.
    let others = processes.iter().filter(|other| other.trace != process.trace);
    let others = others.filter(|other| other.handled().is_some());
    let requests = |other: &Process| several(other.state.refusals(), "request");
    let refused: Vec<String> =
        others.map(|other| format!("{}: {}", other.name(), requests(other))).collect();
    lines.extend((!refused.is_empty()).then(|| format!("  refused    {}", refused.join(", "))));
    lines.extend(guests(&figures).map(|text| format!("  contexts   {text}")));
    let one = shell::of_process(given, &process.header, &process.trace, headers.iter());
    // Nothing is wrong with one of them: the command is about all.
    lines.push(next(command, if kind.is_fine() { given } else { &one }));
    lines
}

/// The line with the command to run next. `given`: as in [`lines`].
pub fn next(command: &str, given: &str) -> String {
    format!("  next       vramtrace {command}{given}")
}
