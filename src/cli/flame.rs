//! `vramtrace flame`: a flame graph of who holds the memory.

use std::path::PathBuf;

use vramtrace_reader::export::stacks::StackFormat;

use super::export;
use super::moment::MomentArgs;
use super::output::Output;
use super::reading::HeldArgs;
use crate::error::Outcome;

#[derive(clap::Args)]
#[command(
    long_about = "Draw a flame graph: each frame as wide as the bytes that are live below it.",
    after_help = "Examples:\n  \
        vramtrace flame -o flame.svg\n  \
        vramtrace flame train.vtrace -o flame.svg\n  \
        vramtrace flame train.vtrace --at end -o left.svg"
)]
pub struct Args {
    #[command(flatten)]
    held: HeldArgs,
    /// The SVG to write; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

pub fn run(args: Args) -> Outcome {
    let output = Output::new(&args.output, args.force)?;
    let HeldArgs { processes, device, moment: MomentArgs { at, level } } = args.held;
    let selected = output.open_inputs(&processes)?;
    export::stacks(selected, StackFormat::Flame, (at, level.given), &device, &output)
}
