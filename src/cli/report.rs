//! `vramtrace report`: peak, live memory, refusals and holders of each process, as text, JSON or HTML.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use vramtrace_reader::analysis::ranks::{self, DeviceFigures, ProcessEnd, ProcessFigures};
use vramtrace_reader::analysis::steps::Steps;
use vramtrace_reader::analysis::{
    Collect, MAX_OPEN_RANGES, Moment, Phase, Process, RolesOf, Wanted, phases, read_all,
};
use vramtrace_reader::report::json;
use vramtrace_reader::report::text::{self, ReportOptions};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{clean, several, size};

use super::select::{DeviceArgs, ProcessArgs, Selected};
use super::{caveats, moment, page};
use crate::console::{self, message, print, print_text};
use crate::error::{DONE, FOUND, Failure, Outcome};

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
  vramtrace report --html -o run.html                  one page to look at, without a network
  vramtrace report --fail-on refusal                   exit 1 if a request was refused")]
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
    /// Facts for programs (schema vramtrace.report/2)
    #[arg(long)]
    json: bool,
    /// Leave out the commands to run next, and where the page is
    #[arg(long, hide = true)]
    no_hints: bool,
    #[command(flatten)]
    page: page::PageArgs,
    /// Exit 1 if this was found
    #[arg(long, value_name = "FINDING")]
    fail_on: Vec<Finding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Iterations of a training, found by its forward and backward passes; docs/steps.md
    Step,
    /// NVTX ranges
    Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Finding {
    /// A request was refused, by the cap or by the driver
    Refusal,
    /// A process was killed or crashed
    CutOff,
    /// Memory was still allocated when a process ended in order
    Live,
}

/// How many reasons of --fail-on are printed.
const REASONS: usize = 10;

impl Finding {
    fn option(self) -> &'static str {
        match self {
            Finding::Refusal => "--fail-on refusal",
            Finding::CutOff => "--fail-on cut-off",
            Finding::Live => "--fail-on live",
        }
    }

    /// The message for a process with this finding. `None`: the process does not have it.
    fn reason(self, process: &ProcessFigures) -> Option<String> {
        let name = process.name();
        let sum = |figure: fn(&DeviceFigures) -> u64| process.sum(figure);
        match self {
            Finding::Refusal => {
                let (cap, driver) = (sum(|of| of.refused_by_cap), sum(|of| of.refused_by_driver));
                let refused = several(cap.saturating_add(driver), "refused request");
                (cap > 0 || driver > 0).then(|| {
                    format!("{name}: {refused}, {cap} by the cap and {driver} by the driver")
                })
            }
            Finding::CutOff => (!process.running && !process.ended_in_order)
                .then(|| format!("{name} was killed, crashed or left by _exit")),
            Finding::Live => {
                let (live, bytes) = (sum(|of| of.live_allocations), size(sum(|of| of.live_bytes)));
                (process.ended_in_order && live > 0).then(|| {
                    format!("{name} ended with {} live, {bytes}", several(live, "allocation"))
                })
            }
        }
    }
}

impl Args {
    /// Length of each list in the JSON and the overview.
    fn entries(&self) -> usize {
        self.top.unwrap_or(5)
    }
}

pub fn run(args: Args) -> Outcome {
    if args.page.html {
        return page::run(&args.page, &args.processes, !args.no_hints);
    }
    let mut found = args.processes.open()?;
    let ranks = match found.traces.len() {
        0 | 1 => Vec::new(),
        _ => read_ranks(&args, &found.traces)?,
    };
    let moment = args.at.unwrap_or(Moment::End);
    let is_special = args.json || args.all || args.by.is_some() || args.at.is_some();
    // The overview needs only the summaries that processes wrote at their end.
    let processes = match ranks.is_empty() || is_special {
        true => Some(read_processes(&args, &mut found, moment)?),
        false => None,
    };
    if processes.is_none() {
        caveats::warn_damage(&found.traces);
        caveats::warn_tails_in_memory(&found.traces);
    }
    let figures = processes.as_ref().map(|all| all.iter().map(ProcessFigures::of).collect());
    let several = processes.as_ref().is_none_or(|processes| processes.len() > 1);
    let processes = processes.unwrap_or_default();
    let read = processes.iter().zip(&found.traces);
    let parts: Vec<Parts> =
        read.filter_map(|(process, trace)| Parts::of(args.by?, process, trace)).collect();
    match args.json {
        true => print(&as_json(&processes, &ranks, &parts, args.entries())?)?,
        false => {
            let ranks = several.then_some(&ranks[..]);
            print_text(&as_text(&args, &found, (&processes, ranks), &parts, moment))?;
        }
    }
    Ok(status(&args.fail_on, &figures.unwrap_or(ranks)))
}

