//! The sleeps of one device, during which memory is unmapped (as vLLM's sleep mode does): what was
//! unmapped, and what stayed mapped meanwhile.

use vramtrace_format::{DeviceId, Kind, StackId};

use super::layout::{BOLD, DIM, PLAIN, Table, WARN, paint};
use super::options::ReportOptions;
use super::stack::words;
use crate::analysis::sleeps::{ResidentPart, Rest, Sleep};
use crate::analysis::{Process, StackClassifier};
use crate::report::wording::cause_words;
use crate::symbols::{FREE_CACHE, FREE_CACHE_NAME};
use crate::units::{clean, count, seconds, several, size};

/// The tables of a device; empty if it had no sleep.
pub(super) fn of_device(process: &Process, id: DeviceId, shown: ReportOptions) -> String {
    let Some(sleeps) = process.sleeps.get(&id) else { return String::new() };
    let classifier =
        process.who.as_ref().map(|who| StackClassifier::new(&who.symbols, &process.header));
    let mut table = Table::new(4, "lrrrrl");
    let title = match sleeps.count {
        1 => "asleep once".to_string(),
        n => format!("asleep {} times", count(n)),
    };
    table.head(&[&title, "at", "unmapped", "stayed on the card", "back after", "unmapped by"]);
    // The first sleeps and the last one.
    let all = &sleeps.all;
    let few = shown.top.max(2);
    let listed: Vec<&Sleep> = match all.len() <= few {
        true => all.iter().collect(),
        false => all[..few - 1].iter().chain(all.last()).collect(),
    };
    for sleep in listed {
        let back = match sleep.ended_ns {
            Some(ended) => seconds(ended.saturating_sub(sleep.began_ns)),
            None => "not back".into(),
        };
        let by = sleep.went.first().map(|(stack, _)| *stack);
        let more = match sleep.went.len() {
            0 | 1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let by = by.zip(classifier.as_ref()).map(|(stack, names)| place(names, stack));
        table.row([
            format!("  sleep {}", count(sleep.number)),
            seconds(sleep.began_ns),
            size(sleep.asleep),
            size(sleep.stayed),
            back,
            by.map_or_else(String::new, |by| by + &more),
        ]);
    }
    let mut out = format!("\n{}", table.render());
    if all.len() > few {
        let text = format!("    and {} in between", several(sleeps.count - few as u64, "sleep"));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    if let Some(classifier) = &classifier {
        out.push_str(&rests(process, id, classifier, shown.top));
    }
    out
}

/// The table of memory that stayed mapped during sleeps: bytes by owner at the first and the last sleep,
/// and how much they grew a sleep.
fn rests(process: &Process, id: DeviceId, classifier: &StackClassifier, top: usize) -> String {
    let (Some(sleeps), Some(rests)) = (process.sleeps.get(&id), process.rests.get(&id)) else {
        return String::new();
    };
    let cycles = rests.cycles(sleeps);
    let all: Vec<Rest> = rests.by_line(classifier);
    let grown = |rest: &Rest| cycles > 0 && rest.growth(cycles) != 0;
    let listed: Vec<&Rest> = all
        .iter()
        .enumerate()
        .filter(|(at, rest)| rest.bytes.iter().any(|b| *b > 0) && (*at < top || grown(rest)))
        .map(|(_, rest)| rest)
        .collect();
    if listed.is_empty() {
        return String::new();
    }
    let mut table = Table::new(4, "lrrrl");
    table.head(&["stayed while asleep", "first sleep", "last sleep", "a sleep", ""]);
    for rest in listed {
        let growth = rest.growth(cycles);
        let sign = if growth < 0 { "-" } else { "+" };
        let (a_sleep, style) = match growth {
            0 => ("0 B".to_string(), PLAIN),
            _ => (format!("{sign}{}", size(growth.unsigned_abs())), WARN),
        };
        let (name, by) = names(classifier, rest);
        table.styled([
            (format!("  {name}"), PLAIN),
            (size(rest.bytes.first().copied().unwrap_or(0)), PLAIN),
            (size(rest.last()), PLAIN),
            (a_sleep, style),
            (by, BOLD),
        ]);
    }
    format!("\n{}", table.render())
}

/// The kind or library of memory that stayed mapped, and the line of code that allocated it.
fn names(classifier: &StackClassifier, rest: &Rest) -> (String, String) {
    let library = |roles| clean(classifier.library_name(&roles).unwrap_or("?"));
    match rest.what {
        ResidentPart::Context => ("context".into(), String::new()),
        ResidentPart::Reserves(Kind::Graph) => {
            ("graphs, reserved beyond them".into(), String::new())
        }
        ResidentPart::Reserves(_) => ("pools, free in them".into(), String::new()),
        ResidentPart::Driver(cause, stack) => (cause_words(cause).into(), place(classifier, stack)),
        ResidentPart::Blocks(FREE_CACHE) => (FREE_CACHE_NAME.into(), String::new()),
        ResidentPart::Blocks(stack) => {
            (library(classifier.roles_of_block(stack)), place(classifier, stack))
        }
        ResidentPart::Memory(stack) => (library(classifier.roles(stack)), place(classifier, stack)),
    }
}

/// `attention.py:12 forward < train.py:41 main`: the line of code, and the program's line that called
/// it if that is another.
fn place(classifier: &StackClassifier, stack: StackId) -> String {
    let stack = classifier.named(stack);
    let frames = stack.lead().into_iter().chain(stack.caller());
    let frames: Vec<String> = frames.map(|frame| words(frame, false)).collect();
    stack.why_no_frames().map_or_else(|| frames.join(" < "), str::to_string)
}
