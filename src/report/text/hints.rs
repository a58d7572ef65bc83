//! The commands that a report suggests at its end.

use super::layout::{DIM, line};
use crate::analysis::ranks::{self, ProcessFigures};
use crate::analysis::{Process, outliers};
use crate::report::shell;

/// Commands to suggest after an overview. The example is the process that failed first, else the outlier,
/// else the first one.
/// `given`: the trace arguments as the user gave them, each after a space. `fits`: the command that says which batch fits, with
/// the answer.
pub fn overview_hints(
    processes: &[ProcessFigures],
    given: &str,
    fits: Option<[String; 2]>,
) -> String {
    let odd = outliers(processes);
    let odd = || processes.iter().zip(&odd).find(|(_, odd)| odd.is_some()).map(|(one, _)| one);
    let failed = ranks::failed(processes).first().map(|failed| &processes[failed.index]);
    let Some(process) = failed.or_else(odd).or(processes.first()) else {
        return String::new();
    };
    let headers = processes.iter().map(|process| &process.header);
    let one = shell::of_process(given, &process.header, &process.trace, headers);
    let hints = [
        hint("report", &one, "", "one process in full"),
        hint("holders", given, "", "who held it at the peaks"),
        timeline(given),
    ];
    aligned(hints.into_iter().chain(fits))
}

/// Commands to suggest after a report on processes. `full`: the report was printed with `--full`.
/// `given` and `fits`: as in [`overview_hints`].
pub fn hints(processes: &[Process], full: bool, given: &str, fits: Option<[String; 2]>) -> String {
    let any = |has: fn(&Process) -> bool| processes.iter().any(has);
    let rest = "kinds, roles, libraries, the sum to nvidia-smi's figure";
    let who = "who held it at the peak, with every frame";
    let hints = [
        (!full, hint("report", given, " --full", rest)),
        (
            any(|process| process.peak_bytes() > 0),
            hint("report", given, " --at peak", "what was live at the peak"),
        ),
        (any(|process| process.who.is_some()), hint("holders", given, " --full", who)),
        (!processes.is_empty(), timeline(given)),
    ];
    aligned(hints.into_iter().filter_map(|(is, hint)| is.then_some(hint)).chain(fits))
}

/// A command, and what it shows.
fn hint(command: &str, given: &str, options: &str, what: &str) -> [String; 2] {
    [format!("vramtrace {command}{given}{options}"), what.to_string()]
}

fn timeline(given: &str) -> [String; 2] {
    hint("export", given, " --format perfetto -o timeline.pftrace", "the timeline")
}

/// With aligned comments.
fn aligned(hints: impl Iterator<Item = [String; 2]>) -> String {
    let hints: Vec<[String; 2]> = hints.collect();
    let widest = hints.iter().map(|[command, _]| command.chars().count()).max().unwrap_or(0);
    let hint =
        |[command, what]: &[String; 2]| line(0, DIM, &format!("{command:widest$}   # {what}"));
    hints.iter().map(hint).collect()
}
