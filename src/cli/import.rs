//! `vramtrace import`: a trace of what others recorded.

use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use vramtrace_reader::import;

use super::export::{check_output, keep};
use super::{DONE, Failure, Outcome, say};

#[derive(clap::Args)]
#[command(
    long_about = "Make a trace of what others recorded, so that frag, whatif, holders, report and \
        the exports work on it.\n\n\
        FILE is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot; torch 2.0 to 2.15), \
        a CSV with the columns action,addr,size,stream, or the log of RMM's logging resource \
        adaptor; plain or gzip. A snapshot is read as data: nothing in it is run.",
    after_help = "Examples:\n  \
        vramtrace import snapshot.pickle -o snapshot.vtrace\n  \
        vramtrace holders snapshot.vtrace"
)]
pub struct Args {
    /// A PyTorch memory snapshot, a CSV of requests, or an RMM log
    file: PathBuf,
    /// The trace to write
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

pub fn run(args: Args) -> Outcome {
    if args.output == Path::new("-") {
        return Err(Failure::new("-o -: a trace is written to a file: give its name"));
    }
    check_output(&args.output, args.force)?;
    let history = import::read(&args.file)?;
    let woven = keep(&args.output, args.force, |file: &NamedTempFile| {
        import::convert(&history, &args.file, file.reopen()?)
    })?;
    let devices = if woven.devices == 1 { "device" } else { "devices" };
    say(format_args!(
        "{}: {} blocks in {} segments of {} {devices}, from a {}",
        args.output.display(),
        woven.blocks,
        woven.segments,
        woven.devices,
        history.form.name(),
    ));
    if woven.before > 0 && history.devices.iter().any(|device| !device.entries.is_empty()) {
        say(format_args!(
            "the history begins late: {} of its blocks and segments were there before",
            woven.before
        ));
    }
    if woven.odd > 0 {
        say(format_args!("{} entries contradict those before them and were left out", woven.odd));
    }
    history.caveats.iter().for_each(say);
    Ok(DONE)
}
