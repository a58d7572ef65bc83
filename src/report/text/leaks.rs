//! The text of `vramtrace leaks`.

use std::collections::BTreeMap;

use super::layout::{BAD, BOLD, DIM, PLAIN, WARN, and_more, bars, caution, line, paint, section};
use super::stack::{called_from, frames, lead, place};
use crate::analysis::leaks::{KeptReason, Leak, Leaks, Verdict};
use crate::analysis::{Level, MergedLeak, NamedStack, merge_leaks, pool_hint};
use crate::report::names;
use crate::report::wording::{self, gpu_name};
use crate::trace::process_name as process;
use crate::units::{clean, count, estimate, seconds, several, size};

/// `rank 2, pid 4711`.
pub fn process_name(found: &Leaks) -> String {
    match found.header.rank {
        Some(rank) => format!("rank {rank}, pid {}", found.header.pid),
        None => process(&found.header, &found.trace),
    }
}

/// A leak on one line.
pub fn one_liner(leak: &Leak, running: bool) -> String {
    let lead = match leak.stack.why_no_frames() {
        None => lead(&leak.stack, false),
        Some(why) => format!("? ({why})"),
    };
    let verdict = leak.verdict.name().replace('_', " ");
    format!("leak by {lead}: {verdict}{}", figures(leak, running))
}

/// ` graphs on GPU 0: 1.50 GiB in 12 blocks, +1.50 MiB/s, full in 3.0 h, 99 % sure`
fn figures(leak: &Leak, running: bool) -> String {
    let of_driver = leak.driver.map_or(String::new(), |driver| format!(" {}", driver.name()));
    let bytes = estimate(leak.bytes, leak.error_bytes);
    let piece = match leak.level {
        Level::Driver if leak.driver.is_some() => "executable graph",
        Level::Driver => "allocation",
        Level::Tensor => "block",
    };
    // The count is 0 for the driver's own memory and for graphs: their allocations are not counted.
    let pieces = (leak.count > 0).then(|| format!(" in {}", several(leak.count, piece)));
    let each = leak.driver.and_then(|driver| driver.each);
    let each = each.map(|each| format!(", {} each", size(each)));
    let full = leak.exhausted_in_s.map(|left| {
        let left = wording::age((left.min(1e10) * 1e9) as u64);
        let full = if running { "full in" } else { "full after another" };
        format!(", {full} {left}")
    });
    format!(
        "{of_driver} on {}: {bytes}{}{}{}{}, {} % sure",
        gpu_name(leak.device),
        pieces.unwrap_or_default(),
        each.unwrap_or_default(),
        growth(leak.rate),
        full.unwrap_or_default(),
        (leak.confidence * 100.0).floor()
    )
}

/// `, +1.50 MiB/s`; empty where nothing grows.
pub(in crate::report) fn growth(rate: Option<f64>) -> String {
    rate.map_or(String::new(), |rate| format!(", +{}/s", size(rate as u64)))
}

/// `leaky.py:7 keeps 1.17 GiB: +594.00 MiB/s since 0.400 s`.
pub(in crate::report) fn keeps(leak: &Leak) -> String {
    let since = leak.since_ns.map_or(String::new(), |ns| format!(" since {}", seconds(ns)));
    let growth = leak.rate.map(|rate| format!(": +{}/s{since}", size(rate as u64)));
    let bytes = estimate(leak.bytes, leak.error_bytes);
    let keeps = match place(&leak.stack) {
        None => format!("memory of an unknown line grew by {bytes}"),
        Some(line) => format!("{line} keeps {bytes}"),
    };
    keeps + &growth.unwrap_or_default()
}

/// The leaks of one process, `top` at most, and the memory that is held and is no leak.
pub fn details(found: &Leaks, top: usize, full: bool) -> String {
    let mut out = head(found);
    for leak in found.leaks.iter().take(top) {
        out.push_str(&section(leak_section(found, leak, full)));
    }
    out.push_str(&section(and_more(2, found.leaks.iter().skip(top).map(|leak| leak.bytes))));
    out + &listed("held, and no leak:", &no_leak(found, full))
}

/// Lines below a title; empty without lines.
fn listed(title: &str, lines: &[String]) -> String {
    let lines: String = lines.iter().map(|text| line(2, PLAIN, text)).collect();
    if lines.is_empty() { lines } else { section(line(2, DIM, title) + &lines) }
}

