//! `vramtrace flame`: a flame graph of who holds the memory.

use std::path::PathBuf;

use vramtrace_reader::export::stacks::StackFormat;

use super::export;
use super::moment::MomentArgs;
use super::output::Output;
use super::select::{DeviceArgs, ProcessArgs, paths};
use crate::error::Outcome;

#[derive(clap::Args)]
#[command(
    long_about = "Draw a flame graph: each frame as wide as the bytes that are live below it.",
    after_help = "Examples:\n  \
        vramtrace flame -o flame.svg\n  \
        vramtrace flame train.vtrace --fold -o flame.svg\n  \
        vramtrace flame train.vtrace --at end -o left.svg"
)]
pub struct Args {
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// The SVG to write; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    moment: MomentArgs,
    /// Leave out frames that only forward a call: torch.nn's calls of modules, wrappers, importlib
    #[arg(long)]
    fold: bool,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

pub fn run(args: Args) -> Outcome {
    let output = Output::new(&args.output, args.force)?;
    let selected = args.processes.open()?;
    output.refuse_inputs(paths(&selected.traces))?;
    let MomentArgs { at, level } = args.moment;
    let format = StackFormat::Flame { fold: args.fold };
    export::stacks(selected, format, (at, level.given), &args.device, &output)
}
