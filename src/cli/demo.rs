//! `vramtrace demo`: explains a recorded run. With `--run` it records a small program with phases, a leak,
//! fragmentation and refused requests under a cap, prints the report and writes a timeline.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use vramtrace_reader::units::gib;

use super::demo_recorded;
use crate::console::message;
use crate::driver::{self, Driver};
use crate::error::{DONE, Failure, Outcome};
use crate::launch::child::Status;
use crate::launch::output::{Output, from_here};
use crate::launch::simulate::{self, Simulated};
use crate::launch::{Launch, library, signals};

/// The hidden command that runs the recorded program (`demo_workload.rs`).
pub const WORKLOAD: &str = "__demo-workload";
/// The cap of the program, as `--cap` takes it: less than the program asks for, so that requests are refused.
pub const CAP: &str = "4GiB";
/// Free bytes that a GPU must have; with fewer the demo uses the simulated GPU.
const NEEDED: u64 = 5 << 30;

#[derive(clap::Args)]
#[command(
    long_about = "Explain a recorded run of PyTorch that was out of memory. The recording comes \
        with this command; no GPU is needed.\n\n\
        With --run: record a small program that trains in phases, leaks, fragments its memory and \
        meets a cap of 4 GiB, print its report and write a timeline. It runs on the first GPU if \
        5 GiB of it are free, else on a simulated one.",
    after_help = "Examples:\n  vramtrace demo\n  vramtrace demo --run"
)]
pub struct Args {
    /// Record a small program, in place of reading the recorded run
    #[arg(long)]
    run: bool,
    /// The same on the simulated GPU, even where there is a real one
    #[arg(long)]
    simulate: bool,
    /// Read the recorded run: what happens without options
    #[arg(long, hide = true, conflicts_with_all = ["simulate", "run"])]
    recorded: bool,
    /// The directory for the trace and the timeline [default: a new vramtrace-DATE-TIME/]
    #[arg(long, value_name = "DIR")]
    out: Option<OsString>,
}

/// `execute` runs another vramtrace command, given its arguments.
pub fn run(args: Args, execute: &dyn Fn(&[&OsStr]) -> Outcome) -> Outcome {
    if args.recorded || !(args.run || args.simulate) {
        return demo_recorded::run(args.out, execute);
    }
    let simulated = match (args.simulate, find_gpu()) {
        (false, Ok(device)) => {
            message(format_args!("the demo runs on {device} under a cap of 4 GiB"));
            None
        }
        (asked, found) => {
            let why = match (asked, found) {
                (false, Err(why)) => format!(" ({why})"),
                _ => String::new(),
            };
            message(format_args!(
                "the demo runs on a simulated GPU of 24 GiB{why} under a cap of 4 GiB"
            ));
            Some(Simulated::new(simulate::DEFAULT)?)
        }
    };
    let output = Output::new(args.out.as_deref())?;
    let executable = library::own_executable()?;
    let command = vec![executable.into_os_string(), WORKLOAD.into()];
    let ended = Launch {
        command,
        cap: Some(CAP.into()),
        settings: Vec::new(),
        output,
        simulated,
        quiet_stdout: false,
    }
    .run()?;
    match ended.status {
        Status::Exited(DONE) => {}
        Status::Exited(code) => {
            return Err(Failure {
                code,
                message: format!("the demo's program failed with exit status {code}"),
            });
        }
        Status::Signalled(signal) => {
            signals::die_by(signal);
            return Ok(ended.status.code());
        }
    }
    let traces = ended.output.traces();
    let [trace] = traces.as_slice() else {
        return Err(Failure { code: 1, message: "the demo's program left no trace".into() });
    };
    println!();
    let run = ended.output.shown().unwrap_or_else(|| trace.clone());
    execute(&["report".as_ref(), "--no-hints".as_ref(), from_here(&run).as_ref()])?;
    let timeline: PathBuf = trace.with_extension("perfetto-trace");
    execute(&[
        "export".as_ref(),
        from_here(trace).as_ref(),
        "--format=perfetto".as_ref(),
        "--force".as_ref(),
        "-o".as_ref(),
        from_here(&timeline).as_ref(),
    ])?;
    println!("\nThe trace:      {}", from_here(trace));
    println!("The timeline:   {}  (open it in https://ui.perfetto.dev)", from_here(&timeline));
    println!("The leak:       vramtrace leaks {}", from_here(&run));
    println!("Your program:   vramtrace run --cap 8GiB python train.py");
    Ok(DONE)
}

#[derive(Debug, thiserror::Error)]
enum NoGpu {
    #[error("no GPU is found")]
    NotFound,
    #[error(transparent)]
    Driver(#[from] driver::Error),
    #[error("{name} has only {} free", gib(*.free))]
    Occupied { name: String, free: u64 },
}

/// The name of device 0, if it has [`NEEDED`] bytes free.
fn find_gpu() -> Result<String, NoGpu> {
    let driver = Driver::open().map_err(|_| NoGpu::NotFound)?;
    let devices = driver.devices()?;
    let first = devices.first().ok_or(NoGpu::NotFound)?;
    driver.enter()?;
    let memory = driver.memory();
    let _ = driver.leave();
    let (free, _) = memory?;
    if free < NEEDED {
        return Err(NoGpu::Occupied { name: first.name.clone(), free });
    }
    Ok(first.name.clone())
}
