//! The sleeps of one device, during which memory is unmapped (as vLLM's sleep mode does): what was
//! unmapped, and what stayed mapped meanwhile.

use vramtrace_format::{DeviceId, Kind};

use super::layout::{BOLD, DIM, PLAIN, Table, WARN, paint};
use super::options::ReportOptions;
use super::stack::words;
use crate::analysis::sleeps::ResidentPart;
use crate::analysis::{CodeLine, Process, SleepFacts, StayedFacts};
use crate::report::wording::cause_words;
use crate::symbols::{FREE_CACHE, FREE_CACHE_NAME};
use crate::units::{clean, count, seconds, several, size};

/// The tables of a device; empty if it had no sleep.
pub(super) fn of_device(process: &Process, id: DeviceId, shown: ReportOptions) -> String {
    let Some(facts) = process.sleeps_of(id) else { return String::new() };
    let mut table = Table::new(4, "lrrrrl");
    let title = match facts.count {
        1 => "asleep once".to_string(),
        n => format!("asleep {} times", count(n)),
    };
    table.head(&[&title, "at", "unmapped", "stayed on the card", "back after", "unmapped by"]);
    // The first sleeps and the last one.
    let all = &facts.sleeps;
    let few = shown.top.max(2);
    let listed: Vec<&SleepFacts> = match all.len() <= few {
        true => all.iter().collect(),
        false => all[..few - 1].iter().chain(all.last()).collect(),
    };
    for SleepFacts { sleep, unmapped_by } in listed {
        let back = match sleep.ended_ns {
            Some(ended) => seconds(ended.saturating_sub(sleep.began_ns)),
            None => "not back".into(),
        };
        let by = match &unmapped_by[..] {
            [] => String::new(),
            [by] => place(&by.line),
            [by, more @ ..] => match place(&by.line) {
                by if by.is_empty() => by,
                by => format!("{by} and {} more", more.len()),
            },
        };
        table.row([
            format!("  sleep {}", count(sleep.number)),
            seconds(sleep.began_ns),
            size(sleep.asleep_bytes),
            size(sleep.stayed_bytes),
            back,
            by,
        ]);
    }
    let mut out = format!("\n{}", table.render());
    if all.len() > few {
        let text = format!("    and {} in between", several(facts.count - few as u64, "sleep"));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    out.push_str(&stayed(&facts.stayed, shown.top));
    out
}

/// The table of memory that stayed mapped during sleeps: bytes by owner at the first and the last sleep,
/// and how much they grew a sleep.
fn stayed(all: &[StayedFacts], top: usize) -> String {
    let held = |rest: &StayedFacts| rest.bytes.iter().any(|bytes| *bytes > 0);
    let grown = |rest: &StayedFacts| rest.growth_bytes_per_sleep != 0;
    let all = all.iter().enumerate();
    let listed = all.filter(|(at, rest)| held(rest) && (*at < top || grown(rest)));
    let mut table = Table::new(4, "lrrrl");
    table.head(&["stayed while asleep", "first sleep", "last sleep", "a sleep", ""]);
    let mut any = false;
    for (_, rest) in listed {
        any = true;
        let growth = rest.growth_bytes_per_sleep;
        let sign = if growth < 0 { "-" } else { "+" };
        let (a_sleep, style) = match growth {
            0 => ("0 B".to_string(), PLAIN),
            _ => (format!("{sign}{}", size(growth.unsigned_abs())), WARN),
        };
        let (name, by) = names(rest);
        table.styled([
            (format!("  {name}"), PLAIN),
            (size(rest.bytes.first().copied().unwrap_or(0)), PLAIN),
            (size(rest.bytes.last().copied().unwrap_or(0)), PLAIN),
            (a_sleep, style),
            (by, BOLD),
        ]);
    }
    if any { format!("\n{}", table.render()) } else { String::new() }
}

/// The kind or library of memory that stayed mapped, and the line of code that allocated it.
fn names(rest: &StayedFacts) -> (String, String) {
    let by = || place(&rest.line);
    match rest.part {
        ResidentPart::Context => ("context".into(), String::new()),
        ResidentPart::Reserves(Kind::Graph) => {
            ("graphs, reserved beyond them".into(), String::new())
        }
        ResidentPart::Reserves(_) => ("pools, free in them".into(), String::new()),
        ResidentPart::Driver(cause, _) => (cause_words(cause).into(), by()),
        ResidentPart::Blocks(FREE_CACHE) => (FREE_CACHE_NAME.into(), String::new()),
        ResidentPart::Blocks(_) | ResidentPart::Memory(_) => {
            (clean(rest.library.as_deref().unwrap_or("?")), by())
        }
    }
}

/// `attention.py:12 forward < train.py:41 main`: the line of code, and the program's line that called
/// it if that is another.
fn place(line: &CodeLine) -> String {
    match (&line.lead, &line.caller) {
        (None, _) => line.why_empty.to_string(),
        (Some(lead), Some(caller)) => format!("{} < {}", words(lead, false), words(caller, false)),
        (Some(lead), None) => words(lead, false),
    }
}
