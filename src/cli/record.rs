//! `vramtrace record`: switches the recording of a process that runs off and on.

use vramtrace_format::SwitchedBy;
use vramtrace_format::live::LiveState;

use crate::console::print;
use crate::error::{DONE, Failure, Outcome};
use crate::live_processes::control::ControlTarget;

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
    let target = ControlTarget::find(pid)?;
    let before = target.state()?;
    if before.state == LiveState::NotRecording && before.off_by.is_empty() {
        return Err(Failure::new(format!(
            "--pid {pid}: it records nothing: VRAMTRACE_OUT=off, or its recording has ended; that \
             cannot be changed while it runs"
        )));
    }
    let applied = target.switch(wanted == Wanted::On)?;
    let state = match (wanted, before.off_by.contains(&SwitchedBy::HostFile)) {
        (Wanted::On, false) => "recording on",
        (Wanted::On, true) => {
            "recording stays off: the file /etc/vramtrace/off or $XDG_RUNTIME_DIR/vramtrace/off exists"
        }
        (Wanted::Off, _) => "recording off; its limits stay in force",
    };
    print(&format!("pid {pid}: {state}{}\n", applied.text()))?;
    Ok(DONE)
}
