//! `vramtrace flame`: a flame graph of who holds the memory.

use std::path::PathBuf;

use vramtrace_reader::analysis::{Level, Moment};
use vramtrace_reader::export::stacks::Format;
use vramtrace_reader::trace;

use super::{Outcome, export, level, moment, say};

#[derive(clap::Args)]
#[command(
    long_about = "Draw a flame graph: each frame as wide as the bytes that are live below it.",
    after_help = "Examples:\n  \
        vramtrace flame -o flame.svg\n  \
        vramtrace flame train.vtrace --at end -o left.svg"
)]
pub struct Args {
    /// Trace files or a run's directory; default: the newest run in the working directory
    traces: Vec<PathBuf>,
    /// The SVG to write; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Which moment: `peak` (of each device), `peak-allocated` (of PyTorch's blocks), `end`, or
    /// seconds since the start
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = moment::parse)]
    at: Moment,
    /// Driver memory, or PyTorch's blocks in place of it [default: tensor, where recorded]
    #[arg(long, value_enum)]
    level: Option<level::Name>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

pub fn run(args: Args) -> Outcome {
    export::check_output(&args.output, args.force)?;
    let loaded = trace::load(&args.traces)?;
    loaded.warnings.iter().for_each(say);
    let level = args.level.map(Level::from);
    export::stacks(&loaded.traces, Format::Flame, (args.at, level), &args.output, args.force)
}
