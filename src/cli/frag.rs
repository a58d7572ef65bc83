//! `vramtrace frag`: how fragmented PyTorch's cache is, and who made it so.

use std::path::{Path, PathBuf};

use vramtrace_format::Header;
use vramtrace_reader::analysis::Moment;
use vramtrace_reader::analysis::frag::{At, Frag, find};
use vramtrace_reader::analysis::whatif::why_no_blocks;
use vramtrace_reader::export::map;
use vramtrace_reader::report::frag::{Report, SCHEMA, Shown, facts, text};

use super::{DONE, Failure, Outcome, export, inputs, moment, print, say};

#[derive(clap::Args)]
#[command(
    long_about = "How fragmented PyTorch's cache was at one moment: what is reserved and in no \
        block, how much of that is of use, the segments, and the lines that keep them.\n\n\
        Free memory is releasable where its segment holds no block. The rest is kept by who \
        holds a block of its segment; of it, pieces smaller than the usual request are unusable: \
        half of all bytes that the run asked of the pool (small: blocks up to 1 MiB; large) came \
        in requests at least that large.\n\n\
        Also reads PyTorch memory snapshots (torch.cuda.memory._dump_snapshot), CSVs with the \
        columns action,addr,size,stream, and RMM logs; plain or gzip.",
    after_help = "Examples:\n  \
        vramtrace frag                                       the newest run here, at its peak\n  \
        vramtrace frag train.vtrace --at oom -o map.svg      with a map of the segments\n  \
        vramtrace frag snapshot.pickle --json | jq '.devices[0].fragmentation'"
)]
pub struct Args {
    /// Trace files, a run's directory, or PyTorch snapshots; default: the newest run in the
    /// working directory
    traces: Vec<PathBuf>,
    /// Which moment: `peak` (when each device's cache reserved most), `end`, `oom` (when it gave
    /// up on a request), or seconds since the start
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = at)]
    at: At,
    /// How many holders to list of each device
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    /// How many segments to draw of each device
    #[arg(long, value_name = "N", default_value_t = 30)]
    rows: usize,
    /// Print JSON (schema vramtrace.frag/1)
    #[arg(long)]
    json: bool,
    /// Write a map of the segments, an SVG; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

fn at(text: &str) -> Result<At, String> {
    match moment::parse(text) {
        _ if text == "oom" => Ok(At::OutOfMemory),
        Ok(Moment::Peak) => Ok(At::Peak),
        Ok(Moment::End) => Ok(At::End),
        Ok(Moment::At(time_ns)) => Ok(At::Time(time_ns)),
        Ok(Moment::AllocatedPeak) | Err(_) => {
            Err("give `peak`, `end`, `oom`, or seconds since the start, e.g. 12.5".into())
        }
    }
}

struct Found {
    name: String,
    header: Header,
    frag: Frag,
}

/// Of a stream that is no terminal.
const COLUMNS: usize = 100;

pub fn run(args: Args) -> Outcome {
    if let Some(output) = &args.output {
        export::check_output(output, args.force)?;
    }
    let mut all = Vec::new();
    let mut not_there = None;
    for input in inputs::open(&args.traces)? {
        let (definitions, _) = input.trace.definitions();
        let found = match find(&input.trace, &definitions, args.at) {
            Ok(found) => found,
            Err(why) => {
                not_there = Some(format!("{}: {why}", input.name));
                continue;
            }
        };
        if found.is_empty() {
            say(format_args!("{}: {}", input.name, why_no_blocks(&definitions)));
        }
        all.extend(found.into_iter().map(|frag| Found {
            name: input.name.clone(),
            header: input.trace.header().clone(),
            frag,
        }));
    }
    if all.is_empty() {
        return Err(Failure::new(not_there.unwrap_or("there is nothing to show".into())));
    }
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if let Some(output) = &args.output {
        write_map(&all, &args, output)?;
    }
    if to_stdout {
        return Ok(DONE);
    }
    if args.json {
        let devices = all.iter().map(|it| facts(&it.frag, &it.header, args.at)).collect();
        let report = Report { schema: SCHEMA, devices };
        print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
        return Ok(DONE);
    }
    let width = terminal_size::terminal_size().map_or(COLUMNS, |(width, _)| width.0.into());
    let shown = Shown { at: args.at, top: args.top, rows: args.rows, width };
    let parts: Vec<String> =
        all.iter().map(|it| text(&it.name, &it.frag, &it.header, shown)).collect();
    print(&parts.join("\n"))?;
    Ok(DONE)
}

fn write_map(all: &[Found], args: &Args, output: &Path) -> Result<(), Failure> {
    let when = match args.at {
        At::Peak => "when it reserved most",
        At::End => "at the end",
        At::Time(_) => "at that time",
        At::OutOfMemory => "when it ran out of memory",
    };
    let parts: Vec<map::Part> = all
        .iter()
        .map(|it| map::Part { name: it.name.clone(), frag: &it.frag, header: &it.header })
        .collect();
    if output == Path::new("-") {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        return Ok(map::write(&parts, when, &mut out)?);
    }
    export::to_file(output, args.force, |out| map::write(&parts, when, out))?;
    say(format_args!("{}: a map of the segments", output.display()));
    Ok(())
}
