//! `vramtrace import`: converts the recording of another tool into a trace.

use std::io::ErrorKind;
use std::path::PathBuf;

use vramtrace_reader::import;
use vramtrace_reader::units::several;

use super::output::Output;
use crate::console::message;
use crate::error::{DONE, Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Convert the recording of another tool into a trace, so that frag, whatif, \
        holders, report and the exports work on it.\n\n\
        FILE is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot of torch 2.0 to 2.15; \
        as JSON or by torch.save, too), a timeline of torch.profiler with profile_memory=True, \
        a CSV with the columns action,addr,size,stream, a log of RMM, or a pprof profile of memory \
        (jax.profiler.save_device_memory_profile); plain or gzip; or the table of Nsight Systems \
        CUDA_GPU_MEMORY_USAGE_EVENTS (nsys export --type parquetdir). A snapshot is read as data: \
        nothing in it is run.",
    after_help = "Examples:\n  \
        vramtrace import snapshot.pickle -o snapshot.vtrace\n  \
        vramtrace holders snapshot.vtrace"
)]
pub struct Args {
    /// A recording of another tool
    file: PathBuf,
    /// The trace to write; `-` is stdout
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

pub fn run(args: Args) -> Outcome {
    let wrong = match args.file.metadata() {
        Ok(file) if file.is_dir() => Some("is a directory"),
        Err(error) if error.kind() == ErrorKind::NotFound => Some("no such file"),
        _ => None,
    };
    if let Some(why) = wrong {
        let name = args.file.display();
        return Err(Failure::new(format!("{name}: {why}: give one recording of another tool")));
    }
    let output = Output::new(&args.output, args.force)?;
    output.refuse_inputs([&*args.file])?;
    let histories = import::read(&args.file)?;
    let [history] = &histories[..] else {
        let (name, several) = (args.file.display(), histories.len());
        return Err(Failure::new(format!(
            "{name}: {several} processes: every command reads it, with --pid"
        )));
    };
    let converted =
        output.write_at(|file| import::convert(history, &args.file, file.try_clone()?))?;
    message(format_args!(
        "{}: {} blocks in {} segments of {}, from a {}",
        output.shown(),
        converted.blocks,
        converted.segments,
        several(converted.devices, "device"),
        history.form.name(),
    ));
    if converted.before > 0 && history.devices.iter().any(|device| !device.entries.is_empty()) {
        message(format_args!(
            "the history does not begin at the start: {} blocks and segments existed before it",
            converted.before
        ));
    }
    if converted.contradictions > 0 {
        message(format_args!(
            "{} entries contradict those before them and were left out",
            converted.contradictions
        ));
    }
    history.caveats.iter().for_each(message);
    Ok(DONE)
}
