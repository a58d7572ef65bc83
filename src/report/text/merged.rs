//! The holders of several processes. A holder that several have is listed once, with their names.

use std::path::Path;

use vramtrace_format::{Header, SummaryMoment};

use super::holders::{ListingOptions, lead_words, listed, words};
use super::layout::{BOLD, DIM, PLAIN, Table, paint};
use crate::analysis::ranks::{Holders, Merged, Rank, holders_of, merge};
use crate::analysis::{GroupBy, StackClassifier, with_cause};
use crate::report::names;
use crate::symbols::FREE_CACHE;
use crate::units::{clean, count, size};

/// What the name of a process is made from.
pub type Named<'p> = (&'p Header, &'p Path);

/// A section of the overview. Empty if no holder is known.
pub fn of_ranks(processes: &[Rank], moment: SummaryMoment, title: &str, top: usize) -> String {
    let classifiers: Vec<StackClassifier> =
        processes.iter().map(|rank| StackClassifier::new(&rank.symbols, &rank.header)).collect();
    let sources = holders_of(processes, &classifiers, moment);
    let named: Vec<Named> =
        processes.iter().map(|rank| (&rank.header, rank.trace.as_path())).collect();
    let total = sources.iter().flat_map(|source| &source.holders).map(|holder| holder.bytes);
    let total = total.fold(0, u64::saturating_add);
    let all = merge(&sources, GroupBy::Line);
    if all.is_empty() {
        return String::new();
    }
    let how = ListingOptions { by: GroupBy::Line, top, full: false, when: "" };
    format!("\n{}", table(&sources, &all, &named, (title, total), how))
}

/// One row per merged holder. `named`: indexed by the number of the process.
pub fn table(
    sources: &[Holders],
    all: &[Merged],
    named: &[Named],
    (title, total): (&str, u64),
    how: ListingOptions,
) -> String {
    let mut table = Table::new(4, "lrrrlrll");
    let last = if how.by == GroupBy::Library { "the most of it" } else { "" };
    table.head(&[title, "bytes", "share", "count", "held by", "at most", "library", last]);
    let share = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / total.max(1) as f64);
    let of_largest = |merged: &Merged| &sources[merged.largest.0].holders[merged.largest.1];
    // No line holds what is free in the caches.
    let (in_caches, all): (Vec<&Merged>, Vec<&Merged>) =
        all.iter().partition(|merged| of_largest(merged).stack == FREE_CACHE);
    for merged in all.iter().take(how.top) {
        let (classifier, holder) = (sources[merged.largest.0].classifier, of_largest(merged));
        let share = share(merged.bytes);
        let lead = match classifier.frame(holder.stack, holder.lead) {
            Some(frame) => lead_words(classifier, holder.stack, frame, how),
            None => classifier.symbols.why_empty(holder.stack).to_string(),
        };
        let who = match merged.processes.len() {
            all if all == named.len() => "all".to_string(),
            _ => names::several(merged.processes.iter().map(|(process, _)| named[*process])),
        };
        let most = match merged.processes.len() {
            1 => String::new(),
            _ => size(merged.most().1),
        };
        table.styled([
            (String::new(), PLAIN),
            (size(merged.bytes), PLAIN),
            (share, PLAIN),
            (count(merged.count), PLAIN),
            (who, PLAIN),
            (most, PLAIN),
            (clean(holder.library.as_deref().unwrap_or("?")), PLAIN),
            (with_cause(holder.cause, lead), BOLD),
        ]);
        let mut under = |text: String| {
            let empty = || (String::new(), PLAIN);
            let line = [empty(), empty(), empty(), empty(), empty(), empty(), empty(), (text, DIM)];
            table.styled(line);
        };
        if let Some(caller) = classifier.frame(holder.stack, holder.caller) {
            under(format!("called from {}", words(caller, how)));
        }
        if how.full {
            for frame in classifier.symbols.stack(holder.stack) {
                under(format!("  {}", listed(frame, how)));
            }
        }
    }
    let mut out = table.render();
    if all.len() > how.top {
        let rest = &all[how.top..];
        let bytes = rest.iter().map(|merged| merged.bytes).fold(0, u64::saturating_add);
        let text = format!("    and {} more, {} together", count(rest.len() as u64), size(bytes));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    let free = in_caches.iter().map(|merged| merged.bytes).fold(0, u64::saturating_add);
    if free > 0 {
        out.push_str(&format!("    free in PyTorch's caches: {} ({})\n", size(free), share(free)));
    }
    out
}
