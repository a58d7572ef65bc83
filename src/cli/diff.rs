//! `vramtrace diff`: what grew from one run to another, or from one moment to another.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vramtrace_reader::analysis::diff::{DeviceUse, Difference, Usage, compare};
use vramtrace_reader::analysis::{Level, Moment, RolesOf};
use vramtrace_reader::files;
use vramtrace_reader::report::json::{DIFF, DiffFacts, Document};
use vramtrace_reader::report::text::diff::{percent, signed, text};

use super::output::Output;
use super::page::label;
use super::reading::{Question, held_at};
use super::select::{self, ProcessArgs, Selected};
use super::{caveats, moment};
use crate::console::{json, message, print, print_text};
use crate::error::{DONE, FOUND, Failure, Outcome};

const BASELINE: &str = "vramtrace.baseline/1";

#[derive(clap::Args)]
#[command(
    long_about = "What grew from one run to another: memory in use at the peak, by role, by library \
        and by line. Lines are the same by file, function and number; what an edit moved is paired \
        by function. With --tolerance, exit 1 and the line that grew where a device's memory in use, \
        or its peak, grew by more.",
    after_help = "\
Examples:
  vramtrace diff before.vtrace after.vtrace
  vramtrace diff after.vtrace --against before.vtrace  the same, as in `report`
  vramtrace diff train.vtrace --at 10 --vs 60          two moments of one run
  vramtrace diff --save base.json train.vtrace         a baseline for runs to come
  vramtrace diff --baseline base.json --tolerance 3% train.vtrace"
)]
pub struct Args {
    /// BEFORE and AFTER; AFTER alone with --against or --baseline, one with --save or --vs. Traces,
    /// runs' directories, snapshots
    #[arg(value_name = "TRACE", required = true, num_args = 1..=2)]
    traces: Vec<PathBuf>,
    /// The run before: a trace, a run's directory, or a PyTorch snapshot; of several traces each
    /// with an option of its own
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["baseline", "save", "vs"])]
    against: Vec<PathBuf>,
    /// Compare with what --save wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "vs"])]
    baseline: Option<PathBuf>,
    /// Write what the run held, for --baseline
    #[arg(long, value_name = "FILE", conflicts_with = "vs")]
    save: Option<PathBuf>,
    /// Exit 1 if memory grew by more than this many percent [default with --baseline: 3%]
    #[arg(long, value_name = "PERCENT", value_parser = tolerance)]
    tolerance: Option<f64>,
    /// Which moment: `peak`, `peak-allocated`, `end`, or seconds since the start [default:
    /// peak-allocated where PyTorch's blocks were recorded, else peak]
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse)]
    at: Option<Moment>,
    /// Another moment of the same run, which stands for AFTER
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, requires = "at")]
    vs: Option<Moment>,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// How many lines to list
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,
    /// For --save: replace an existing file
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Format {
    Text,
    /// Facts for programs (schema vramtrace.diff/1)
    Json,
}

#[derive(Debug, thiserror::Error)]
#[error("give a percentage of 0 or more, e.g. 3%")]
struct NotATolerance;

fn tolerance(text: &str) -> Result<f64, NotATolerance> {
    match text.trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent / 100.0),
        _ => Err(NotATolerance),
    }
}

/// Default of --tolerance with --baseline: 3 %.
const TOLERANCE: f64 = 0.03;

#[derive(Serialize, Deserialize)]
struct Baseline {
    schema: String,
    #[serde(flatten)]
    usage: Usage,
}

pub fn run(args: Args) -> Outcome {
    let alone = args.baseline.is_some() || args.save.is_some() || args.vs.is_some();
    let wanted = if alone || !args.against.is_empty() { 1 } else { 2 };
    if args.traces.len() != wanted {
        return Err(Failure::new(match wanted {
            1 => {
                format!(
                    "{}: only one trace can be given with --against, --baseline, --save or --vs",
                    args.traces[1].display()
                )
            }
            _ => format!(
                "{}: nothing to compare with: give a second trace, --against TRACE, --baseline FILE, or \
                 --at T1 --vs T2",
                args.traces[0].display()
            ),
        }));
    }
    if let Some(path) = &args.save {
        return save(&args, path);
    }
    let side = |traces: &[PathBuf], at, option| -> Result<(Usage, String), Failure> {
        Ok((usage(select::open(traces)?, at, option)?, label(traces)))
    };
    let here = |at, option| side(&args.traces[..1], at, option);
    let ((before, old), (after, new)) = match (&args.baseline, args.vs) {
        (Some(path), _) => ((baseline(path)?, path.display().to_string()), here(args.at, "--at")?),
        (None, Some(vs)) => {
            let at = |at: Option<Moment>, option| -> Result<(Usage, String), Failure> {
                let (usage, name) = here(at, option)?;
                Ok((usage, format!("{name}, {}", at.map_or("".into(), Moment::words))))
            };
            (at(args.at, "--at")?, at(Some(vs), "--vs")?)
        }
        (None, None) if !args.against.is_empty() => {
            (side(&args.against, args.at, "--at")?, here(args.at, "--at")?)
        }
        (None, None) => (here(args.at, "--at")?, side(&args.traces[1..], args.at, "--at")?),
    };
    show(&compare(&before, &after), [old, new], &args)
}

