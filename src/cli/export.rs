//! `vramtrace export`: a run's timeline or stacks for other tools.

use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use tempfile::NamedTempFile;
use vramtrace_format::size as sizes;
use vramtrace_reader::analysis::{Level, Moment};
use vramtrace_reader::export::stacks::Format as StackFormat;
use vramtrace_reader::export::{self, Exported, Format, Window};
use vramtrace_reader::trace::{self, Trace};
use vramtrace_reader::units::size;

use super::{DONE, Failure, Outcome, holders, level, moment, say};

#[derive(clap::Args)]
#[command(
    long_about = "Write a run's timeline: counters per device and kind, a slice per allocation \
        with its size and lifetime, refusals. Several traces are merged on one clock, which \
        starts with the earliest.\n\n\
        perfetto: for https://ui.perfetto.dev; chrome: JSON for chrome://tracing and others; \
        csv: rows of allocations, counters and refusals.\n\n\
        Or write the stacks with the bytes that they hold at one moment: \
        folded: lines for flame graphs; speedscope: for https://www.speedscope.app; \
        pprof: for `go tool pprof`.\n\n\
        torch-snapshot: one process as PyTorch would have recorded it, for \
        https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py; memory that other libraries \
        took is in it.",
    after_help = "Examples:\n  \
        vramtrace export -o timeline.perfetto-trace\n  \
        vramtrace export run/ --format csv --from 10 --to 12.5 --min-size 1MiB -o part.csv\n  \
        vramtrace export --format pprof --at peak -o memory.pb.gz\n  \
        vramtrace export --format torch-snapshot -o snapshot.pickle"
)]
pub struct Args {
    /// Trace files or a run's directory; default: the newest run in the working directory
    traces: Vec<PathBuf>,
    #[arg(long, value_enum, default_value = "perfetto")]
    format: FormatName,
    /// The file to write; `-` is stdout [default for torch-snapshot: snapshot.pickle]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Leave out what was before this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    from: Option<u64>,
    /// Leave out what was after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    to: Option<u64>,
    /// Leave out smaller allocations (512, 64KiB, 1MiB); counters keep them
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "0")]
    min_size: u64,
    /// Stacks: which moment, `peak` (of each device; the default), `peak-allocated`, `end` or
    /// seconds
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse)]
    at: Option<Moment>,
    /// Driver memory, or PyTorch's blocks in place of it [default: tensor, where recorded]
    #[arg(long, value_enum)]
    level: Option<level::Name>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum FormatName {
    Csv,
    Chrome,
    Perfetto,
    Folded,
    Speedscope,
    Pprof,
    TorchSnapshot,
}

impl FormatName {
    fn stacks(self) -> Option<StackFormat> {
        match self {
            FormatName::Folded => Some(StackFormat::Folded),
            FormatName::Speedscope => Some(StackFormat::Speedscope),
            FormatName::Pprof => Some(StackFormat::Pprof),
            FormatName::Csv
            | FormatName::Chrome
            | FormatName::Perfetto
            | FormatName::TorchSnapshot => None,
        }
    }
}

/// Seconds to ns.
fn seconds(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..1e9).contains(&seconds) => Ok((seconds * 1e9).round() as u64),
        _ => Err("write seconds from the start, like 12.5".into()),
    }
}

/// Bytes, or a size with its unit.
fn bytes(text: &str) -> Result<u64, String> {
    text.parse().or_else(|_| sizes::parse(text).map_err(|why| format!("it {why}")))
}

pub fn run(args: Args) -> Outcome {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from > to
    {
        return Err(Failure::new(format!(
            "--from {} is after --to {}: nothing is between",
            from as f64 / 1e9,
            to as f64 / 1e9
        )));
    }
    let is_snapshot = matches!(args.format, FormatName::TorchSnapshot);
    let output = match &args.output {
        Some(output) => output.clone(),
        None if is_snapshot => PathBuf::from("snapshot.pickle"),
        None => return Err(Failure::new("--output is missing: give -o FILE, or -o - for stdout")),
    };
    check_output(&output, args.force)?;
    let of_stacks = args.format.stacks();
    let limited = args.from.is_some() || args.to.is_some() || args.min_size > 0;
    if of_stacks.is_some() && limited {
        return Err(Failure::new(
            "--from, --to and --min-size are for timelines; stacks are of one moment: give --at",
        ));
    }
    if is_snapshot && (limited || args.at.is_some() || args.level.is_some()) {
        return Err(Failure::new(
            "--from, --to, --min-size, --at and --level are not for torch-snapshot: it tells the \
             whole run",
        ));
    }
    if of_stacks.is_none() && args.at.is_some() {
        return Err(Failure::new(
            "--at is for the formats folded, speedscope and pprof; a timeline has --from and --to",
        ));
    }
    let to_stdout = output == Path::new("-");
    let loaded = trace::load(&args.traces)?;
    loaded.warnings.iter().for_each(say);
    if let Some(format) = of_stacks {
        let moment = args.at.unwrap_or(Moment::Peak);
        let level = args.level.map(Level::from);
        return stacks(&loaded.traces, format, (moment, level), &output, args.force);
    }
    if is_snapshot {
        return snapshot(&loaded.traces, &output, args.force);
    }
    let level = args.level.map(Level::from);
    level::need_blocks(&loaded.traces, level, None)?;
    let driver_only = level == Some(Level::Driver);
    let window =
        Window { from_ns: args.from, to_ns: args.to, min_size: args.min_size, driver_only };
    let format = match args.format {
        FormatName::Csv => Format::Csv,
        FormatName::Chrome => Format::Chrome,
        _ => Format::Perfetto,
    };
    let exported = if to_stdout {
        let mut out = BufWriter::new(std::io::stdout().lock());
        write(&loaded.traces, format, &window, &mut out)
            .map_err(|error| cannot("stdout", &error))?
    } else {
        to_file(&output, args.force, |out| write(&loaded.traces, format, &window, out))?
    };
    if exported.allocations + exported.counters + exported.refusals == 0 {
        say("nothing happened in the part that was asked for: the timeline is empty");
    } else if !to_stdout {
        say(format_args!(
            "{}: {} allocations, {} counter values, {} refusals",
            output.display(),
            exported.allocations,
            exported.counters,
            exported.refusals
        ));
    }
    Ok(DONE)
}

