//! `vramtrace record`: switches the recording of a process that runs off and on.

use vramtrace_format::SwitchedBy;
use vramtrace_format::live::LiveState;

use super::cap::ACKNOWLEDGE_TIMEOUT;
use crate::console::print;
use crate::error::{DONE, Failure, Outcome};
use crate::live_processes::control::ControlTarget;
use crate::live_processes::process::LiveProcess;

#[derive(clap::Args)]
#[command(
    long_about = "Switch the recording of a running process off, or on again.\n\n\
        While it is off, the process appends no events and captures no stacks. Its memory is \
        counted on, its limits stay in force, and `vramtrace ps` shows both. When it is on again, \
        the trace says which time is missing, and has all memory that is live then; memory \
        allocated while it was off has no stack. The processes that it starts are not switched. A \
        user can switch their processes; root those of all. For all processes of a host: create \
        the file /etc/vramtrace/off, or for those of one user $XDG_RUNTIME_DIR/vramtrace/off, and \
        remove it again; processes follow within a second in which they allocate or free.",
    after_help = "Examples:\n  \
        vramtrace record off --pid 4711\n  \
        vramtrace record on --pid 4711"
)]
pub struct Args {
    #[arg(value_enum, value_name = "on|off")]
    wanted: Wanted,
    /// A traced process, as `vramtrace ps` lists it
    #[arg(long, value_name = "PID")]
    pid: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Wanted {
    /// Append events again
    On,
    /// Append no events; limits stay in force
    Off,
}

pub fn run(args: Args) -> Outcome {
    let Args { wanted, pid } = args;
    let target = ControlTarget::find(pid).map_err(|missing| Failure::new(missing.message(pid)))?;
    let before = target.state()?;
    if before.state == LiveState::NotRecording && before.off_by.is_empty() {
        return Err(Failure::new(format!(
            "--pid {pid}: it records nothing: VRAMTRACE_OUT=off, or its recording has ended; that \
             cannot be changed while it runs"
        )));
    }
    let on = wanted == Wanted::On;
    target.switch(on)?;
    let applied = target.has_switched(ACKNOWLEDGE_TIMEOUT)?;
    let when = match (applied, target.is_apart()) {
        (true, _) => "",
        (false, false) => " (from its next CUDA call on)",
        // The process is in another ipc namespace or has no shared memory: it polls a file once a second.
        (false, true) => " (from its first CUDA call in a second or later)",
    };
    let now = if applied { target.state()? } else { before };
    print(&format!("pid {pid}: {}{when}\n", state_text(on, &now)))?;
    Ok(DONE)
}

/// What the order leads to.
fn state_text(on: bool, process: &LiveProcess) -> &'static str {
    match (on, process.off_by.contains(&SwitchedBy::HostFile)) {
        (true, false) => "recording on",
        (true, true) => {
            "recording stays off: the file /etc/vramtrace/off or $XDG_RUNTIME_DIR/vramtrace/off exists"
        }
        (false, _) => "recording off; its limits stay in force",
    }
}
