//! The lines with which a post-mortem begins, each part with its label.

use super::super::layout::{BAD, BOLD, DIM, PLAIN, paint, room, wrapped};
use super::super::stack::place;
use super::wording;
use crate::analysis::oom::PostMortem;
use crate::analysis::{Level, NamedStack, Process};
use crate::facts::ProcessId;
use crate::report::oom::FailureFacts;
use crate::report::shell;
use crate::units::{clean, seconds, size};

pub(in crate::report) const TITLE: &str = "OUT OF MEMORY";

/// Maximum length of a line in characters; a narrower terminal has fewer.
const WIDTH: usize = 80;

/// The lines after the word, which stands before the first of them. What is too long goes on below.
pub(in crate::report::text) fn labelled(
    word: &str,
    style: anstyle::Style,
    lines: &[String],
) -> String {
    let mut out = String::new();
    for part in lines.iter().flat_map(|text| wrapped(text, room(0).min(WIDTH) - 10)) {
        let before = paint(DIM, &format!("{:8}", if out.is_empty() { word } else { "" }));
        out.push_str(&format!("  {before}{}\n", paint(style, &part)));
    }
    out
}

/// The title in its lines.
pub(super) fn titled(title: &str) -> String {
    let mut out = String::new();
    for part in wrapped(title, room(0).min(WIDTH) - TITLE.len() - 2) {
        let before = if out.is_empty() { paint(BAD, TITLE) } else { " ".repeat(TITLE.len()) };
        out.push_str(&format!("{before}  {}\n", paint(BOLD, &part)));
    }
    out
}

/// Which process asked for how much, when and where. `api`: the driver's function. `timed`: the trace has times.
pub(in crate::report) fn title(
    process: ProcessId,
    one: &PostMortem,
    stack: &NamedStack,
    (api, timed): (&str, bool),
) -> String {
    let at = if timed { format!(" at {}", seconds(one.oom.time_ns)) } else { String::new() };
    let who = match one.oom.level {
        Level::Tensor => "torch".to_string(),
        Level::Driver => clean(api),
    };
    let place = place(stack).filter(|_| !stack.is_free_cache());
    let place = place.map_or(String::new(), |place| format!(" at {place}"));
    let process = wording::process(process, one);
    let then = if one.oom.went_on { ", and the run went on" } else { "" };
    match one.oom.size {
        0 => format!("{process}{at}: {who} was refused{place}{then}"),
        bytes => format!("{process}{at}: {who} asked for {}{place}{then}", size(bytes)),
    }
}

/// The short post-mortems of a process's failures.
pub(in crate::report) fn fatal(process: &Process) -> String {
    fatal_of(process, &format!(" {}", shell::path(&process.trace)), "")
}

/// As [`fatal`]. `given`: the arguments that name the process in a command, each after a space. `also`: what became
/// of other processes.
pub(in crate::report) fn fatal_of(process: &Process, given: &str, also: &str) -> String {
    let one = |fatal: FailureFacts| {
        let advice: Vec<String> = fatal.advice.into_iter().take(1).map(|best| best.text).collect();
        [
            format!("\n{}", titled(&fatal.title)),
            labelled("limit", PLAIN, &[fatal.limit_text]),
            labelled("why", PLAIN, &[fatal.text]),
            labelled("leak", PLAIN, fatal.leak_text.as_slice()),
            labelled("step", PLAIN, fatal.step_text.as_slice()),
            labelled("try", BOLD, &advice),
            also.to_string(),
            next(if fatal.leak_text.is_some() { "leaks" } else { "oom" }, given),
        ]
        .concat()
    };
    FailureFacts::of(process, &process.failures).into_iter().map(one).collect()
}

/// The command to run next. It stays on one line, to be copied.
pub(in crate::report::text) fn next(command: &str, given: &str) -> String {
    format!("  {}\n", paint(DIM, &format!("next    vramtrace {command}{given}")))
}