/// The line that stands for so many stacks, its library, its caller, and `full` all frames of the largest.
fn by(stack: &NamedStack, lead: &str, library: Option<&str>, stacks: u64, full: bool) -> String {
    let library = library.map(|name| format!("  ({})", clean(name))).unwrap_or_default();
    let more =
        (stacks > 1).then(|| format!("by {} that lead to this line", several(stacks, "stack")));
    let notes = called_from(stack, full).into_iter().chain(more).chain(frames(stack, full));
    let notes = notes.map(|note| line(4, DIM, &note));
    format!("    {}{library}\n{}", paint(BOLD, lead), notes.collect::<String>())
}

/// `2 leaks`: of so many findings so many are sure.
fn verdict(all: usize, sure: usize) -> String {
    let (style, verdict) = match (all, sure) {
        (0, _) => (BOLD, "no leak".to_string()),
        (all, 0) => (WARN, several(all as u64, "faint sign") + " of a leak"),
        (_, sure) => (BAD, several(sure as u64, "leak")),
    };
    paint(style, &verdict)
}

/// The verdict, the time that was observed, and warnings.
fn head(found: &Leaks) -> String {
    let sure = found.sure().count();
    let name = paint(BOLD, &process_name(found));
    let verdict = match found.not_judged {
        Some(why) => paint(WARN, &format!("leaks were not judged: {why}")),
        None => verdict(found.leaks.len(), sure),
    };
    let watched = wording::age(found.until_ns.saturating_sub(found.from_ns));
    let warm = wording::age(found.warm_ns.saturating_sub(found.from_ns));
    let running = if found.running { ", it is still running" } else { "" };
    let text = format!("watched for {watched}, judged after a warm-up of {warm}{running}");
    let off = wording::off_lines(&found.off, found.running);
    let warnings = off.into_iter().chain(warnings(found));
    let warnings: String = warnings.map(|text| caution(PLAIN, &text)).collect();
    let watched = found.not_judged.map_or(line(2, DIM, &text), |_| String::new());
    format!("{name}: {verdict}\n{watched}{warnings}")
}

/// What makes the verdict less sure.
fn warnings(found: &Leaks) -> Vec<String> {
    let sampled = found.sampled.as_ref().map(|sampled| {
        let until = seconds(sampled.until_ns);
        let resolution = wording::resolution(sampled.finest_ns, sampled.coarsest_ns);
        format!("events up to {until} were erased: up to there one value in {resolution}")
    });
    let pinned = format!("{} of pinned host memory was not judged", size(found.host_pinned_bytes));
    let begins = found.beginning_lost && sampled.is_none();
    let all = [
        (
            found.samples_blocks,
            "samples of PyTorch's blocks were recorded: bytes of its lines are estimates ± their \
             standard error, numbers of blocks are those of the recorded ones",
        ),
        (sampled.is_some(), sampled.as_deref().unwrap_or_default()),
        (
            begins,
            "the file's history begins late: what is older counts as there from the beginning",
        ),
        (found.host_pinned_bytes >= wording::MUCH_PINNED, &pinned),
        (!found.live_is_known, "events are missing and no checkpoint follows: this may be wrong"),
        (
            found.driver_is_unknown,
            "NVML has no figure of this process: what its executable graphs take cannot be told; \
             VRAMTRACE_EXCLUSIVE=1 where no other process uses the card",
        ),
        (
            !found.has_stacks,
            "this trace has no stacks: all allocations of a device are judged as one; a \
             recording with VRAMTRACE_STACKS=native,python has them",
        ),
    ];
    all.into_iter().filter(|(is, _)| *is).map(|(_, text)| text.to_string()).collect()
}

/// One leak: verdict, bytes, growth, line of code, curve and evidence.
fn leak_section(found: &Leaks, leak: &Leak, full: bool) -> String {
    let verdict = match leak.verdict {
        Verdict::Growing => "GROWING",
        Verdict::NeverFreed => "NEVER FREED",
        Verdict::FreedAtEnd => "FREED ONLY AT THE END",
    };
    let style = if leak.is_sure() { BAD } else { WARN };
    let figures = figures(leak, found.running);
    let mut out = format!("  {}{figures}\n", paint(style, verdict));
    let by_no_call = leak.driver.is_some_and(|driver| driver.cause.is_none());
    let lead = match leak.stack.why_no_frames() {
        Some(_) if by_no_call => {
            "in NVML's figure for the process, after no call that is followed".to_string()
        }
        _ => lead(&leak.stack, full),
    };
    out.push_str(&by(&leak.stack, &lead, leak.library.as_deref(), leak.stacks, full));
    let curve = curve(&leak.shape, 60);
    let evidence = std::iter::once(&curve).chain(&leak.evidence);
    evidence.for_each(|text| out.push_str(&line(4, PLAIN, text)));
    out
}

