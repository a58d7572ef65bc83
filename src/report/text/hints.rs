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
    let mut hints = Hints::default();
    hints.add("report", &one, "", "one process in full");
    hints.add("holders", given, "", "who held it at the peaks");
    hints.timeline(given);
    hints.0.extend(fits);
    hints.text()
}

/// Commands to suggest after a report on processes. `full`: the report was printed with `--full`.
/// `given` and `fits`: as in [`overview_hints`].
pub fn hints(processes: &[Process], full: bool, given: &str, fits: Option<[String; 2]>) -> String {
    let mut hints = Hints::default();
    if !full {
        let rest = "kinds, roles, libraries, the sum to nvidia-smi's figure";
        hints.add("report", given, " --full", rest);
    }
    if processes.iter().any(|process| process.peak_bytes() > 0) {
        hints.add("report", given, " --at peak", "what was live at the peak");
    }
    if processes.iter().any(|process| process.who.is_some()) {
        hints.add("holders", given, " --full", "who held it at the peak, with every frame");
    }
    if !processes.is_empty() {
        hints.timeline(given);
    }
    hints.0.extend(fits);
    hints.text()
}

/// Commands, each with what it shows.
#[derive(Default)]
struct Hints(Vec<[String; 2]>);

impl Hints {
    fn add(&mut self, command: &str, given: &str, options: &str, what: &str) {
        self.0.push([format!("vramtrace {command}{given}{options}"), what.to_string()]);
    }

    fn timeline(&mut self, given: &str) {
        self.add("export", given, " --format perfetto -o timeline.pftrace", "the timeline");
    }

    /// With aligned comments.
    fn text(self) -> String {
        let widest = self.0.iter().map(|[command, _]| command.chars().count()).max().unwrap_or(0);
        let hint =
            |[command, what]: &[String; 2]| line(0, DIM, &format!("{command:widest$}   # {what}"));
        self.0.iter().map(hint).collect()
    }
}
