//! `vramtrace whatif`: what another PYTORCH_CUDA_ALLOC_CONF would have reserved.

use vramtrace_format::size;
use vramtrace_reader::allocator::Conf;
use vramtrace_reader::analysis::whatif::{
    Capacity, GRID, NOT_OF_A_MOMENT, NOT_OF_SAMPLES, Origin, Prediction, Recorded, capacities_of,
    predict, why_no_blocks,
};
use vramtrace_reader::report::json::{WHATIF, WhatifReport};
use vramtrace_reader::report::text::whatif::text;
use vramtrace_reader::trace::{Definitions, Trace};

use super::caveats;
use super::reading::{of_devices, show};
use super::select::{DeviceArgs, ProcessArgs};
use crate::console::message;
use crate::error::{Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Replay the requests of one recorded PyTorch run under other allocator settings: \
        what each would have reserved at its peak, and whether it fits.\n\n\
        A capacity is the bytes of a card or a cap: what the trace shows outside of PyTorch \
        (context, other libraries) is taken from it. Where a request does not fit, the cache is \
        emptied and the request tried again, as PyTorch does. Settings that the recorded calls \
        forbid are marked unsafe.\n\n\
        Also reads PyTorch memory snapshots (torch.cuda.memory._dump_snapshot), and CSVs with \
        the columns action,addr,size,stream; plain or gzip.",
    after_help = "Examples:\n  \
        vramtrace whatif                                       the newest run here\n  \
        vramtrace whatif train.vtrace --capacity 24GiB --conf expandable_segments:True\n  \
        vramtrace whatif snapshot.pickle"
)]
pub struct Args {
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// A setting to try, as in PYTORCH_CUDA_ALLOC_CONF; may be repeated [default: a grid]
    #[arg(long, value_name = "STRING")]
    conf: Vec<String>,
    /// A card or a cap, e.g. 24GiB; may be repeated [default: the cap in force and the card]
    #[arg(long, value_name = "SIZE")]
    capacity: Vec<String>,
    /// Print JSON (schema vramtrace.whatif/2)
    #[arg(long)]
    json: bool,
}

/// The bytes that an option gives.
pub fn size_of(option: &str, text: &str) -> Result<u64, Failure> {
    size::parse(text).map_err(|error| Failure::new(format!("{option} {text}: {error}")))
}

/// A setting of PyTorch's allocator that --conf gives.
pub fn setting(name: &str) -> Result<(String, Conf), Failure> {
    let name = if name.trim().is_empty() { "default" } else { name };
    let wrong = |error| Failure::new(format!("--conf \"{name}\": {error}"));
    Conf::parse(name).map(|conf| (name.to_string(), conf)).map_err(wrong)
}

pub fn run(args: Args) -> Outcome {
    let capacity =
        |text: &String| Ok(Capacity { bytes: size_of("--capacity", text)?, origin: Origin::Asked });
    let capacities = args.capacity.iter().map(capacity).collect::<Result<Vec<_>, Failure>>()?;
    let names: Vec<&str> = match args.conf.is_empty() {
        true => GRID.to_vec(),
        false => args.conf.iter().map(String::as_str).collect(),
    };
    let confs = names.into_iter().map(setting).collect::<Result<Vec<_>, Failure>>()?;
    let traces = args.processes.open()?.traces;
    let find = |name: &str, trace: &Trace, definitions: &Definitions| {
        if definitions.samples_blocks() {
            return Err(Failure::new(format!("{name}: {NOT_OF_SAMPLES}")));
        }
        if !definitions.has_history() {
            return Err(Failure::new(format!("{name}: {NOT_OF_A_MOMENT}")));
        }
        let devices = Recorded::of(trace, definitions);
        if devices.is_empty() {
            message(format_args!("{name}: {}", why_no_blocks(definitions)));
        }
        Ok(devices)
    };
    let all = of_devices(&traces, &args.device, find, |recorded| recorded.device)?;
    if all.is_empty() {
        caveats::warn_damage(&traces);
        return Err(Failure::new(
            "no trace has requests of PyTorch's cache on this device: nothing to replay",
        ));
    }
    let predicted = |(_, _, recorded): &(_, _, Recorded)| {
        let capacities = match capacities.is_empty() {
            true => capacities_of(recorded),
            false => capacities.clone(),
        };
        predict(recorded, &confs, capacities)
    };
    let devices: Vec<Prediction> = all.iter().map(predicted).collect();
    show(
        &traces,
        args.json,
        WHATIF,
        || WhatifReport { devices: devices.clone() },
        || {
            let texts = all.iter().zip(&devices).map(|((name, ..), of)| text(name, of));
            texts.collect::<Vec<String>>().join("\n")
        },
    )
}
