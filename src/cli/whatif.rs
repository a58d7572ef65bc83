//! `vramtrace whatif`: what another PYTORCH_CUDA_ALLOC_CONF would have reserved.

use std::time::Duration;

use vramtrace_format::size;
use vramtrace_reader::allocator::Conf;
use vramtrace_reader::analysis::whatif::{
    Capacity, GRID, NOT_OF_SAMPLES, Origin, Prediction, Recorded, capacities_of, predict,
    why_no_blocks,
};
use vramtrace_reader::report::json::{Document, WHATIF, WhatifReport};
use vramtrace_reader::report::text::whatif::text;

use super::by_device;
use super::select::{DeviceArgs, Input, ProcessArgs, traces};
use crate::console::{json, message, print, print_text};
use crate::error::{DONE, Failure, Outcome};

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
    /// Print JSON (schema vramtrace.whatif/1)
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let capacities = args
        .capacity
        .iter()
        .map(|text| match size::parse(text) {
            Ok(bytes) => Ok(Capacity { bytes, origin: Origin::Asked }),
            Err(error) => Err(Failure::new(format!("--capacity {text}: {error}"))),
        })
        .collect::<Result<Vec<Capacity>, Failure>>()?;
    let names: Vec<&str> = match args.conf.is_empty() {
        true => GRID.to_vec(),
        false => args.conf.iter().map(String::as_str).collect(),
    };
    let confs = names
        .iter()
        .map(|name| {
            let name = if name.trim().is_empty() { "default" } else { name };
            match Conf::parse(name) {
                Ok(conf) => Ok((name.to_string(), conf)),
                Err(error) => Err(Failure::new(format!("--conf \"{name}\": {error}"))),
            }
        })
        .collect::<Result<Vec<(String, Conf)>, Failure>>()?;
    let inputs: Vec<Input> = args.processes.open()?.into_inputs().collect();
    let all = by_device::find(&inputs, &args.device, |input, definitions| {
        if definitions.samples_blocks() {
            return Err(Failure::new(format!("{}: {NOT_OF_SAMPLES}", input.name)));
        }
        let devices = Recorded::of(&input.trace, definitions);
        if devices.is_empty() {
            message(format_args!("{}: {}", input.name, why_no_blocks(definitions)));
        }
        Ok(devices.into_iter().map(|recorded| (recorded.device, recorded)).collect())
    })?;
    if all.is_empty() {
        return Err(Failure::new(
            "no trace has requests of PyTorch's cache on this device: nothing to replay",
        ));
    }
    let (names, devices): (Vec<&str>, Vec<Prediction>) = all
        .iter()
        .map(|(input, recorded)| {
            let capacities = match capacities.is_empty() {
                true => capacities_of(recorded),
                false => capacities.clone(),
            };
            (input.name.as_str(), with_progress(recorded, &confs, capacities))
        })
        .unzip();
    if args.json {
        let facts = WhatifReport { devices };
        print(&json(&Document::new(WHATIF, &facts, traces(&inputs)))?)?;
        return Ok(DONE);
    }
    let texts = names.iter().zip(&devices).map(|(name, prediction)| text(name, prediction));
    print_text(&texts.collect::<Vec<String>>().join("\n"))?;
    Ok(DONE)
}

fn with_progress(
    recorded: &Recorded,
    confs: &[(String, Conf)],
    capacities: Vec<Capacity>,
) -> Prediction {
    let progress = indicatif::ProgressBar::new(confs.len() as u64).with_message("replaying");
    progress.enable_steady_tick(Duration::from_millis(200));
    let prediction = predict(recorded, confs, capacities, &|| progress.inc(1));
    progress.finish_and_clear();
    prediction
}
