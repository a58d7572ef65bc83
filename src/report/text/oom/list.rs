//! The list of all out-of-memory failures of a run, and the lines for processes without one and for refusals that were not
//! reported.

use vramtrace_format::{Refused, oom};

use super::super::layout::{BAD, BOLD, DIM, PLAIN, Table, line, paint, section};
use super::super::stack::place;
use super::wording;
use crate::analysis::Level;
use crate::analysis::oom::NotReported;
use crate::report::names;
use crate::report::oom::{DeviceRefusals, ListedOom, ProcessRefusals};
use crate::report::wording::{cuda_name, cuda_result};
use crate::trace::process_name;
use crate::units::{clean, count, seconds, several, size};

/// The list of all failures of the run; empty for fewer than two. Those with a post-mortem are bold. Only the last `most`
/// are listed.
pub fn others(all: &[ListedOom], most: usize) -> String {
    if all.len() < 2 {
        return String::new();
    }
    let titles = ["", "at", "", "asked for", "requests", "by", "", ""];
    let mut table = Table::titled(2, "lrlrrlld", &titles);
    let hidden = all.len().saturating_sub(most);
    for one in &all[hidden..] {
        let ListedOom { oom, .. } = one;
        let style = if one.post_mortem.is_some() { BOLD } else { PLAIN };
        let by = match (oom.refusal, oom.level) {
            (Some(refusal), _) => refusal.refused.by.name(),
            (None, Level::Tensor) => "torch",
            (None, Level::Driver) => "?",
        };
        table.row([
            paint(style, &count(one.number as u64)),
            seconds(oom.time_ns),
            format!(
                "{} {}",
                process_name(one.trace.header(), one.trace.path()),
                wording::device(oom)
            ),
            paint(style, &size(oom.size)),
            count(oom.requests),
            by.to_string(),
            place(&one.stack).unwrap_or_default(),
            if oom.went_on { "went on" } else { "" }.into(),
        ]);
    }
    let title = format!("{} out-of-memories in this run", count(all.len() as u64));
    let mut out = section(line(0, BOLD, &title) + &table.render());
    if hidden > 0 {
        let text = format!("and {} before them (--json has all)", count(hidden as u64));
        out.push_str(&line(2, DIM, &text));
    }
    out + &line(2, DIM, "vramtrace oom --at N shows one of them, --at all all")
}

/// One line for several processes without an out-of-memory failure.
pub fn none_of(quiet: &[ProcessRefusals]) -> String {
    let name = names::several(quiet.iter().map(|process| (process.header, process.trace)));
    let devices = || quiet.iter().flat_map(|process| &process.devices);
    let refused = devices().map(|device| device.figures.refused()).fold(0, u64::saturating_add);
    let absorbed = devices().map(|device| device.absorbed).fold(0, u64::saturating_add);
    let rest = format!("{}, {} absorbed", several(refused, "refusal"), count(absorbed));
    none_line(&format!("{name}: "), &rest)
}

fn none_line(name: &str, rest: &str) -> String {
    let rest = if rest.is_empty() { "no GPU memory was used" } else { rest };
    format!("{}{}; {rest}\n", clean(name), paint(BOLD, "no out-of-memory"))
}

/// One line for a process without an out-of-memory failure. `name`: with a colon, or empty where there is one process only.
pub fn none(name: &str, quiet: &ProcessRefusals) -> String {
    let device = |device: &DeviceRefusals| {
        let refused = device.figures.refused();
        let refusals = several(refused, "refusal");
        let refused = match (refused, device.absorbed) {
            (0, _) => "no refusal".to_string(),
            (refused, absorbed) if refused == absorbed => format!("{refusals}, all absorbed"),
            (_, absorbed) => {
                format!("{refusals}, {} absorbed of those in the file", count(absorbed))
            }
        };
        let warned = match device.would_have_refused {
            0 => String::new(),
            n => format!(", {} passed the cap, which only warns", several(n, "request")),
        };
        format!(
            "{}: {refused}{warned}, {}",
            cuda_name(device.figures.id),
            wording::peak(device.state)
        )
    };
    none_line(name, &quiet.devices.iter().map(device).collect::<Vec<_>>().join("; "))
}

/// A refusal that a library did not report, and the error that another API function returned later. `who`: the name of the
/// process with a space after it, or empty.
pub fn swallowed(who: &str, one: &NotReported) -> String {
    let ended = one.exit_status.map(|status| format!("; the process ended with status {status}"));
    let Refused { by, counted, limit, .. } = one.refused;
    let refused = format!("{} was refused {}", clean(&one.library), size(one.size_bytes));
    format!(
        "{}  {who}{} at {}: {} ({}) and went on; limit: {}\n  {}      {} returned {} at {}{}\n",
        paint(BAD, "REFUSAL NOT REPORTED"),
        cuda_name(one.device),
        seconds(one.time_ns),
        paint(BOLD, &refused),
        clean(&one.api),
        oom::limit(one.cause, by, counted, limit, None),
        paint(DIM, "next"),
        clean(&one.next_api),
        cuda_result(one.next_result),
        seconds(one.next_ns),
        ended.unwrap_or_default(),
    )
}
