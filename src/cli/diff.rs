//! `vramtrace diff`: what grew from one run to another, or from one moment to another.

use std::path::{Path, PathBuf};

use vramtrace_reader::analysis::diff::{DeviceUse, Difference, compare};
use vramtrace_reader::analysis::{Level, Moment, RolesOf};
use vramtrace_reader::report::json::{DIFF, DiffFacts};
use vramtrace_reader::report::text::diff::{percent, signed, text};

use super::page::label;
use super::reading::{Question, held_at, show};
use super::{caveats, moment, select};
use crate::error::{Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "What grew from one run to another: memory in use at the peak, by role, by library \
        and by line. Lines are the same by file, function and number; what an edit moved is paired \
        by function. With --tolerance, exit 1 and the line that grew where a device's memory in use, \
        or its peak, grew by more.",
    after_help = "\
Examples:
  vramtrace diff before.vtrace after.vtrace
  vramtrace diff train.vtrace --at 10 --vs 60          two moments of one run
  vramtrace diff base.vtrace train.vtrace --tolerance 3%"
)]
pub struct Args {
    /// BEFORE and AFTER, one with --vs: traces, runs' directories, snapshots
    #[arg(value_name = "TRACE", required = true, num_args = 1..=2)]
    traces: Vec<PathBuf>,
    /// Exit 1 if memory grew by more than this many percent
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
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Format {
    Text,
    /// Facts for programs (schema vramtrace.diff/1)
    Json,
}

fn tolerance(text: &str) -> Result<f64, &'static str> {
    match text.trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent / 100.0),
        _ => Err("give a percentage of 0 or more, e.g. 3%"),
    }
}

/// One of the two sides: what it held, and its name in output.
type Side = (Vec<DeviceUse>, String);

pub fn run(args: Args) -> Outcome {
    let (first, second) = (&args.traces[..1], args.traces.get(1..).unwrap_or_default());
    let at = (args.at, "--at");
    let wrong = |of: &Path, why| Err(Failure::new(format!("{}: {why}", of.display())));
    let (before, after) = match (second, args.vs) {
        ([], Some(_)) => ((first, at), (first, (args.vs, "--vs"))),
        ([_, ..], None) => ((first, at), (second, at)),
        ([], None) => {
            let why = "nothing to compare with: give a second trace, or --at T1 --vs T2";
            return wrong(&first[0], why);
        }
        ([more, ..], _) => return wrong(more, "only one trace can be given with --vs"),
    };
    let (before, old) = side(before, args.vs.is_some())?;
    let (after, new) = side(after, args.vs.is_some())?;
    let differences = compare(&before, &after);
    let grew = differences.iter().filter_map(|difference| failure(difference, args.tolerance?));
    let failures: Vec<String> = grew.collect();
    let facts = || DiffFacts {
        before: &old,
        after: &new,
        tolerance_percent: args.tolerance.map(|part| part * 100.0),
        passed: failures.is_empty(),
        reasons: &failures,
        devices: &differences,
    };
    let text = || text(&differences, [&old, &new], args.top);
    show([], args.format == Format::Json, DIFF, facts, text)?;
    Ok(caveats::status(&failures))
}

/// What these traces held at the moment that an option gave. `named`: the name has the moment.
fn side(
    (traces, (at, option)): (&[PathBuf], (Option<Moment>, &str)),
    named: bool,
) -> Result<Side, Failure> {
    let roles = Some(RolesOf::Blocks);
    let asked = at.unwrap_or(Moment::End);
    let question = Question { at: asked, option, level: None, roles, device: None };
    let read = question.ask(select::open(traces)?)?;
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
    let moment = if named { format!(", {}", asked.words()) } else { String::new() };
    Ok((places, label(traces) + &moment))
}

fn failure(difference: &Difference, tolerance: f64) -> Option<String> {
    let (what, change) = difference.growth(tolerance)?;
    let line = match difference.grew_most() {
        Some(line) => format!("{}: {}", line.name.words(), signed(line.bytes.bytes())),
        None => format!("free in cache: {}", signed(difference.free_in_cache.bytes())),
    };
    let (name, by) = (&difference.name, signed(change.bytes()));
    let allowed = tolerance * 100.0;
    Some(format!(
        "{name}: {what} grew by {by}, {}, more than {allowed:.1} %: {line}",
        percent(change)
    ))
}
