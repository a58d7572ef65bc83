//! `vramtrace flame`: a flame graph of who holds the memory.

use std::path::PathBuf;

use vramtrace_reader::analysis::{Level, Moment};
use vramtrace_reader::export::stacks::StackFormat;

use super::output::Output;
use super::select::{DeviceArgs, ProcessArgs, paths};
use super::{export, level, moment};
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
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = moment::parse, help = moment::HELP)]
    at: Moment,
    /// Driver memory, or PyTorch's blocks in place of it [default: tensor, where recorded]
    #[arg(long, value_enum)]
    level: Option<level::LevelName>,
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
    let level = args.level.map(Level::from);
    let format = StackFormat::Flame { fold: args.fold };
    export::stacks(selected, format, (args.at, level), &args.device, &output)
}
