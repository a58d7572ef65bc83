//! The lines with which a post-mortem begins, each part with its label.

use super::super::layout::{BAD, BOLD, DIM, PLAIN, paint, room, wrapped};
use super::super::stack::place;
use super::wording;
use crate::analysis::oom::{AtStep, PostMortem, advice};
use crate::analysis::{Level, NamedStack, Process, StackClassifier};
use crate::facts::ProcessId;
use crate::report::shell;
use crate::symbols::Symbols;
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
pub(super) fn title(
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
    format!("{process}{at}: {who} asked for {}{place}", size(one.oom.size))
}

/// The failures with which a process ended: the stack that asked, the title, and the step of a training.
fn named(process: &Process) -> Vec<(&PostMortem, NamedStack, String, Option<String>)> {
    let definitions = &process.definitions;
    let asked = process.fatal.iter().map(|one| one.oom.stack);
    let symbols = Symbols::of(definitions, &process.header, asked);
    let classifier = StackClassifier::new(&symbols, &process.header);
    let named = process.fatal.iter().map(|fatal| {
        let oom = &fatal.oom;
        let stack = classifier.named(oom.stack);
        let asked = (&*definitions.site_api_name(oom.site), definitions.has_times());
        let title = title(ProcessId::of(&process.header), fatal, &stack, asked);
        let step = process.steps.as_ref().and_then(|steps| AtStep::of(steps, oom));
        (fatal, stack, title, step.map(wording::step))
    });
    named.collect()
}

/// The same for the page, which has a figure of what was in use, and what to try: each line with its label.
pub(in crate::report) fn of_page(process: &Process) -> String {
    let one = |(fatal, stack, title, step): (&PostMortem, NamedStack, String, Option<String>)| {
        let line = place(&stack).map(|line| format!("{} asked by {line}", size(fatal.oom.size)));
        let [line, step] = [("LINE", line), ("STEP", step)]
            .map(|(label, text)| text.map_or(String::new(), |text| format!("{label}   {text}\n")));
        let (limit, why) = (wording::limit(fatal), wording::why(fatal));
        format!("{TITLE}  {title}\n{line}CAUSE  {why}\nLIMIT  {limit}\n{step}")
    };
    named(process).into_iter().map(one).collect()
}

/// The short post-mortems of a process; empty if it did not end out of memory.
pub(in crate::report) fn fatal(process: &Process) -> String {
    fatal_of(process, &format!(" {}", shell::path(&process.trace)), "")
}

/// As [`fatal`]. `given`: the arguments that name the process in a command, each after a space. `also`: what became
/// of other processes.
pub(in crate::report) fn fatal_of(process: &Process, given: &str, also: &str) -> String {
    let one = |(fatal, _, title, step): (&PostMortem, _, String, Option<String>)| {
        let advice: Vec<String> = advice(fatal).iter().take(1).map(wording::advice).collect();
        [
            format!("\n{}", titled(&title)),
            labelled("limit", PLAIN, &[wording::limit(fatal)]),
            labelled("why", PLAIN, &[wording::why(fatal)]),
            labelled("step", PLAIN, step.as_slice()),
            labelled("try", BOLD, &advice),
            also.to_string(),
            next("oom", given),
        ]
        .concat()
    };
    named(process).into_iter().map(one).collect()
}

/// The command to run next. It stays on one line, to be copied.
pub(in crate::report::text) fn next(command: &str, given: &str) -> String {
    format!("  {}\n", paint(DIM, &format!("next    vramtrace {command}{given}")))
}
