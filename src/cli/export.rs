//! `vramtrace export`: a run's timeline or stacks for other tools.

use std::io::Write;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use vramtrace_format::size as sizes;
use vramtrace_reader::analysis::whatif::NOT_OF_SAMPLES;
use vramtrace_reader::analysis::{Level, Moment};
use vramtrace_reader::export::formats::{ExportFormat, FORMATS, Writer};
use vramtrace_reader::export::stacks::StackFormat;
use vramtrace_reader::export::{self, Exported, TimelineFormat, Window};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{seconds as seconds_text, size};

use super::output::Output;
use super::reading::{Question, Reading};
use super::select::{DeviceArgs, ProcessArgs, Selected, paths};
use super::{caveats, export_tables, level, moment};
use crate::console::message;
use crate::error::{DONE, Failure, Outcome};

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
        frames: events, blocks, stacks, samples, holders, summary.",
    after_help = "Examples:\n  \
        vramtrace export -o timeline.perfetto-trace\n  \
        vramtrace export run/ --format csv --from 10 --to 12.5 --min-size 1MiB -o part.csv\n  \
        vramtrace export --format pprof --at peak -o memory.pb.gz\n  \
        vramtrace export --format torch-snapshot -o snapshot.pickle\n  \
        vramtrace export run/ --format parquet -o tables"
)]
pub struct Args {
    #[command(flatten)]
    pub(super) processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[arg(long, default_value = "perfetto", value_parser = format_parser())]
    format: ExportFormat,
    /// The file to write; `-` is stdout [default for torch-snapshot: snapshot.pickle]; for parquet
    /// a new directory
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Leave out what was before this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    from: Option<u64>,
    /// Leave out what was after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    to: Option<u64>,
    /// Leave out smaller allocations (512, 64KiB, 1MiB); counters keep them
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    min_size: Option<u64>,
    /// Stacks: which moment, `peak` (of each device; the default), `peak-allocated`, `end` or
    /// seconds
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse)]
    at: Option<Moment>,
    /// Driver memory, or PyTorch's blocks in place of it [default: tensor, where recorded]
    #[arg(long, value_enum)]
    level: Option<level::LevelName>,
    /// Parquet: only these tables, separated by commas [default: all]
    #[arg(long, value_name = "TABLES")]
    pub(super) tables: Option<String>,
    /// Parquet: the name of the run of all traces [default: one for each `vramtrace run`]
    #[arg(long, value_name = "NAME")]
    pub(super) run: Option<String>,
    /// Replace an existing file
    #[arg(long)]
    pub(super) force: bool,
}

/// Accepts the names of [`FORMATS`].
fn format_parser() -> impl TypedValueParser<Value = ExportFormat> {
    let names = PossibleValuesParser::new(FORMATS.map(|format| format.name));
    names.try_map(|name| ExportFormat::named(&name).ok_or("no such format"))
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("write seconds from the start, like 12.5")]
struct NotSeconds;

/// Seconds to ns.
fn seconds(text: &str) -> Result<u64, NotSeconds> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..1e9).contains(&seconds) => Ok((seconds * 1e9).round() as u64),
        _ => Err(NotSeconds),
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it {0}")]
struct NotBytes(sizes::SizeError);

/// Bytes, or a size with its unit.
fn bytes(text: &str) -> Result<u64, NotBytes> {
    text.parse().or_else(|_| sizes::parse(text).map_err(NotBytes))
}

pub fn run(args: Args) -> Outcome {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from > to
    {
        return Err(Failure::new(format!(
            "--from {} is after --to {}: the interval is empty",
            from as f64 / 1e9,
            to as f64 / 1e9
        )));
    }
    if let Some(why) = args.format.refuses(args.given()) {
        return Err(Failure::new(why));
    }
    let opened = || {
        let output = Output::new(&output(&args)?, args.force)?;
        let selected = args.processes.open()?;
        output.refuse_inputs(paths(&selected.traces))?;
        Ok::<_, Failure>((selected, output))
    };
    let level = args.level.map(Level::from);
    match args.format.writer {
        Writer::Timeline(format) => {
            let (Selected { traces, .. }, output) = opened()?;
            level::require_blocks(&traces, level, None)?;
            let driver_only = level == Some(Level::Driver);
            let min_size = args.min_size.unwrap_or(0);
            let window = Window { from_ns: args.from, to_ns: args.to, min_size, driver_only };
            timeline(&traces, format, &window, &output)
        }
        Writer::Stacks(format) => {
            let (selected, output) = opened()?;
            let moment = args.at.unwrap_or(Moment::Peak);
            stacks(selected, format, (moment, level), &args.device, &output)
        }
        Writer::TorchSnapshot => {
            let (Selected { traces, .. }, output) = opened()?;
            snapshot(&traces, &output)
        }
        Writer::Tables => export_tables::run(&args),
    }
}