/// The processes at the moment, those that are shown one by one with their holders.
fn read_processes(
    args: &Args,
    found: &mut Selected,
    moment: Moment,
) -> Result<Vec<Process>, Failure> {
    let in_full = args.json || args.all || found.traces.len() == 1;
    let roles = in_full.then_some(RolesOf::Blocks);
    let steps = args.by == Some(By::Step);
    let collect = Collect { roles, steps, points: in_full, ..Collect::default() };
    let mut processes =
        with_progress(|progress| read_all(&found.traces, moment, collect, progress));
    moment::require_in(&processes, moment, "--at")?;
    caveats::retain_known(&mut processes, &mut found.traces, |one| one.sampled().is_some())?;
    caveats::warn_damage(&found.traces);
    caveats::warn_tails_in_memory(&found.traces);
    args.device
        .check(processes.iter().flat_map(|process| process.state.devices.keys().copied()))?;
    for process in &mut processes {
        process.state.devices.retain(|device, _| args.device.includes(*device));
    }
    if args.json || args.all || processes.len() == 1 {
        for (process, trace) in processes.iter_mut().zip(&found.traces) {
            let fatal = moment == Moment::End;
            process.look_closer(trace, Wanted { fatal, holders: true, leaks: None });
            process.fatal.retain(|fatal| args.device.includes(fatal.oom.device));
        }
    }
    Ok(processes)
}

/// The processes of a run without their events: figures from their summaries where possible.
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

/// The process that ran out of memory first, with its post-mortems.
fn first_failed(args: &Args, ranks: &[ProcessFigures], traces: &[Trace]) -> Option<Process> {
    let failed = ranks::failed(ranks);
    let first = failed.first().filter(|failed| failed.end == ProcessEnd::OutOfMemory)?;
    let trace = &traces[first.index];
    let mut process = Process::read(trace, Moment::End);
    process.look_closer(trace, Wanted { fatal: true, ..Wanted::default() });
    process.fatal.retain(|fatal| args.device.includes(fatal.oom.device));
    Some(process)
}

/// Exit status, with the reasons on stderr.
fn status(wanted: &[Finding], processes: &[ProcessFigures]) -> u8 {
    let found = wanted.iter().flat_map(|finding| {
        let reason = |process| Some(format!("{}: {}", finding.option(), finding.reason(process)?));
        processes.iter().filter_map(reason)
    });
    let reasons: Vec<String> = found.collect();
    reasons.iter().take(REASONS).for_each(|reason| message(format_args!("FAILED: {reason}")));
    if reasons.len() > REASONS {
        message(format_args!("FAILED: and {} reasons more", reasons.len() - REASONS));
    }
    if reasons.is_empty() { DONE } else { FOUND }
}

/// Runs `read` with a progress bar on stderr. `read` calls its argument with bytes done and bytes in all.
pub(super) fn with_progress<R>(read: impl FnOnce(&(dyn Fn(u64, u64) + Sync)) -> R) -> R {
    let bar = progress_bar();
    let began = Instant::now();
    let read = read(&|done, total| {
        if began.elapsed() > NOTICEABLE {
            bar.set_length(total);
            bar.set_position(done);
        }
    });
    bar.finish_and_clear();
    read
}

/// The path of the newest run, if no trace was named.
fn head(found: &Selected) -> String {
    found.chosen.as_ref().map_or(String::new(), |chosen| format!("{}\n\n", chosen.display()))
}

/// The parts of a run, for --by.
enum Parts {
    Steps(Steps),
    Phases(Vec<Phase>),
}

