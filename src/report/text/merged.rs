//! The holders of several processes. A holder that several have is listed once, with their names.

use std::path::Path;

use vramtrace_format::{Header, SummaryMoment};

use super::holders::ListingOptions;
use super::layout::{BOLD, PLAIN, Table, and_more};
use super::stack::{called_from, frames, lead};
use crate::analysis::ranks::{MergedHolder, ProcessFigures, holders_of, merge};
use crate::analysis::{GroupBy, with_cause};
use crate::report::names;
use crate::units::{clean, count, size};

/// What the name of a process is made from.
pub type Named<'p> = (&'p Header, &'p Path);

/// A section of the overview. Empty if no holder is known.
pub fn of_ranks(
    processes: &[ProcessFigures],
    moment: SummaryMoment,
    title: &str,
    top: usize,
) -> String {
    let named: Vec<Named> =
        processes.iter().map(|rank| (&rank.header, rank.trace.as_path())).collect();
    let all = merge(&holders_of(processes, moment), GroupBy::Line);
    if all.is_empty() {
        return String::new();
    }
    let how = ListingOptions { top, ..ListingOptions::default() };
    format!("\n{}", table(&all, &named, title, how))
}

/// One row per merged holder. `named`: indexed by the number of the process.
pub fn table(all: &[MergedHolder], named: &[Named], title: &str, how: ListingOptions) -> String {
    let mut table = Table::new(4, "lrrrlrll");
    let last = if how.by == GroupBy::Library { "the most of it" } else { "" };
    table.head(&[title, "bytes", "share", "count", "held by", "at most", "library", last]);
    let total = all.iter().map(|merged| merged.bytes).fold(0, u64::saturating_add);
    let share = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / total.max(1) as f64);
    // No line holds what is free in the caches.
    let (in_caches, all): (Vec<&MergedHolder>, Vec<&MergedHolder>) =
        all.iter().partition(|merged| merged.stack.is_free_cache());
    for merged in all.iter().take(how.top) {
        let who = match merged.processes.len() {
            all if all == named.len() => "all".to_string(),
            _ => names::several(merged.processes.iter().map(|held| named[held.process])),
        };
        let most = match merged.processes.len() {
            1 => String::new(),
            _ => size(merged.processes.iter().map(|held| held.bytes).max().unwrap_or(0)),
        };
        table.styled([
            (String::new(), PLAIN),
            (size(merged.bytes), PLAIN),
            (share(merged.bytes), PLAIN),
            (count(merged.count), PLAIN),
            (who, PLAIN),
            (most, PLAIN),
            (clean(merged.library.as_deref().unwrap_or("?")), PLAIN),
            (with_cause(merged.driver_memory, lead(&merged.stack, how.full)), BOLD),
        ]);
        let caller = called_from(&merged.stack, how.full);
        let notes = caller.into_iter().chain(frames(&merged.stack, how.full));
        notes.for_each(|note| table.under(note));
    }
    let mut out = table.render();
    out.push_str(&and_more("    ", all.iter().skip(how.top).map(|merged| merged.bytes)));
    let free = in_caches.iter().map(|merged| merged.bytes).fold(0, u64::saturating_add);
    if free > 0 {
        out.push_str(&format!("    free in PyTorch's caches: {} ({})\n", size(free), share(free)));
    }
    out
}
