//! The sleeps of one device, during which memory is unmapped (as vLLM's sleep mode does): what was
//! unmapped, and what stayed mapped meanwhile.

use vramtrace_format::{DeviceId, Kind};

use super::diff::signed;
use super::layout::{DIM, Table, WARN, line, paint_if, section};
use super::process::ReportOptions;
use super::stack::words;
use crate::analysis::sleeps::ResidentPart;
use crate::analysis::{NamedStack, Process, SleepFacts, StayedFacts};
use crate::symbols::{FREE_CACHE, FREE_CACHE_NAME};
use crate::units::{clean, count, seconds, several, size};

/// The tables of a device; empty if it had no sleep.
pub(super) fn of_device(process: &Process, id: DeviceId, shown: ReportOptions) -> String {
    let Some(facts) = process.sleeps_of(id) else { return String::new() };
    let title = match facts.count {
        1 => "asleep once".to_string(),
        n => format!("asleep {} times", count(n)),
    };
    let titles = [&title, "at", "unmapped", "stayed on the card", "back after", "unmapped by"];
    let mut table = Table::titled(4, "lrrrrl", &titles);
    // The first sleeps and the last one.
    let all = &facts.sleeps;
    let few = shown.top.max(2);
    let hidden = all.len().saturating_sub(few);
    let listed = all.iter().enumerate().filter(|(at, _)| *at < few - 1 || at + 1 == all.len());
    for (_, SleepFacts { sleep, unmapped_by }) in listed {
        let back = sleep.ended_ns.map(|ended| seconds(ended.saturating_sub(sleep.began_ns)));
        let back = back.unwrap_or("not back".into());
        let by = unmapped_by.first().map_or(String::new(), |by| place(&by.stack));
        let by = match unmapped_by.len() {
            2.. if !by.is_empty() => format!("{by} and {} more", unmapped_by.len() - 1),
            _ => by,
        };
        let (name, began) = (format!("  sleep {}", count(sleep.number)), seconds(sleep.began_ns));
        table.row([name, began, size(sleep.asleep_bytes), size(sleep.stayed_bytes), back, by]);
    }
    let mut out = section(table.render());
    if hidden > 0 {
        let text = format!("and {} in between", several(facts.count - few as u64, "sleep"));
        out.push_str(&line(4, DIM, &text));
    }
    out + &stayed(&facts.stayed, shown.top)
}

/// The table of memory that stayed mapped during sleeps: bytes by owner at the first and the last sleep,
/// and how much they grew a sleep.
fn stayed(all: &[StayedFacts], top: usize) -> String {
    let titles = ["stayed while asleep", "first sleep", "last sleep", "a sleep", ""];
    let mut table = Table::titled(4, "lrrrL", &titles);
    for (at, rest) in all.iter().enumerate() {
        let growth = rest.growth_bytes_per_sleep;
        let held = rest.bytes.iter().any(|bytes| *bytes > 0);
        if !held || (at >= top && growth == 0) {
            continue;
        }
        let [first, last] =
            [rest.bytes.first(), rest.bytes.last()].map(|bytes| *bytes.unwrap_or(&0));
        let a_sleep = paint_if(growth.unsigned_abs(), WARN, signed(growth));
        let (name, by) = names(rest);
        table.row([format!("  {name}"), size(first), size(last), a_sleep, by]);
    }
    section(table.render())
}

/// The kind or library of memory that stayed mapped, and the line of code that allocated it.
fn names(rest: &StayedFacts) -> (String, String) {
    let name = match rest.part {
        ResidentPart::Context => "context",
        ResidentPart::Reserves(Kind::Graph) => "graphs, reserved beyond them",
        ResidentPart::Reserves(_) => "pools, free in them",
        ResidentPart::Blocks(FREE_CACHE) => FREE_CACHE_NAME,
        ResidentPart::Driver(cause, _) => return (cause.words().into(), place(&rest.stack)),
        ResidentPart::Blocks(_) | ResidentPart::Memory(_) => {
            let library = clean(rest.library.as_deref().unwrap_or("?"));
            return (library, place(&rest.stack));
        }
    };
    (name.into(), String::new())
}

/// `attention.py:12 forward < train.py:41 main`: the line of code, and the program's line that called
/// it if that is another.
fn place(stack: &NamedStack) -> String {
    match (stack.lead(), stack.caller()) {
        (None, _) => stack.why_no_frames().unwrap_or_default().to_string(),
        (Some(lead), Some(caller)) => format!("{} < {}", words(lead, false), words(caller, false)),
        (Some(lead), None) => words(lead, false),
    }
}
