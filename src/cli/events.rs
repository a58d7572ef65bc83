//! `vramtrace events`: one line for each start and end of a process, refusal, change of a cap, out-of-memory and leak
//! verdict.

use std::time::Duration;

use vramtrace_reader::report::json::event::{EventFacts, EventKind};
use vramtrace_reader::units::shorten;

use crate::console::print;
use crate::error::{DONE, Failure, Outcome};
use crate::live_processes::places::Places;
use crate::live_processes::process;
use crate::metrics::changes::{Changes, of_finding};
use crate::metrics::passes::Passes;

#[derive(clap::Args)]
#[command(
    long_about = "Print a line for each start and end of a recorded process of this node, each \
        refusal, change of a cap, out-of-memory and leak verdict: of your own processes; as root, of \
        all users. No process is stopped or asked.\n\n\
        Without --follow: what happened so far to the processes that run now.",
    after_help = "Examples:\n  \
        vramtrace events                               so far\n  \
        vramtrace events --follow                      from now on, until it is ended\n  \
        vramtrace events --follow --json | systemd-cat -t vramtrace"
)]
pub struct Args {
    /// Print events as they happen, until the command is ended
    #[arg(long)]
    follow: bool,
    /// An object a line, schema vramtrace.event/1
    #[arg(long)]
    json: bool,
}

/// Between two looks at the live pages, and between two readings of one trace.
const LOOK: Duration = Duration::from_millis(500);
const PASS: Duration = Duration::from_secs(10);

pub fn run(args: Args) -> Outcome {
    let places = Places::of_environment();
    let mut changes = Changes::default();
    if !args.follow {
        let passes = Passes::once(&places);
        let mut events =
            changes.look(process::of_users(&places, |_| true).0, |key| passes.known(key));
        events.extend(passes.take().iter().map(of_finding));
        events.sort_by(|a, b| a.time.cmp(&b.time));
        events.iter().try_for_each(|event| print_event(event, args.json))?;
        return Ok(DONE);
    }
    let began = jiff::Timestamp::now();
    let passes = Passes::start(places.clone(), PASS, true);
    // Those that run already have started before.
    changes.look(process::of_users(&places, |_| true).0, |key| passes.known(key));
    loop {
        std::thread::sleep(LOOK);
        let processes = process::of_users(&places, |_| true).0;
        passes.saw(&processes);
        let mut events = changes.look(processes, |key| passes.known(key));
        let is_new = |event: &EventFacts| {
            event.event != EventKind::OutOfMemory
                || event.time.parse::<jiff::Timestamp>().is_ok_and(|at| at >= began)
        };
        events.extend(passes.take().iter().map(of_finding).filter(is_new));
        events.iter().try_for_each(|event| print_event(event, args.json))?;
    }
}

fn print_event(event: &EventFacts, json: bool) -> Result<(), Failure> {
    match json {
        true => print(&format!("{}\n", serde_json::to_string(event)?)),
        false => print(&format!("{}\n", text(event))),
    }
}

fn text(event: &EventFacts) -> String {
    let mut line = format!("{} {:<15} {}", event.time, event.event.name(), event.executable);
    match event.pid {
        Some(pid) => line.push_str(&format!(" pid {pid}")),
        None => line.push_str(&format!(" pid {} in its container", event.pid_inside)),
    }
    for (name, value) in [
        ("job", &event.job),
        ("rank", &event.rank),
        ("pod", &event.pod),
        ("container", &event.container),
    ] {
        if !value.is_empty() {
            line.push_str(&format!(" {name} {value}"));
        }
    }
    if let Some(device) = &event.device {
        line.push_str(&format!(" on {}", shorten(device, 12)));
    }
    format!("{line}: {}", event.message)
}
