//! `vramtrace export`: a run's timeline, stacks or tables for other tools.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use vramtrace_reader::analysis::whatif::NOT_OF_SAMPLES;
use vramtrace_reader::analysis::{Level, Moment};
use vramtrace_reader::export::stacks::StackFormat;
use vramtrace_reader::export::{self, Exported, TimeWindow, TimelineFormat};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{seconds as seconds_text, size};

use super::moment::LevelArgs;
use super::output::Output;
use super::reading::{Question, Reading, problems, with_progress};
use super::select::{DeviceArgs, ProcessArgs, Selected};
use super::{caveats, moment};
use crate::console::message;
use crate::error::{DONE, Failure, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    Perfetto,
    Folded,
    Pprof,
    TorchSnapshot,
    Parquet,
}

impl Format {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// The options that only some formats take, and this one does.
    fn options(self) -> &'static [&'static str] {
        match self {
            Format::Csv | Format::Perfetto => &["--from", "--to", "--level", "--force"],
            Format::Folded | Format::Pprof => &["--at", "--level", "--device", "--force"],
            Format::TorchSnapshot => &["--force"],
            // A directory is not replaced.
            Format::Parquet => &[],
        }
    }
}

#[derive(clap::Args)]
#[command(
    long_about = "Write a run's timeline: counters per device and kind, a slice per allocation \
        with its size and lifetime, refusals. Several traces are merged on one clock, which \
        starts with the earliest.\n\n\
        perfetto: for https://ui.perfetto.dev; csv: rows of allocations, counters and refusals.\n\n\
        Or write the stacks with the bytes that they hold at one moment: \
        folded: lines for flame graphs and https://www.speedscope.app; pprof: for `go tool pprof`.\n\n\
        torch-snapshot: one process as PyTorch would have recorded it, for \
        https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py; memory that other libraries \
        took is in it.\n\n\
        parquet: a directory of tables, partitioned by run and rank, for DuckDB, Spark and data \
        frames: blocks, stacks, samples, holders, summary.",
    after_help = "Examples:\n  \
        vramtrace export -o timeline.perfetto-trace\n  \
        vramtrace export run/ --format csv --from 10 --to 12.5 -o part.csv\n  \
        vramtrace export --format pprof --at peak -o memory.pb.gz\n  \
        vramtrace export --format torch-snapshot -o snapshot.pickle\n  \
        vramtrace export run/ --format parquet -o tables"
)]
pub struct Args {
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[arg(long, value_enum, default_value = "perfetto")]
    format: Format,
    /// The file to write; `-` is stdout [default for torch-snapshot: snapshot.pickle]; for parquet
    /// a new directory
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Leave out what was before this many seconds
    #[arg(long, value_name = "S")]
    from: Option<f64>,
    /// Leave out what was after this many seconds
    #[arg(long, value_name = "S")]
    to: Option<f64>,
    /// Stacks: which moment, `peak` (of each device; the default), `peak-allocated`, `end` or
    /// seconds
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse)]
    at: Option<Moment>,
    #[command(flatten)]
    level: LevelArgs,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

pub fn run(args: Args) -> Outcome {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from > to
    {
        let why = format!("--from {from} is after --to {to}: the interval is empty");
        return Err(Failure::new(why));
    }
    args.refuse_options()?;
    if args.format == Format::Parquet {
        return tables(&args);
    }
    let output = Output::new(&args.output()?, args.force)?;
    let selected = output.open_inputs(&args.processes)?;
    match args.format {
        Format::Csv => timeline(&args, &selected.traces, TimelineFormat::Csv, &output),
        Format::Perfetto => timeline(&args, &selected.traces, TimelineFormat::Perfetto, &output),
        Format::Folded => args.stacks(selected, StackFormat::Folded, &output),
        Format::Pprof => args.stacks(selected, StackFormat::Pprof, &output),
        Format::TorchSnapshot | Format::Parquet => snapshot(&selected.traces, &output),
    }
}

impl Args {
    /// Fails if an option was given that the format does not take.
    fn refuse_options(&self) -> Result<(), Failure> {
        let given = [
            ("--from", self.from.is_some()),
            ("--to", self.to.is_some()),
            ("--at", self.at.is_some()),
            ("--level", self.level.given.is_some()),
            ("--device", self.device.ordinal.is_some()),
            ("--force", self.force),
        ];
        let refused =
            |(option, given): &(&str, bool)| *given && !self.format.options().contains(option);
        let Some((option, _)) = given.into_iter().find(refused) else { return Ok(()) };
        let takers = Format::value_variants().iter().filter(|of| of.options().contains(&option));
        let takers = takers.map(|format| format.name()).collect::<Vec<_>>().join(", ");
        let format = self.format.name();
        Err(Failure::new(format!("{option} is not for {format}: it is for the formats {takers}")))
    }

    fn output(&self) -> Result<PathBuf, Failure> {
        let default = (self.format == Format::TorchSnapshot).then(|| "snapshot.pickle".into());
        self.output.clone().or(default).ok_or_else(|| {
            Failure::new(
                "--output is missing: give -o FILE, or -o - for stdout; for parquet -o DIR",
            )
        })
    }

    fn stacks(&self, selected: Selected, format: StackFormat, output: &Output) -> Outcome {
        let at = (self.at.unwrap_or(Moment::Peak), self.level.given);
        stacks(selected, format, at, &self.device, output)
    }
}