impl Args {
    /// The options on the command line that only some formats have.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("--from", self.from.is_some()),
            ("--to", self.to.is_some()),
            ("--min-size", self.min_size.is_some()),
            ("--at", self.at.is_some()),
            ("--level", self.level.is_some()),
            ("--device", self.device.is_given()),
            ("--tables", self.tables.is_some()),
            ("--run", self.run.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(option, _)| option)
    }
}

fn output(args: &Args) -> Result<PathBuf, Failure> {
    let default = args.format.default_file.map(PathBuf::from);
    args.output.clone().or(default).ok_or_else(|| {
        let suffix = args.format.suffix;
        Failure::new(format!(
            "--output is missing: give -o FILE (FILE.{suffix}), or -o - for stdout"
        ))
    })
}

fn timeline(traces: &[Trace], format: TimelineFormat, window: &Window, output: &Output) -> Outcome {
    let exported = output.write(|out| write(traces, format, window, out))?;
    caveats::warn_damage(traces);
    let late = traces.iter().map(Trace::history_from_ns).max().unwrap_or(0);
    if exported.allocations + exported.counters + exported.refusals == 0 {
        match late {
            0 => message("no event between --from and --to: the timeline is empty"),
            from => message(format_args!(
                "the timeline is empty: the history in the file begins at {}, and holds no event \
                 between --from and --to",
                seconds_text(from)
            )),
        }
    } else if !output.is_stdout() {
        message(format_args!(
            "{}: {} allocations, {} counter values, {} refusals",
            output.shown(),
            exported.allocations,
            exported.counters,
            exported.refusals
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
    device.check(samples().map(|sample| sample.device))?;
    for process in &mut gathered {
        process.samples.retain(|sample| device.includes(sample.device));
    }
    let mut problems: Vec<&String> =
        gathered.iter().flat_map(|process| process.symbols.problems()).collect();
    problems.sort();
    problems.dedup();
    problems.iter().take(5).for_each(message);
    let samples = gathered.iter().flat_map(|process| &process.samples);
    let bytes = samples.clone().fold(0u64, |sum, sample| sum.saturating_add(sample.held.bytes));
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
    if !output.is_stdout() {
        let stacks = samples.count();
        message(format_args!("{}: {} in {stacks} stacks, {when}", output.shown(), size(bytes)));
    }
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
    if !output.is_stdout() {
        message(format_args!(
            "{}: {} entries, {} segments (open it in https://pytorch.org/memory_viz)",
            output.shown(),
            written.entries,
            written.segments
        ));
    }
    Ok(DONE)
}

fn write(
    traces: &[Trace],
    format: TimelineFormat,
    window: &Window,
    out: &mut dyn Write,
) -> std::io::Result<Exported> {
    let bar = progress_bar(traces)?;
    let exported = export::export(traces, format, window, out, &mut |at, _| bar.set_position(at));
    bar.finish_and_clear();
    exported
}

/// Over the bytes of the traces.
pub fn progress_bar(traces: &[Trace]) -> std::io::Result<ProgressBar> {
    let bar = ProgressBar::new(traces.iter().map(Trace::len).sum());
    // Hidden by itself where stderr is no terminal.
    let style = ProgressStyle::with_template("{bar:40} {percent}% of {total_bytes}  {eta} left");
    bar.set_style(style.map_err(std::io::Error::other)?);
    Ok(bar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_bytes_as_people_write_them() {
        assert_eq!(seconds("12.5"), Ok(12_500_000_000));
        assert_eq!(bytes("512"), Ok(512));
        assert_eq!(bytes("1MiB"), Ok(1 << 20));
        for bad in ["-1", "x", "inf", "nan", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert!(bytes("1X").is_err() && bytes("-1").is_err());
    }
}
