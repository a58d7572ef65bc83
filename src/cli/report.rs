//! `vramtrace report`: what happened, for people or as JSON.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use vramtrace_reader::analysis::{Moment, Phase, Process, phases, read_all};
use vramtrace_reader::report::{self, Shown};
use vramtrace_reader::trace::{Loaded, Trace, load};

use super::{DONE, FOUND, Failure, Outcome, moment, print, say};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  vramtrace report                                     the newest run here, also while it runs
  vramtrace report vramtrace-20260101-120000/ --rank 3
  vramtrace report train.vtrace --at peak              what was live when most was
  vramtrace report --by-phase                          by NVTX ranges: peak, allocated, stayed
  vramtrace report --json | jq '.processes[].devices[].peak_bytes'
  vramtrace report --fail-on refusal                   exit 1 if a request was refused")]
pub struct Args {
    /// Trace files or a run's directory; default: the newest run in the working directory
    traces: Vec<PathBuf>,
    /// Only the process of this rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Only the process with this pid
    #[arg(long, value_name = "P")]
    pid: Option<u32>,
    /// Every process in full, also when there are several
    #[arg(long)]
    all: bool,
    /// Show this moment: `peak`, `end` (the default), or seconds since the start
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse)]
    at: Option<Moment>,
    /// How many of the largest live allocations and of the last refusals to list
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Show what memory did in each phase that the program marked (NVTX ranges)
    #[arg(long)]
    by_phase: bool,
    /// Facts for programs (schema vramtrace.report/1)
    #[arg(long)]
    json: bool,
    /// Exit 1 if this was found
    #[arg(long, value_name = "FINDING")]
    fail_on: Vec<Finding>,
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

impl Finding {
    fn is_in(self, process: &Process) -> bool {
        match self {
            Finding::Refusal => process.state.refusals() > 0,
            Finding::CutOff => !process.living && !process.ended_in_order(),
            Finding::Live => {
                process.ended_in_order() && process.devices().any(|(_, d)| d.live_allocations > 0)
            }
        }
    }
}

pub fn run(args: Args) -> Outcome {
    let loaded = load(&args.traces)?;
    for warning in &loaded.warnings {
        say(warning);
    }
    let found = wanted(loaded, &args)?;
    let moment = args.at.unwrap_or(Moment::End);
    let bar = progress_bar();
    let began = Instant::now();
    let mut processes = read_all(&found.traces, moment, &|done, total| {
        if began.elapsed() > NOTICEABLE {
            bar.set_length(total);
            bar.set_position(done);
        }
    });
    bar.finish_and_clear();
    if args.json || args.all || processes.len() == 1 {
        for (process, trace) in processes.iter_mut().zip(&found.traces) {
            if moment == Moment::End {
                process.find_fatal(trace);
            }
            process.find_holders(trace);
        }
    }
    let marked: Vec<Vec<Phase>> = match args.by_phase {
        true => processes.iter().zip(&found.traces).map(marked).collect(),
        false => Vec::new(),
    };
    let text = match args.json {
        true => as_json(&processes, &marked, args.top)?,
        false => as_text(&args, &found, &processes, &marked, moment),
    };
    print(&text)?;
    let failed = args.fail_on.iter().any(|finding| processes.iter().any(|p| finding.is_in(p)));
    Ok(if failed { FOUND } else { DONE })
}

fn marked((process, trace): (&Process, &Trace)) -> Vec<Phase> {
    phases(trace, &process.definitions)
}

/// With the phases of each process where they are asked for.
fn as_json(processes: &[Process], marked: &[Vec<Phase>], top: usize) -> Result<String, Failure> {
    let mut all = serde_json::to_value(report::json::report(processes, top))?;
    for (index, phases) in marked.iter().enumerate() {
        all["processes"][index]["phases"] = serde_json::to_value(report::phases::facts(phases))?;
    }
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// Leaves those that `--rank` and `--pid` name.
fn wanted(mut loaded: Loaded, args: &Args) -> Result<Loaded, Failure> {
    let named = |header: &vramtrace_format::Header| {
        args.rank.is_none_or(|rank| header.rank == Some(rank))
            && args.pid.is_none_or(|pid| header.pid == pid)
    };
    if loaded.traces.iter().any(|trace| named(trace.header())) {
        loaded.traces.retain(|trace| named(trace.header()));
        return Ok(loaded);
    }
    let asked = match (args.rank, args.pid) {
        (Some(rank), None) => format!("--rank {rank}"),
        (None, Some(pid)) => format!("--pid {pid}"),
        (rank, pid) => {
            format!("--rank {} with --pid {}", rank.unwrap_or(0), pid.unwrap_or(0))
        }
    };
    let mut there: Vec<String> = loaded
        .traces
        .iter()
        .map(|trace| match (trace.header().rank, args.rank.is_some()) {
            (Some(rank), true) => format!("rank {rank}"),
            _ => format!("pid {}", trace.header().pid),
        })
        .collect();
    there.dedup();
    if there.len() > 16 {
        there.truncate(16);
        there.push("...".to_string());
    }
    Err(Failure::new(format!(
        "{asked}: no such process in these traces; there are {}",
        there.join(", ")
    )))
}

fn as_text(
    args: &Args,
    found: &Loaded,
    processes: &[Process],
    marked: &[Vec<Phase>],
    moment: Moment,
) -> String {
    let mut out = String::new();
    if let Some(chosen) = &found.chosen {
        out.push_str(&format!("{}\n\n", chosen.display()));
    }
    let several = processes.len() > 1;
    if several {
        out.push_str(&report::overview(processes));
    }
    if !several || args.all {
        for process in processes {
            if several {
                out.push('\n');
            }
            out.push_str(&report::details(process, Shown { top: args.top, moment }));
        }
    }
    for (process, phases) in processes.iter().zip(marked) {
        if several {
            out.push_str(&format!("\n{}\n", process.name()));
        }
        out.push_str(&report::phases::table(phases));
    }
    let hints = report::hints(processes, several && !args.all, &given(args));
    if !hints.is_empty() {
        out.push('\n');
        out.push_str(&hints);
    }
    out
}

/// The traces as they were given, to repeat in another command.
fn given(args: &Args) -> String {
    args.traces.iter().map(|path| format!(" {}", path.display())).collect()
}

/// Reading that takes longer shows how far it is.
const NOTICEABLE: Duration = Duration::from_millis(300);

/// Shown only on a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) =
        ProgressStyle::with_template("reading {bar:40} {bytes} of {total_bytes}, {eta} left")
    {
        bar.set_style(style);
    }
    bar
}