impl Parts {
    fn of(by: By, process: &Process, trace: &Trace) -> Option<Parts> {
        Some(match by {
            By::Phase => Parts::Phases(phases_of(process, trace)),
            By::Step => Parts::Steps(process.steps.clone()?),
        })
    }

    fn text(&self, process: &Process, full: bool) -> String {
        match self {
            Parts::Steps(steps) => text::steps::table(steps, full),
            Parts::Phases(phases) => {
                let (before, until_ns) = (process.phases_before(), process.state.history_from_ns);
                let top = if full { usize::MAX } else { 12 };
                text::phases::table(phases, &text::phases::before(&before, until_ns, top))
            }
        }
    }

    fn add_to(&self, process: &Process, facts: &mut serde_json::Value) -> Result<(), Failure> {
        match self {
            Parts::Steps(steps) => facts["steps"] = serde_json::to_value(steps.facts())?,
            Parts::Phases(phases) => {
                facts["phases"] = serde_json::to_value(phases)?;
                let before = json::process::phases_before(process.phases_before());
                if !before.is_empty() {
                    facts["phases_before"] = serde_json::to_value(before)?;
                }
            }
        }
        Ok(())
    }
}

fn phases_of(process: &Process, trace: &Trace) -> Vec<Phase> {
    let found = phases(trace, &process.definitions);
    if found.cut > 0 {
        message(format_args!(
            "{}: {} counted only up to the moment when {MAX_OPEN_RANGES} others were open: end them with nvtxRangeEnd or \
             nvtxRangePop",
            clean(&trace.path().to_string_lossy()),
            several(found.cut, "NVTX range"),
        ));
    }
    found.phases
}

/// `parts`: of each process, for --by.
fn as_json(
    processes: &[Process],
    ranks: &[ProcessFigures],
    parts: &[Parts],
    top: usize,
) -> Result<String, Failure> {
    let mut all = serde_json::to_value(json::process::report(processes, top))?;
    if !ranks.is_empty() {
        all["run"] = serde_json::to_value(json::process::run_facts(ranks, top))?;
    }
    for (index, (process, parts)) in processes.iter().zip(parts).enumerate() {
        parts.add_to(process, &mut all["processes"][index])?;
    }
    console::json(&all)
}

/// `ranks`: of several processes, which have an overview.
fn as_text(
    args: &Args,
    found: &Selected,
    (processes, ranks): (&[Process], Option<&[ProcessFigures]>),
    parts: &[Parts],
    moment: Moment,
) -> String {
    let mut out = head(found);
    let several = ranks.is_some();
    let given = args.processes.given();
    if let Some(ranks) = ranks {
        let first = first_failed(args, ranks, &found.traces);
        out.push_str(&text::overview(ranks, first.as_ref(), &given, args.entries()));
    }
    if !several || args.all {
        for process in processes {
            if several {
                out.push('\n');
            }
            let top = args.top.unwrap_or(if args.full { 5 } else { 3 });
            let shown = ReportOptions { top, full: args.full, moment };
            out.push_str(&match process.sampled() {
                Some(sampled) => text::sampled::details(process, &sampled, top),
                None => text::details(process, shown),
            });
        }
    }
    for (process, parts) in processes.iter().zip(parts) {
        if several {
            out.push_str(&format!("\n{}\n", process.name()));
        }
        out.push_str(&parts.text(process, args.full));
    }
    let fits = || text::fits::hint(&found.traces);
    let hints = match ranks.filter(|_| !args.all) {
        _ if args.no_hints => String::new(),
        Some(ranks) => text::overview_hints(ranks, &given, fits()),
        None => text::hints(processes, args.full, &given, fits()),
    };
    if !hints.is_empty() {
        out.push('\n');
        out.push_str(&hints);
    }
    out
}

/// The progress bar appears after this time.
const NOTICEABLE: Duration = Duration::from_millis(300);

/// indicatif draws it only if stderr is a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) =
        ProgressStyle::with_template("reading {bar:40} {bytes} of {total_bytes}, {eta} left")
    {
        bar.set_style(style);
    }
    bar
}
