//! The commands that a report suggests at its end.

use super::layout::{DIM, paint};
use crate::analysis::fits::{MarkedTrace, marked_batches, suffices};
use crate::analysis::ranks::{self, ProcessFigures};
use crate::analysis::{Process, outliers};
use crate::report::shell;

/// Commands to suggest after an overview. The example is the process that failed first, else the outlier,
/// else the first one.
/// `given`: the trace arguments as the user gave them, each after a space. `marked`: the batches of the traces, and which
/// one fits.
pub fn overview_hints(
    processes: &[ProcessFigures],
    given: &str,
    (marked, fitting): (&[MarkedTrace], Option<&str>),
) -> String {
    let odd = outliers(processes);
    let odd = || processes.iter().zip(&odd).find(|(_, odd)| odd.is_some()).map(|(one, _)| one);
    let failed = ranks::failed(processes).first().map(|failed| &processes[failed.index]);
    let Some(process) = failed.or_else(odd).or(processes.first()) else {
        return String::new();
    };
    let headers = processes.iter().map(|process| &process.header);
    let one = shell::of_process(given, &process.header, &process.trace, headers);
    let mut lines = vec![
        (format!("vramtrace report{one}"), "one process in full"),
        (format!("vramtrace holders{given}"), "who held it at the peaks"),
        timeline(given),
    ];
    let fits = fits(marked, fitting);
    lines.extend(fits.iter().map(|(command, what)| (command.clone(), what.as_str())));
    aligned(lines)
}

/// The command that says which batch fits, with the answer. `None`: the marks of these traces name fewer than two.
fn fits(marked: &[MarkedTrace], fitting: Option<&str>) -> Option<(String, String)> {
    let paths: String =
        marked.iter().map(|trace| format!(" {}", shell::path(trace.path))).collect();
    let answer = fitting.unwrap_or("which batch fits on this card");
    let command =
        || (format!("vramtrace fits{paths}"), format!("{answer}; --card 24GiB: on another"));
    suffices(marked).then(command)
}

/// The command that exports a timeline, and its description.
fn timeline(given: &str) -> (String, &'static str) {
    (format!("vramtrace export{given} --format perfetto -o timeline.pftrace"), "the timeline")
}

/// Commands to suggest after a report on processes. `full`: the report was printed with `--full`.
/// `given`: as in [`overview_hints`]. `fitting`: which batch fits.
pub fn hints(processes: &[Process], full: bool, given: &str, fitting: Option<&str>) -> String {
    let mut lines = Vec::new();
    if !full {
        let rest = "kinds, refusals, libraries, the sum to nvidia-smi's figure";
        lines.push((format!("vramtrace report{given} --full"), rest));
    }
    if processes.iter().any(|process| process.peak_bytes() > 0) {
        lines.push((format!("vramtrace report{given} --at peak"), "what was live at the peak"));
    }
    if processes.iter().any(|process| process.who.is_some()) {
        let holders = format!("vramtrace holders{given} --full");
        lines.push((holders, "who held it at the peak, with every frame"));
    }
    if !processes.is_empty() {
        lines.push(timeline(given));
    }
    let mut marked = Vec::new();
    if let [process] = processes
        && process.devices().any(|(_, device)| device.cache.peak_allocated.bytes > 0)
    {
        let batches = marked_batches(&process.definitions);
        marked.push(MarkedTrace { path: &process.trace, batches });
    }
    let fits = fits(&marked, fitting);
    lines.extend(fits.iter().map(|(command, what)| (command.clone(), what.as_str())));
    aligned(lines)
}

/// Commands with aligned comments.
fn aligned(lines: Vec<(String, &str)>) -> String {
    let widest = lines.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    lines
        .into_iter()
        .map(|(command, what)| {
            let room = " ".repeat(widest - command.chars().count());
            format!("{}\n", paint(DIM, &format!("{command}{room}   # {what}")))
        })
        .collect()
}
