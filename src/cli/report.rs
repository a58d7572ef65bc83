//! `vramtrace report`: peak, live memory, refusals and holders of each process, as text, JSON or HTML.

use vramtrace_reader::analysis::ranks::{self, ProcessEnd, ProcessFigures};
use vramtrace_reader::analysis::steps::Steps;
use vramtrace_reader::analysis::{
    Collect, Moment, Phase, Process, Verdict, Wanted, phases, read_all,
};
use vramtrace_reader::report::json::process::{self as json, ProcessesReport};
use vramtrace_reader::report::text::{self, ReportOptions};
use vramtrace_reader::trace::Trace;

use super::reading::{heading, show, with_progress};
use super::select::{DeviceArgs, ProcessArgs, Selected};
use super::{caveats, moment, page};
use crate::error::{DONE, Failure, Outcome};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  vramtrace report                                     the newest run here, also while it runs
  vramtrace report vramtrace-20260101-120000/ --rank 3
  vramtrace report train.vtrace --full                 all that is known
  vramtrace report train.vtrace --at peak              what was live when most was
  vramtrace report --by step                           peak and rest of each training step
  vramtrace report --by phase                          by NVTX ranges: peak, allocated, stayed
  vramtrace report --json | jq '.processes[].devices[].peak_bytes'
  vramtrace report --html -o run.html                  one page to look at, without a network")]
pub struct Args {
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Every process in full, also when there are several
    #[arg(long)]
    all: bool,
    /// Show this moment: `peak`, `end` (the default), `step:23` (the peak of a training step),
    /// `step:23:end`, or seconds since the start. Of a time whose events were erased: what samples of
    /// the recorder say of it, with their resolution
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse)]
    at: Option<Moment>,
    /// All that is known, in place of one screen
    #[arg(long)]
    full: bool,
    /// How many holders, sleeps and calls that made the driver take memory to list [default: 3; 5 with --full]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Show what memory did in each step of a training, or in each phase that the program marked
    #[arg(long, value_enum, value_name = "PARTS")]
    by: Option<By>,
    /// Facts for programs (schema vramtrace.report/3)
    #[arg(long)]
    json: bool,
    /// Leave out the commands to run next, and where the page is
    #[arg(long, hide = true)]
    no_hints: bool,
    #[command(flatten)]
    page: page::PageArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Iterations of a training, found by its forward and backward passes; docs/steps.md
    Step,
    /// NVTX ranges
    Phase,
}

/// What was read. A run of several processes has figures of each without its events, from their summaries where possible.
struct ReportInput {
    selected: Selected,
    ranks: Vec<ProcessFigures>,
    /// `None`: the overview needs only the figures.
    processes: Option<Vec<Process>>,
}

pub fn run(args: Args) -> Outcome {
    if args.page.html {
        return page::run(&args.page, &args.processes, !args.no_hints);
    }
    let mut selected = args.processes.open()?;
    let ranks = match selected.traces.len() {
        0 | 1 => Vec::new(),
        _ => read_ranks(&args, &selected.traces)?,
    };
    let is_special = args.json || args.all || args.by.is_some() || args.at.is_some();
    let processes = match ranks.is_empty() || is_special {
        true => Some(read_processes(&args, &mut selected)?),
        false => None,
    };
    caveats::warn_damage(&selected.traces);
    caveats::warn_tails_in_memory(&selected.traces);
    let found = ReportInput { selected, ranks, processes };
    show([], args.json, json::SCHEMA, || found.facts(&args), || found.text(&args))?;
    Ok(DONE)
}

/// The processes at the moment, those that are shown one by one with their holders.
fn read_processes(args: &Args, found: &mut Selected) -> Result<Vec<Process>, Failure> {
    let moment = args.moment();
    let in_full = args.json || args.all || found.traces.len() == 1;
    let steps = args.by == Some(By::Step);
    let of_verdict = Collect::for_verdict(&found.traces);
    let collect = Collect { steps, ..if in_full { of_verdict } else { Collect::default() } };
    let mut processes =
        with_progress(|progress| read_all(&found.traces, moment, collect, progress));
    moment::require_in(&processes, moment, "--at")?;
    caveats::retain_known(&mut processes, &mut found.traces, |one| one.sampled().is_some())?;
    args.device
        .check(processes.iter().flat_map(|process| process.state.devices.keys().copied()))?;
    for process in &mut processes {
        process.state.devices.retain(|device, _| args.device.includes(*device));
    }
    if args.json || args.all || processes.len() == 1 {
        for (process, trace) in processes.iter_mut().zip(&found.traces) {
            let fatal = moment == Moment::End;
            look_closer(process, trace, Wanted { fatal, holders: true }, args);
        }
    }
    Ok(processes)
}

