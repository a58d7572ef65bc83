//! `vramtrace report`.

use std::path::PathBuf;

use super::{Failure, Outcome};

#[derive(clap::Args)]
#[command(after_help = "Example:\n  vramtrace report vramtrace-20260101-120000/")]
pub struct Args {
    /// Trace files or a run's directory; default: the newest run in the working directory
    traces: Vec<PathBuf>,
}

pub fn run(args: Args) -> Outcome {
    Err(Failure::new(format!("report of {} traces: not available yet", args.traces.len())))
}