/// What changed from the runs `against` to `processes`, for `report --against`.
pub fn of_runs(
    against: &[PathBuf],
    processes: &ProcessArgs,
    (at, top): (Option<Moment>, usize),
) -> Result<String, Failure> {
    let before = usage(select::open(against)?, at, "--at")?;
    let after = processes.open()?;
    let chosen = after.chosen.iter().cloned().collect::<Vec<_>>();
    let name = label(if processes.traces.is_empty() { &chosen } else { &processes.traces });
    let after = usage(after, at, "--at")?;
    Ok(text(&compare(&before, &after), [&label(against), &name], top))
}

fn save(args: &Args, path: &Path) -> Outcome {
    let output = Output::new(path, args.force)?;
    let usage = usage(select::open(&args.traces)?, args.at, "--at")?;
    let text = json(&Baseline { schema: BASELINE.to_string(), usage })?;
    output.write(|out| out.write_all(text.as_bytes()))?;
    if !output.is_stdout() {
        message(format_args!("{}: a baseline for `vramtrace diff --baseline`", output.shown()));
    }
    Ok(DONE)
}

/// Most bytes of a baseline file.
const MOST_BASELINE: u64 = 64 << 20;

fn baseline(path: &Path) -> Result<Usage, Failure> {
    let shown = path.display();
    let text = files::read_given_text(path, MOST_BASELINE)
        .map_err(|error| Failure::new(format!("{shown}: cannot be read: {error}")))?;
    let found: Baseline = serde_json::from_str(&text).map_err(|error| {
        Failure::new(format!(
            "{shown}: not a baseline file: {error}; write one with `vramtrace diff --save`"
        ))
    })?;
    match found.schema == BASELINE {
        true => Ok(found.usage),
        false => Err(Failure::new(format!(
            "{shown}: its schema is {:?}, this version reads {BASELINE:?}; write it again with \
             `vramtrace diff --save`",
            found.schema
        ))),
    }
}

/// `option`: the one that gave the moment.
fn usage(selected: Selected, at: Option<Moment>, option: &str) -> Result<Usage, Failure> {
    let roles = Some(RolesOf::Blocks);
    let asked = at.unwrap_or(Moment::End);
    let read = Question { at: asked, option, level: None, roles, device: None }.ask(selected)?;
    let mut without_rank = 0;
    let mut places = Vec::new();
    for (process, trace) in read.each() {
        let level = Level::of(&process.state);
        let (peak, has_roles) = match level {
            Level::Tensor => (Moment::AllocatedPeak, true),
            Level::Driver => (Moment::Peak, false),
        };
        let moment = (at.unwrap_or(peak), level);
        let (who, roles) = held_at((process, trace), moment, has_roles, |_| true);
        places.extend(DeviceUse::of(process, &who, roles.as_ref(), without_rank));
        without_rank += u32::from(process.header.rank.is_none());
    }
    caveats::warn_damage(&read.traces);
    Ok(Usage { places })
}

fn show(differences: &[Difference], names: [String; 2], args: &Args) -> Outcome {
    let tolerance = args.tolerance.or(args.baseline.is_some().then_some(TOLERANCE));
    let failures: Vec<String> =
        differences.iter().filter_map(|difference| failure(difference, tolerance?)).collect();
    let shown = [names[0].as_str(), names[1].as_str()];
    match args.format {
        Format::Text => print_text(&text(differences, shown, args.top))?,
        Format::Json => {
            let facts = DiffFacts {
                before: &names[0],
                after: &names[1],
                tolerance_percent: tolerance.map(|part| part * 100.0),
                passed: failures.is_empty(),
                reasons: &failures,
                devices: differences,
            };
            print(&json(&Document::new(DIFF, &facts, []))?)?;
        }
    }
    failures.iter().for_each(|failure| message(format_args!("FAILED: {failure}")));
    Ok(if failures.is_empty() { DONE } else { FOUND })
}

fn failure(difference: &Difference, tolerance: f64) -> Option<String> {
    let (what, change) = difference.growth(tolerance)?;
    let line = match difference.grew_most() {
        Some(line) => format!("{}: {}", line.name.words(), signed(line.bytes.bytes())),
        None => format!("free in PyTorch's cache: {}", signed(difference.free_in_cache.bytes())),
    };
    let (name, by) = (&difference.name, signed(change.bytes()));
    let allowed = percent_of(tolerance);
    Some(format!("{name}: {what} grew by {by}, {}, more than {allowed}: {line}", percent(change)))
}

fn percent_of(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}