fn timeline(args: &Args, traces: &[Trace], format: TimelineFormat, output: &Output) -> Outcome {
    let level = args.level.given;
    moment::require_blocks(traces, level, None)?;
    let driver_only = level == Some(Level::Driver);
    let ns = |seconds: f64| (seconds * 1e9).round() as u64;
    let window = TimeWindow { from_ns: args.from.map(ns), to_ns: args.to.map(ns), driver_only };
    let exported: Exported = output.write(|out| {
        with_progress(|progress| {
            export::export(traces, format, &window, out, &mut |at, all| progress(at, all))
        })
    })?;
    caveats::warn_damage(traces);
    let late = traces.iter().map(Trace::history_from_ns).max().unwrap_or(0);
    if exported.allocations + exported.counters + exported.refusals == 0 {
        message(format_args!(
            "the timeline is empty: the history in the file begins at {}, and holds no event \
             between --from and --to",
            seconds_text(late)
        ));
    } else {
        output.say(format_args!(
            "{} allocations, {} counter values, {} refusals",
            exported.allocations, exported.counters, exported.refusals
        ));
    }
    Ok(DONE)
}

/// Writes the stacks of a moment to a file, or to stdout for `-`.
pub fn stacks(
    selected: Selected,
    format: StackFormat,
    (at, level): (Moment, Option<Level>),
    device: &DeviceArgs,
    output: &Output,
) -> Outcome {
    let question = Question { at, option: "--at", level, roles: None, device: None };
    let Reading { traces, processes, .. } = question.ask(selected)?;
    let mut gathered = export::stacks::gather(&traces, processes, at, level);
    caveats::warn_damage(&traces);
    let samples = || gathered.iter().flat_map(|process| &process.samples);
    device.check(samples().map(|(owner, _)| owner.device))?;
    for process in &mut gathered {
        process.samples.retain(|(owner, _)| device.includes(owner.device));
    }
    let problems = problems(gathered.iter().map(|process| &process.symbols));
    problems.iter().take(5).for_each(message);
    let samples = gathered.iter().flat_map(|process| &process.samples);
    let bytes = samples.clone().fold(0u64, |sum, (_, held)| sum.saturating_add(held.bytes));
    let when = at.words();
    let not_known: u64 = gathered.iter().map(|process| process.not_known).sum();
    if not_known > 0 {
        let what = format!(
            "{} were held {when}, but their allocations are not in the file: the holders are not known",
            size(not_known)
        );
        match bytes {
            0 => return Err(Failure::new(what)),
            _ => message(what),
        }
    }
    if bytes == 0 {
        return Err(Failure::new(format!(
            "no GPU memory was held {when}: there is nothing to write"
        )));
    }
    let title = format!("GPU memory held {when}: {}", size(bytes));
    let write = |out: &mut dyn Write| export::stacks::write(&gathered, format, &title, out);
    output.write(write)?;
    output.say(format_args!("{} in {} stacks, {when}", size(bytes), samples.count()));
    Ok(DONE)
}

fn snapshot(traces: &[Trace], output: &Output) -> Outcome {
    let [trace] = traces else {
        let names: Vec<String> =
            traces.iter().map(|trace| trace.path().display().to_string()).collect();
        return Err(Failure::new(format!(
            "a snapshot is of one process: give one of these traces: {}",
            names.join(" ")
        )));
    };
    if trace.definitions().0.samples_blocks() {
        let path = trace.path().display();
        return Err(Failure::new(format!("{path}: {NOT_OF_SAMPLES}")));
    }
    let write = |out: &mut dyn Write| export::snapshot::write(trace, out, &mut |_, _| {});
    let written = output.write(write)?;
    caveats::warn_damage(traces);
    if written.left_out > 0 {
        message(format_args!(
            "{} blocks are left out: the trace has no segment at their addresses",
            written.left_out
        ));
    }
    if written.late {
        message("events are missing in the trace: the snapshot's history begins after them");
    }
    output.say(format_args!(
        "{} entries, {} segments (open it in https://pytorch.org/memory_viz)",
        written.entries, written.segments
    ));
    Ok(DONE)
}

#[cfg(not(feature = "parquet"))]
fn tables(_args: &Args) -> Outcome {
    Err(Failure::new(
        "--format parquet: this vramtrace was built without the feature `parquet`: build it with \
         `cargo build --release --features parquet`, or give --format csv",
    ))
}

#[cfg(feature = "parquet")]
fn tables(args: &Args) -> Outcome {
    use vramtrace_reader::export::parquet;

    let to = args.output()?;
    if to == Path::new("-") {
        return Err(Failure::new("-o -: parquet is a directory of files: give -o DIR"));
    }
    let traces = args.processes.open()?.traces;
    let written = with_progress(|progress| parquet::export(&traces, &to, progress));
    let rows = written.map_err(|error| Failure::new(format!("{}: {error}", to.display())))?;
    caveats::warn_damage(&traces);
    let counts = parquet::TABLES.iter().zip(rows).map(|(table, rows)| format!("{rows} {table}"));
    message(format_args!("{}: rows: {}", to.display(), counts.collect::<Vec<_>>().join(", ")));
    Ok(DONE)
}