/// The leaks of several processes. A leak that several have is printed once, with their names.
pub fn of_run(found: &[Leaks], top: usize, full: bool) -> String {
    let all = merge_leaks(found);
    let sure = all.iter().filter(|merged| shown(found, merged).1.is_sure()).count();
    let processes = format!("{} processes", count(found.len() as u64));
    let mut out = format!("{}: {}\n", paint(BOLD, &processes), verdict(all.len(), sure));
    let mut unsure: BTreeMap<String, Vec<&Leaks>> = BTreeMap::new();
    for leaks in found {
        warnings(leaks).into_iter().for_each(|text| unsure.entry(text).or_default().push(leaks));
    }
    for (what, those) in unsure {
        out.push_str(&caution(PLAIN, &format!("{}: {what}", named(those.into_iter()))));
    }
    for merged in all.iter().take(top) {
        let (leaks, leak) = shown(found, merged);
        out.push_str(&section(leak_section(leaks, leak, full)));
        let places = &merged.processes;
        let who = match places.len() == found.len() {
            true => format!("in all {}", count(found.len() as u64)),
            false => format!("in {}", named(places.iter().map(|of| &found[of.process]))),
        };
        let bytes = || places.iter().map(|of| of.bytes);
        let text = match (bytes().min(), bytes().max()) {
            (Some(least), Some(most)) if places.len() > 1 => format!(
                "{who}: {} together, {} to {} each; shown is that of {}",
                size(merged.bytes),
                size(least),
                size(most),
                process_name(leaks)
            ),
            _ => who,
        };
        out.push_str(&line(4, BOLD, &text));
    }
    out + &section(and_more(2, all.iter().skip(top).map(|leak| leak.bytes)))
}

/// The leak that represents a merged one, and its process.
fn shown<'f>(found: &'f [Leaks], merged: &MergedLeak) -> (&'f Leaks, &'f Leak) {
    let (process, leak) = merged.shown;
    (&found[process], &found[process].leaks[leak])
}

/// A short name for these processes.
fn named<'f>(found: impl Iterator<Item = &'f Leaks>) -> String {
    names::several(found.map(|leaks| (&leaks.header, leaks.trace.as_path())))
}

/// `   12.00 MiB  steady since warm-up`.
fn of_bytes(bytes: u64, what: String) -> String {
    format!("{:>12}  {what}", size(bytes))
}

/// Why held memory is no leak.
fn kept_words(why: KeptReason) -> &'static str {
    match why {
        KeptReason::Steady => "steady since warm-up",
        KeptReason::Stopped => "grew, and stopped",
        KeptReason::Moves => "comes and goes",
        KeptReason::Unjudged => {
            "grew a few times, or in one go as when a program loads: not judged"
        }
        KeptReason::Outgrown => "in a pool of ever larger pieces, too small for later requests",
    }
}

/// The memory that is held and is no leak.
fn no_leak(found: &Leaks, full: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for kept in &found.kept {
        let caller = called_from(&kept.largest, full).map(|caller| format!(", {caller}"));
        let most = lead(&kept.largest, full) + &caller.unwrap_or_default();
        let why = kept.largest.why_no_frames();
        let largest = why.map_or(format!("; the most by {most}"), |_| String::new());
        let (why, stacks) = (kept_words(kept.why), several(kept.stacks, "stack"));
        lines.push(of_bytes(kept.bytes, format!("{why} ({stacks}{largest})")));
    }
    for pooled in &found.pooled {
        let what = if pooled.free { "kept free" } else { "kept" };
        let mut words = format!("{what} by {} in its pool", clean(&pooled.library));
        if let Some(rate) = pooled.rate {
            let hint = pool_hint(&pooled.library)
                .unwrap_or("a trace with its blocks separates a leak from fragmentation");
            words.push_str(&format!(", which GROWS by {}/s: {hint}", size(rate as u64)));
        }
        lines.push(of_bytes(pooled.bytes, words));
    }
    for of in &found.suppressed {
        let leaks = several(of.leaks, "leak");
        let words = format!("{leaks} suppressed by line {} of the file", of.line);
        lines.push(of_bytes(of.bytes, words));
    }
    lines
}

/// A curve of at most `width` bars. Each shows the lowest value of its interval.
fn curve(values: &[u64], width: usize) -> String {
    let part = values.len().div_ceil(width).max(1);
    let lowest = values.chunks(part).map(|chunk| chunk.iter().copied().min().unwrap_or(0));
    bars(&lowest.collect::<Vec<_>>(), values.iter().copied().max().unwrap_or(0))
}