/// Refuses to replace what is there.
pub fn check_output(path: &Path, force: bool) -> Result<(), Failure> {
    if path == Path::new("-") || force || path.symlink_metadata().is_err() {
        return Ok(());
    }
    let shown = path.display();
    Err(Failure::new(format!("{shown} exists: give another name, or --force to replace it")))
}

/// Writes the stacks of a moment to a file, or to stdout for `-`.
pub fn stacks(
    traces: &[Trace],
    format: StackFormat,
    (at, level): (Moment, Option<Level>),
    output: &Path,
    force: bool,
) -> Outcome {
    holders::need_stacks(traces)?;
    level::need_blocks(traces, level, Some(at))?;
    let gathered = export::stacks::gather(traces, at, level);
    let mut problems: Vec<&String> =
        gathered.iter().flat_map(|process| process.symbols.problems()).collect();
    problems.sort();
    problems.dedup();
    problems.iter().take(5).for_each(say);
    let samples = gathered.iter().flat_map(|process| &process.samples);
    let bytes = samples.clone().fold(0u64, |sum, sample| sum.saturating_add(sample.held.bytes));
    let when = moment::words(at);
    if bytes == 0 {
        return Err(Failure::new(format!(
            "no GPU memory was held {when}: there is nothing to write"
        )));
    }
    let title = format!("GPU memory held {when}: {}", size(bytes));
    let write = |out: &mut dyn Write| export::stacks::write(&gathered, format, &title, out);
    if output == Path::new("-") {
        let mut out = BufWriter::new(std::io::stdout().lock());
        write(&mut out).map_err(|error| cannot("stdout", &error))?;
        return Ok(DONE);
    }
    to_file(output, force, write)?;
    let stacks = samples.count();
    say(format_args!("{}: {} in {stacks} stacks, {when}", output.display(), size(bytes)));
    Ok(DONE)
}

fn snapshot(traces: &[Trace], output: &Path, force: bool) -> Outcome {
    let [trace] = traces else {
        let names: Vec<String> =
            traces.iter().map(|trace| trace.path().display().to_string()).collect();
        return Err(Failure::new(format!(
            "a snapshot is of one process: give one of these traces: {}",
            names.join(" ")
        )));
    };
    let write = |out: &mut dyn Write| export::snapshot::write(trace, out, &mut |_, _| {});
    let written = match output == Path::new("-") {
        true => write(&mut std::io::stdout().lock()).map_err(|error| cannot("stdout", &error))?,
        false => to_file(output, force, write)?,
    };
    if written.left_out > 0 {
        say(format_args!(
            "{} blocks lie in no memory that the trace knows: left out",
            written.left_out
        ));
    }
    if written.late {
        say("events are missing in the trace: the snapshot's history begins after them");
    }
    if output != Path::new("-") {
        say(format_args!(
            "{}: {} entries, {} segments (open it in https://pytorch.org/memory_viz)",
            output.display(),
            written.entries,
            written.segments
        ));
    }
    Ok(DONE)
}

fn write(
    traces: &[Trace],
    format: Format,
    window: &Window,
    out: &mut dyn Write,
) -> std::io::Result<Exported> {
    let bar = ProgressBar::new(traces.iter().map(Trace::len).sum());
    // Hidden by itself where stderr is no terminal.
    let style = ProgressStyle::with_template("{bar:40} {percent}% of {total_bytes}  {eta} left");
    bar.set_style(style.map_err(std::io::Error::other)?);
    let exported = export::export(traces, format, window, out, &mut |at, _| bar.set_position(at));
    bar.finish_and_clear();
    exported
}

pub fn to_file<T>(
    path: &Path,
    force: bool,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<T>,
) -> Result<T, Failure> {
    keep(path, force, |file| {
        let mut out = BufWriter::with_capacity(1 << 20, file.as_file());
        let written = write(&mut out)?;
        out.flush()?;
        Ok(written)
    })
}

/// Writes beside the wanted name and takes it at the end: no half file is ever there.
pub fn keep<T>(
    path: &Path,
    force: bool,
    write: impl FnOnce(&NamedTempFile) -> std::io::Result<T>,
) -> Result<T, Failure> {
    let shown = path.display().to_string();
    let failed = |error: &std::io::Error| cannot(&shown, error);
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    let file = NamedTempFile::new_in(directory.unwrap_or(Path::new(".")));
    let file = file.map_err(|error| failed(&error))?;
    let written = write(&file).map_err(|error| failed(&error))?;
    let kept = if force { file.persist(path) } else { file.persist_noclobber(path) };
    kept.map_err(|error| failed(&error.error))?;
    Ok(written)
}

fn cannot(what: &str, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound => " (its directory must exist)",
        ErrorKind::AlreadyExists => " (--force replaces it)",
        _ => "",
    };
    Failure::new(format!("{what}: {error}{hint}"))
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
