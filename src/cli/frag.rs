//! `vramtrace frag`: how fragmented PyTorch's cache is, and which lines cause it.

use vramtrace_reader::analysis::Moment;
use vramtrace_reader::analysis::frag::{Frag, find};
use vramtrace_reader::analysis::whatif::why_no_blocks;
use vramtrace_reader::report::json::{Document, FRAG, FragFacts, FragReport};
use vramtrace_reader::report::text::frag::text;

use super::select::{DeviceArgs, Input, ProcessArgs, traces};
use super::{by_device, moment};
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
        Also reads PyTorch memory snapshots (torch.cuda.memory._dump_snapshot), and CSVs with \
        the columns action,addr,size,stream; plain or gzip.",
    after_help = "Examples:\n  \
        vramtrace frag                                       the newest run here, at its peak\n  \
        vramtrace frag snapshot.pickle --json | jq '.devices[0].fragmentation'"
)]
pub struct Args {
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = moment::parse, help = moment::HELP)]
    at: Moment,
    /// How many holders to list of each device
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    /// Print JSON (schema vramtrace.frag/1)
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let inputs: Vec<Input> = args.processes.open()?.into_inputs().collect();
    if let Moment::At(at_ns) = args.at {
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
    let mut not_there = None;
    let all = by_device::find(&inputs, &args.device, |input, definitions| {
        let found = find(&input.trace, definitions, args.at);
        if found.as_ref().is_ok_and(Vec::is_empty) {
            message(format_args!("{}: {}", input.name, why_no_blocks(definitions)));
        }
        let found = found.unwrap_or_else(|why| {
            not_there = Some(format!("{}: {why}", input.name));
            Vec::new()
        });
        Ok(found.into_iter().map(|frag| (frag.device, frag)).collect())
    })?;
    if all.is_empty() {
        return Err(Failure::new(
            not_there.unwrap_or("no trace has memory of PyTorch's cache on this device".into()),
        ));
    }
    if args.json {
        let facts = |(input, frag): (&Input, Frag)| FragFacts::of(frag, input.trace.header());
        let devices = all.into_iter().map(facts).collect();
        let report = FragReport { devices };
        print(&json(&Document::new(FRAG, &report, traces(&inputs)))?)?;
        return Ok(DONE);
    }
    let text = |(input, frag): &(&Input, Frag)| {
        text(&input.name, frag, input.trace.header(), args.at, args.top)
    };
    let parts: Vec<String> = all.iter().map(text).collect();
    console::print_text(&parts.join("\n"))?;
    Ok(DONE)
}
