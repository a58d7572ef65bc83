//! `vramtrace frag`: how fragmented PyTorch's cache is, and which lines cause it.

use std::path::PathBuf;

use vramtrace_format::Header;
use vramtrace_reader::analysis::frag::{Frag, FragMoment, find};
use vramtrace_reader::analysis::whatif::why_no_blocks;
use vramtrace_reader::analysis::{Moment, StepMoment};
use vramtrace_reader::export::map;
use vramtrace_reader::report::json::damage::WithDamage;
use vramtrace_reader::report::json::frag::{FragReport, SCHEMA, facts};
use vramtrace_reader::report::text::frag::{FragOptions, text};

use super::output::Output;
use super::select::{DeviceArgs, Input, ProcessArgs, paths, traces};
use super::{caveats, moment};
use crate::console::{self, json, message, print};
use crate::error::{DONE, Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Measure the fragmentation of PyTorch's cache at one moment: the bytes that are \
        reserved and in no block, how many of them are usable, the segments, and the lines that \
        keep them.\n\n\
        Free memory is releasable where its segment holds no block. The rest is kept by the \
        holders of blocks in its segment; of it, pieces smaller than the usual request are unusable: \
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
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Which moment: `peak` (when each device's cache reserved most), `end`, `oom` (when it gave
    /// up on a request), `step:23`, `step:23:end`, or seconds since the start
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = at)]
    at: FragMoment,
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

#[derive(Debug, thiserror::Error)]
#[error(
    "give `peak`, `end`, `oom`, `step:23` (its peak), `step:23:end`, or seconds since the start, e.g. 12.5"
)]
struct NotAFragMoment;

fn at(text: &str) -> Result<FragMoment, NotAFragMoment> {
    match moment::parse(text) {
        _ if text == "oom" => Ok(FragMoment::OutOfMemory),
        Ok(Moment::Peak) => Ok(FragMoment::Peak),
        Ok(Moment::End) => Ok(FragMoment::End),
        Ok(Moment::At(time_ns)) => Ok(FragMoment::Time(time_ns)),
        Ok(Moment::Step(asked)) => Ok(FragMoment::Step(asked)),
        Ok(Moment::AllocatedPeak | Moment::Event { .. }) | Err(_) => Err(NotAFragMoment),
    }
}

struct NamedFrag {
    name: String,
    header: Header,
    frag: Frag,
}

/// Width of the output where stdout is not a terminal.
const COLUMNS: usize = 100;

pub fn run(args: Args) -> Outcome {
    let output = match &args.output {
        Some(path) => Some(Output::new(path, args.force)?),
        None => None,
    };
    let mut all = Vec::new();
    let mut not_there = None;
    let mut seen = Vec::new();
    let selected = args.processes.open()?;
    if let Some(output) = &output {
        output.refuse_inputs(paths(&selected.traces))?;
    }
    let inputs: Vec<Input> = selected.into_inputs().collect();
    if let FragMoment::Time(at_ns) = args.at {
        let end = |input: &Input| {
            let (definitions, _) = input.trace.definitions();
            // A trace without times is an error of its own.
            let timed = definitions.has_times();
            let end = || input.trace.replay(&definitions, &mut ()).state.time_ns;
            timed.then(|| (input.name.clone(), end()))
        };
        let ends: Vec<(String, u64)> = inputs.iter().filter_map(end).collect();
        if !ends.is_empty() {
            moment::require_before_end(&ends, at_ns, "--at")?;
        }
    }
    for input in &inputs {
        let (definitions, _) = input.trace.definitions();
        let found = match find(&input.trace, &definitions, args.at) {
            Ok(found) => found,
            Err(why) => {
                not_there = Some(format!("{}: {why}", input.name));
                continue;
            }
        };
        if found.is_empty() {
            message(format_args!("{}: {}", input.name, why_no_blocks(&definitions)));
        }
        seen.extend(found.iter().map(|frag| frag.device));
        let found = found.into_iter().filter(|frag| args.device.includes(frag.device));
        all.extend(found.map(|frag| NamedFrag {
            name: input.name.clone(),
            header: input.trace.header().clone(),
            frag,
        }));
    }
    if !seen.is_empty() {
        args.device.check(seen)?;
    }
    caveats::warn_damage(traces(&inputs));
    if all.is_empty() {
        return Err(Failure::new(
            not_there.unwrap_or("no trace has memory of PyTorch's cache on this device".into()),
        ));
    }
    if let Some(output) = &output {
        write_map(&all, args.at, output)?;
        if output.is_stdout() {
            return Ok(DONE);
        }
    }
    if args.json {
        let devices = all.iter().map(|it| facts(&it.frag, &it.header, args.at)).collect();
        let report = FragReport { schema: SCHEMA, devices };
        print(&json(&WithDamage::new(&report, traces(&inputs)))?)?;
        return Ok(DONE);
    }
    let width = console::width().unwrap_or(COLUMNS);
    let shown = FragOptions { at: args.at, top: args.top, rows: args.rows, width };
    let parts: Vec<String> =
        all.iter().map(|it| text(&it.name, &it.frag, &it.header, shown)).collect();
    console::print_text(&parts.join("\n"))?;
    Ok(DONE)
}

fn write_map(all: &[NamedFrag], at: FragMoment, output: &Output) -> Result<(), Failure> {
    let when = match at {
        FragMoment::Peak => "when it reserved most",
        FragMoment::End => "at the end",
        FragMoment::Time(_) | FragMoment::Event(_) => "at that time",
        FragMoment::Step(StepMoment { after: false, .. }) => "at the peak of that step",
        FragMoment::Step(StepMoment { after: true, .. }) => "after that step",
        FragMoment::OutOfMemory => "when it ran out of memory",
    };
    let parts: Vec<map::MapPart> = all
        .iter()
        .map(|it| map::MapPart { name: it.name.clone(), frag: &it.frag, header: &it.header })
        .collect();
    output.write(|out| map::write(&parts, when, out))?;
    if !output.is_stdout() {
        message(format_args!("{}: a map of the segments", output.shown()));
    }
    Ok(())
}
