//! `vramtrace whatif`: what another PYTORCH_CUDA_ALLOC_CONF would have reserved.

use std::time::Duration;

use vramtrace_format::size;
use vramtrace_reader::allocator::Conf;
use vramtrace_reader::analysis::whatif::{
    Capacity, GRID, NOT_OF_SAMPLES, Origin, Prediction, Recorded, capacities_of, predict,
    why_no_blocks,
};
use vramtrace_reader::report::json::damage::WithDamage;
use vramtrace_reader::report::json::whatif::report;
use vramtrace_reader::report::text::whatif::text;
use vramtrace_reader::report::whatif::PredictedDevice;

use super::caveats;
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
        Also reads PyTorch memory snapshots (torch.cuda.memory._dump_snapshot), CSVs with the \
        columns action,addr,size,stream, and RMM logs; plain or gzip.",
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
    let mut all: Vec<(&Input, Recorded, Prediction)> = Vec::new();
    let mut seen = Vec::new();
    let inputs: Vec<Input> = args.processes.open()?.into_inputs().collect();
    for input in &inputs {
        let (definitions, _) = input.trace.definitions();
        if definitions.samples_blocks() {
            return Err(Failure::new(format!("{}: {NOT_OF_SAMPLES}", input.name)));
        }
        let devices = Recorded::of(&input.trace, &definitions);
        if devices.is_empty() {
            message(format_args!("{}: {}", input.name, why_no_blocks(&definitions)));
        }
        seen.extend(devices.iter().map(|recorded| recorded.device));
        for recorded in devices.into_iter().filter(|it| args.device.includes(it.device)) {
            let capacities = match capacities.is_empty() {
                true => capacities_of(&recorded),
                false => capacities.clone(),
            };
            let prediction = with_progress(&recorded, &confs, capacities);
            all.push((input, recorded, prediction));
        }
    }
    if !seen.is_empty() {
        args.device.check(seen)?;
    }
    caveats::warn_damage(traces(&inputs));
    if all.is_empty() {
        return Err(Failure::new(
            "no trace has requests of PyTorch's cache on this device: nothing to replay",
        ));
    }
    let devices: Vec<PredictedDevice> = all
        .iter()
        .map(|(input, recorded, prediction)| {
            let (pid, rank) = (input.trace.header().pid, input.trace.header().rank);
            PredictedDevice { pid, rank, recorded, prediction }
        })
        .collect();
    if args.json {
        print(&json(&WithDamage::new(&report(&devices), traces(&inputs)))?)?;
        return Ok(DONE);
    }
    let parts: Vec<String> =
        all.iter().zip(&devices).map(|((input, ..), device)| text(&input.name, device)).collect();
    print_text(&parts.join("\n"))?;
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