/// [`Process::look_closer`], at what is asked for.
fn look_closer(process: &mut Process, trace: &Trace, wanted: Wanted, args: &Args) {
    process.look_closer(trace, wanted);
    process.failures.retain(|one| args.device.includes(one.oom.device));
    if let Some(leaks) = &mut process.leaks {
        leaks.retain(|device| args.device.includes(device));
    }
}

fn read_ranks(args: &Args, traces: &[Trace]) -> Result<Vec<ProcessFigures>, Failure> {
    let mut ranks = with_progress(|progress| ranks::read(traces, progress));
    for rank in ranks.iter().filter(|rank| !rank.live_is_known) {
        caveats::warn_missing_events(&rank.trace);
    }
    args.device.check(ranks.iter().flat_map(|rank| rank.devices.keys().copied()))?;
    for rank in &mut ranks {
        rank.devices.retain(|device, _| args.device.includes(*device));
    }
    Ok(ranks)
}

fn phases_of(process: &Process, trace: &Trace) -> Vec<Phase> {
    let found = phases(trace, &process.definitions);
    caveats::warn_cut_phases(trace, found.cut);
    found.phases
}

impl Args {
    /// Length of each list in the JSON and the overview.
    fn entries(&self) -> usize {
        self.top.unwrap_or(5)
    }

    fn moment(&self) -> Moment {
        self.at.unwrap_or(Moment::End)
    }

    /// The parts of a run, for --by.
    fn parts(&self, process: &Process, trace: &Trace) -> String {
        match self.by {
            None => String::new(),
            Some(By::Step) => {
                let table = |steps| text::steps::table(steps, self.full);
                process.steps.as_ref().map_or(String::new(), table)
            }
            Some(By::Phase) => {
                let (before, until_ns) = (process.phases_before(), process.state.history_from_ns);
                let top = if self.full { usize::MAX } else { 12 };
                let before = text::phases::before(&before, until_ns, top);
                text::phases::table(&phases_of(process, trace), &before)
            }
        }
    }
}

impl ReportInput {
    fn processes(&self) -> &[Process] {
        self.processes.as_deref().unwrap_or_default()
    }

    fn each(&self) -> impl Iterator<Item = (&Process, &Trace)> {
        self.processes().iter().zip(&self.selected.traces)
    }

    /// The process with the verdict of the run: the first that ran out of memory, else of a short run one that leaks.
    fn worst(&self, args: &Args) -> Option<Process> {
        let failed = ranks::failed(&self.ranks);
        let first = failed.first().filter(|failed| failed.end == ProcessEnd::OutOfMemory);
        let all = &self.selected.traces;
        let traces = first.map_or(&all[..], |first| std::slice::from_ref(&all[first.index]));
        let collect = Collect::for_verdict(traces);
        (first.is_some() || collect.leaks).then_some(())?;
        let mut processes = read_all(traces, Moment::End, collect, &|_, _| {});
        for (process, trace) in processes.iter_mut().zip(traces) {
            look_closer(process, trace, Wanted { fatal: true, holders: false }, args);
        }
        Verdict::worst(&processes).map(|worst| processes.swap_remove(worst))
    }

    fn facts(&self, args: &Args) -> ProcessesReport<'_> {
        let mut report = json::report(self.processes(), args.entries());
        report.run = json::run_facts(&self.ranks, args.entries());
        for (facts, (process, trace)) in report.processes.iter_mut().zip(self.each()) {
            match args.by {
                None => {}
                Some(By::Step) => facts.steps = process.steps.as_ref().map(Steps::facts),
                Some(By::Phase) => {
                    facts.phases = Some(phases_of(process, trace));
                    facts.phases_before = json::phases_before(process.phases_before());
                }
            }
        }
        report
    }

    fn text(&self, args: &Args) -> String {
        let mut out = heading(self.selected.chosen.as_deref());
        let several = self.processes.as_ref().is_none_or(|processes| processes.len() > 1);
        let given = args.processes.given();
        if several {
            let worst = self.worst(args);
            out.push_str(&text::overview(&self.ranks, worst.as_ref(), &given, args.entries()));
        }
        let in_full = if !several || args.all { self.processes() } else { &[] };
        for process in in_full {
            if several {
                out.push('\n');
            }
            let top = args.top.unwrap_or(if args.full { 5 } else { 3 });
            let shown = ReportOptions { top, full: args.full, moment: args.moment() };
            out.push_str(&match process.sampled() {
                Some(sampled) => text::sampled::details(process, &sampled, top),
                None => text::details(process, shown),
            });
        }
        for (process, trace) in self.each().filter(|_| args.by.is_some()) {
            if several {
                out.push_str(&format!("\n{}\n", process.name()));
            }
            out.push_str(&args.parts(process, trace));
        }
        if !args.no_hints {
            let fits = text::fits::hint(&self.selected.traces);
            out.push_str(&text::layout::section(match several && !args.all {
                true => text::overview_hints(&self.ranks, &given, fits),
                false => text::hints(self.processes(), args.full, &given, fits),
            }));
        }
        out
    }
}
