//! `vramtrace frag`: how fragmented PyTorch's cache is, and which lines cause it.

use vramtrace_reader::analysis::Moment;
use vramtrace_reader::analysis::frag::{Frag, MomentError, find};
use vramtrace_reader::analysis::whatif::why_no_blocks;
use vramtrace_reader::report::json::{FRAG, FragFacts, FragReport};
use vramtrace_reader::report::text::frag::text;
use vramtrace_reader::trace::{Definitions, Trace};

use super::reading::{of_devices, show};
use super::select::{DeviceArgs, ProcessArgs};
use super::{caveats, moment};
use crate::console::message;
use crate::error::{Failure, Outcome};

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
    /// Which moment, as in `vramtrace holders`
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = moment::parse)]
    at: Moment,
    /// How many holders to list of each device
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    /// Print JSON (schema vramtrace.frag/2)
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let traces = args.processes.open()?.traces;
    let mut not_there = None;
    let find = |name: &str, trace: &Trace, definitions: &Definitions| {
        let found = find(trace, definitions, args.at);
        if found.as_ref().is_ok_and(Vec::is_empty) {
            message(format_args!("{name}: {}", why_no_blocks(definitions)));
        }
        Ok(found.unwrap_or_else(|why| {
            not_there = Some(match why {
                MomentError::AfterEnd { at_ns, end_ns } => {
                    moment::behind_end("--at", at_ns, name, end_ns)
                }
                why => format!("{name}: {why}"),
            });
            Vec::new()
        }))
    };
    let all = of_devices(&traces, &args.device, find, |frag| frag.device)?;
    if all.is_empty() {
        caveats::warn_damage(&traces);
        let nothing = || "no trace has memory of PyTorch's cache on this device".to_string();
        return Err(Failure::new(not_there.unwrap_or_else(nothing)));
    }
    let document = || {
        let facts =
            |(_, trace, frag): &(_, &Trace, Frag)| FragFacts::of(frag.clone(), trace.header());
        FragReport { devices: all.iter().map(facts).collect() }
    };
    show(&traces, args.json, FRAG, document, || {
        let text = |(name, trace, frag): &(String, &Trace, Frag)| {
            text(name, frag, trace.header(), args.at, args.top)
        };
        all.iter().map(text).collect::<Vec<String>>().join("\n")
    })
}
