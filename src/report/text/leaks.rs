//! The text of `vramtrace leaks`.

use super::holders::{ListingOptions, lead_words, listed, words as frame_words};
use super::layout::{BAD, BOLD, DIM, PLAIN, WARN, paint};
use crate::analysis::Level;
use crate::analysis::leaks::{HeldReason, KeptReason, LargerPieces, Leak, Leaks, Verdict};
use crate::analysis::{GroupBy, StackClassifier, pool_hint};
use crate::analysis::{MergedLeak, merge_leaks};
use crate::report::leak_evidence::evidence;
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

/// One line per leak, in the order of [`Leaks::leaks`].
pub fn one_liners(found: &Leaks) -> Vec<String> {
    let classifier = StackClassifier::new(&found.symbols, &found.header);
    let how = ListingOptions { by: GroupBy::Line, top: 1, full: false, when: "" };
    let line = |leak: &Leak| {
        let roles = classifier.roles_at(leak.stack, leak.level);
        let lead = match classifier.frame(leak.stack, roles.lead) {
            Some(frame) => lead_words(&classifier, leak.stack, frame, how),
            None => format!("? ({})", found.symbols.why_empty(leak.stack)),
        };
        let rate = match leak.rate() {
            Some(rate) => format!(", +{}/s", size(rate as u64)),
            None => String::new(),
        };
        let of_driver = leak.driver.map_or(String::new(), |driver| format!(" {}", driver.name()));
        format!(
            "leak on {} by {lead}: {}{of_driver}, {}{rate}, {} % sure",
            gpu_name(leak.device),
            leak.verdict.name().replace('_', " "),
            estimate(leak.bytes, leak.error),
            (leak.confidence * 100.0).floor(),
        )
    };
    found.leaks.iter().map(line).collect()
}

/// The leaks of one process, `top` at most, and the memory that is held and is no leak.
pub fn details(found: &Leaks, top: usize, full: bool) -> String {
    let mut out = head(found);
    let classifier = StackClassifier::new(&found.symbols, &found.header);
    let how = ListingOptions { by: GroupBy::Line, top, full, when: "" };
    for leak in found.leaks.iter().take(top) {
        out.push('\n');
        out.push_str(&leak_section(found, &classifier, leak, how));
    }
    if found.leaks.len() > top {
        let rest = &found.leaks[top..];
        let bytes = rest.iter().map(|leak| leak.bytes).fold(0, u64::saturating_add);
        let text = format!("\n  and {} more, {} together", count(rest.len() as u64), size(bytes));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    for of in found.larger_pieces.iter().take(top) {
        out.push_str(&format!("\n{}", larger_section(found, &classifier, of, how)));
    }
    out.push_str(&no_leak(found, &classifier, how));
    out
}

/// A pool of ever larger pieces: no leak, and what to do.
fn larger_section(
    found: &Leaks,
    classifier: &StackClassifier,
    of: &LargerPieces,
    how: ListingOptions,
) -> String {
    let rate = of.bytes_per_second.map(|rate| format!(", +{}/s", size(rate as u64)));
    let mut out = format!(
        "  {}  {}: {} in {}{}; no leak\n",
        paint(WARN, "POOL OF EVER LARGER PIECES"),
        gpu_name(of.device),
        paint(BOLD, &size(of.bytes)),
        several(of.pieces, "piece"),
        rate.unwrap_or_default(),
    );
    let roles = classifier.roles(of.stack);
    let library = classifier.library_name(&roles).map(|name| format!("  ({})", clean(name)));
    let lead = match classifier.frame(of.stack, roles.lead) {
        Some(frame) => lead_words(classifier, of.stack, frame, how),
        None => found.symbols.why_empty(of.stack).to_string(),
    };
    out.push_str(&format!("    {}{}\n", paint(BOLD, &lead), library.unwrap_or_default()));
    if let Some(caller) = classifier.frame(of.stack, roles.caller) {
        let text = format!("    called from {}", frame_words(caller, how));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    if how.full {
        for frame in found.symbols.stack(of.stack) {
            let text = format!("      {}", listed(frame, how));
            out.push_str(&format!("{}\n", paint(DIM, &text)));
        }
    }
    let exact = size(of.exact_bytes);
    out.push_str(&format!(
        "    each piece is larger than those before, which are kept and too small for later requests\n    \
         exact size: {exact}, if a piece that is too small is freed before a larger one is allocated\n"
    ));
    out
}

/// The verdict, the time that was observed, and warnings.
fn head(found: &Leaks) -> String {
    let name = process_name(found);
    let sure = found.leaks.iter().filter(|leak| leak.is_sure()).count();
    let (style, verdict) = match (found.leaks.len(), sure) {
        (0, _) => (BOLD, "no leak".to_string()),
        (all, 0) => (WARN, several(all as u64, "faint sign") + " of a leak"),
        (_, sure) => (BAD, several(sure as u64, "leak")),
    };
    let mut out = format!("{}: {}\n", paint(BOLD, &name), paint(style, &verdict));
    let watched = found.until_ns.saturating_sub(found.from_ns);
    let running = if found.running { ", it is still running" } else { "" };
    let text = format!(
        "  watched for {}, judged after a warm-up of {}{running}",
        wording::age(watched),
        wording::age(found.warm_ns.saturating_sub(found.from_ns)),
    );
    out.push_str(&format!("{}\n", paint(DIM, &text)));
    let mut warn = |text: String| {
        out.push_str(&format!("  {} {text}\n", paint(WARN, "!")));
    };
    wording::off_lines(&found.off, found.running).into_iter().for_each(&mut warn);
    if found.definitions.samples_blocks() {
        warn(
            "samples of PyTorch's blocks were recorded: bytes of its lines are estimates ±".into(),
        );
        warn("  their standard error, numbers of blocks are those of the recorded ones".into());
    }
    if let Some(sampled) = &found.sampled {
        warn(format!(
            "events up to {} were erased: up to there one value in {}",
            seconds(sampled.until_ns),
            wording::resolution(sampled.finest_ns, sampled.coarsest_ns)
        ));
    } else if found.beginning_lost {
        warn(format!(
            "the file's history begins at {}: what is older counts as there from the beginning",
            seconds(found.from_ns)
        ));
    }
    if !found.live_is_known {
        warn("events are missing and no checkpoint follows: this may be wrong".into());
    }
    if found.driver_is_unknown {
        warn(
            "NVML has no figure of this process: what its executable graphs take cannot be told; \
             VRAMTRACE_EXCLUSIVE=1 where no other process uses the card"
                .into(),
        );
    }
    if found.definitions.stacks().is_empty() {
        warn(
            "this trace has no stacks: all allocations of a device are judged as one; record it \
             with VRAMTRACE_STACKS=native,python"
                .into(),
        );
    }
    out
}

/// One leak: verdict, bytes, growth, line of code, curve and evidence.
fn leak_section(
    found: &Leaks,
    classifier: &StackClassifier,
    leak: &Leak,
    how: ListingOptions,
) -> String {
    let verdict = match leak.verdict {
        Verdict::Growing => "GROWING",
        Verdict::NeverFreed => "NEVER FREED",
        Verdict::FreedAtEnd => "FREED ONLY AT THE END",
    };
    let of_driver = leak.driver.map(|driver| format!(" {}", driver.name()));
    let verdict = format!("{verdict}{}", of_driver.unwrap_or_default());
    let sure = (leak.confidence * 100.0).floor();
    let style = if leak.is_sure() { BAD } else { WARN };
    let piece = match leak.level {
        Level::Driver if leak.driver.is_some() => "executable graph",
        Level::Driver => "allocation",
        Level::Tensor => "block",
    };
    let device = gpu_name(leak.device);
    let mut out = format!(
        "  {}  {}: {}",
        paint(style, &verdict),
        device,
        paint(BOLD, &estimate(leak.bytes, leak.error))
    );
    // The count is 0 for the driver's own memory and for graphs: their allocations are not counted.
    if leak.count > 0 {
        out.push_str(&format!(" in {}", several(leak.count, piece)));
    }
    if let Some(each) = leak.driver.and_then(|driver| driver.each) {
        out.push_str(&format!(", {} each", size(each)));
    }
    if let Some(rate) = leak.rate() {
        out.push_str(&format!(", +{}/s", size(rate as u64)));
    }
    if let Some(left) = leak.exhausted_in_s {
        let left = wording::age((left.min(1e10) * 1e9) as u64);
        let full = if found.running { "full in" } else { "full after another" };
        out.push_str(&format!(", {}", paint(BOLD, &format!("{full} {left}"))));
    }
    out.push_str(&format!(", {sure} % sure\n"));
    let roles = classifier.roles_at(leak.stack, leak.level);
    let library = classifier.library_name(&roles).map(|name| format!("  ({})", clean(name)));
    let lead = match classifier.frame(leak.stack, roles.lead) {
        Some(frame) => lead_words(classifier, leak.stack, frame, how),
        None if leak.driver.is_some_and(|driver| driver.cause.is_none()) => {
            "in NVML's figure for the process, after no call that is followed".to_string()
        }
        None => found.symbols.why_empty(leak.stack).to_string(),
    };
    out.push_str(&format!("    {}{}\n", paint(BOLD, &lead), library.unwrap_or_default()));
    if let Some(caller) = classifier.frame(leak.stack, roles.caller) {
        let text = format!("    called from {}", frame_words(caller, how));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    if leak.stacks > 1 {
        let text = format!("    by {} that lead to this line", several(leak.stacks, "stack"));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    if how.full {
        for frame in found.symbols.stack(leak.stack) {
            let text = format!("      {}", listed(frame, how));
            out.push_str(&format!("{}\n", paint(DIM, &text)));
        }
    }
    out.push_str(&format!("    {}\n", paint(PLAIN, &sparkline(&leak.shape, 60))));
    for line in evidence(found, leak) {
        out.push_str(&format!("    {line}\n"));
    }
    out
}

/// The leaks of several processes. A leak that several have is printed once, with their names.
pub fn of_run(found: &[Leaks], top: usize, full: bool) -> String {
    let all = merge_leaks(found);
    let sure = |merged: &&MergedLeak| shown(found, merged).1.is_sure();
    let sure = all.iter().filter(sure).count();
    let (style, verdict) = match (all.len(), sure) {
        (0, _) => (BOLD, "no leak".to_string()),
        (all, 0) => (WARN, several(all as u64, "faint sign") + " of a leak"),
        (_, sure) => (BAD, several(sure as u64, "leak")),
    };
    let processes = format!("{} processes", count(found.len() as u64));
    let mut out = format!("{}: {}\n", paint(BOLD, &processes), paint(style, &verdict));
    let unsure = |what: &str, is: fn(&Leaks) -> bool| {
        let those: Vec<&Leaks> = found.iter().filter(|leaks| is(leaks)).collect();
        match those.is_empty() {
            true => String::new(),
            false => format!("  {} {}: {what}\n", paint(WARN, "!"), named(those.iter().copied())),
        }
    };
    out.push_str(&unsure(
        "the file's history begins late: what is older counts as there from the beginning",
        |leaks| leaks.beginning_lost && leaks.sampled.is_none(),
    ));
    out.push_str(&unsure(
        "events are missing and no checkpoint follows: this may be wrong",
        |leaks| !leaks.live_is_known,
    ));
    out.push_str(&unsure("no stacks: all allocations of a device are judged as one", |leaks| {
        leaks.definitions.stacks().is_empty()
    }));
    let how = ListingOptions { by: GroupBy::Line, top, full, when: "" };
    for merged in all.iter().take(top) {
        let (leaks, leak) = shown(found, merged);
        let classifier = StackClassifier::new(&leaks.symbols, &leaks.header);
        out.push_str(&format!("\n{}", leak_section(leaks, &classifier, leak, how)));
        let those = merged.places.iter().map(|(process, _)| &found[*process]);
        let who = match merged.places.len() == found.len() {
            true => format!("in all {}", count(found.len() as u64)),
            false => format!("in {}", named(those)),
        };
        let (least, most) = merged.range(found);
        let text = match merged.places.len() {
            1 => who,
            _ => format!(
                "{who}: {} together, {} to {} each; shown is that of {}",
                size(merged.bytes),
                size(least),
                size(most),
                process_name(leaks)
            ),
        };
        out.push_str(&format!("    {}\n", paint(BOLD, &text)));
    }
    if all.len() > top {
        let rest = &all[top..];
        let bytes = rest.iter().map(|leak| leak.bytes).fold(0, u64::saturating_add);
        let text = format!("\n  and {} more, {} together", count(rest.len() as u64), size(bytes));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    out.push_str(&no_leak_of_run(found));
    out
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

/// The memory that several processes hold and that is no leak, added up.
fn no_leak_of_run(found: &[Leaks]) -> String {
    let mut kept: Vec<(KeptReason, u64, u64)> = Vec::new();
    for one in found.iter().flat_map(|leaks| &leaks.kept) {
        match kept.iter_mut().find(|(why, _, _)| *why == one.why) {
            Some((_, bytes, stacks)) => {
                (*bytes, *stacks) = (bytes.saturating_add(one.bytes), *stacks + one.stacks);
            }
            None => kept.push((one.why, one.bytes, one.stacks)),
        }
    }
    let mut lines: Vec<String> = kept
        .into_iter()
        .map(|(why, bytes, stacks)| {
            format!("{:>12}  {} ({})", size(bytes), kept_words(why), several(stacks, "stack"))
        })
        .collect();
    let mut pooled: Vec<(&str, bool, u64)> = Vec::new();
    for one in found.iter().flat_map(|leaks| &leaks.pooled) {
        let same = |known: &&mut (&str, bool, u64)| known.0 == one.library && known.1 == one.free;
        match pooled.iter_mut().find(same) {
            Some((_, _, bytes)) => *bytes = bytes.saturating_add(one.bytes),
            None => pooled.push((&one.library, one.free, one.bytes)),
        }
    }
    lines.extend(pooled.into_iter().map(|(library, free, bytes)| {
        let what = if free { "kept free" } else { "kept" };
        format!("{:>12}  {what} by {} in its pool", size(bytes), clean(library))
    }));
    if lines.is_empty() {
        return String::new();
    }
    let title = paint(DIM, "held by all of them together, and no leak:");
    let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
    format!("\n  {title}\n{lines}")
}

/// Why held memory is no leak.
fn kept_words(why: KeptReason) -> &'static str {
    match why {
        KeptReason::Steady => "steady since warm-up",
        KeptReason::Stopped => "grew, and stopped: a cache that is full",
        KeptReason::Moves => "comes and goes",
    }
}

/// The memory that is held and is no leak.
fn no_leak(found: &Leaks, classifier: &StackClassifier, how: ListingOptions) -> String {
    let mut lines = Vec::new();
    for kept in &found.kept {
        let why = kept_words(kept.why);
        let roles = classifier.roles(kept.largest);
        let frame = |at| classifier.frame(kept.largest, at).map(|frame| frame_words(frame, how));
        let caller = frame(roles.caller).map(|caller| format!(", called from {caller}"));
        let lead = classifier.frame(kept.largest, roles.lead);
        let lead = lead.map(|frame| lead_words(classifier, kept.largest, frame, how));
        let largest =
            lead.map(|lead| format!("; the most by {lead}{}", caller.unwrap_or_default()));
        let largest = largest.unwrap_or_default();
        let stacks = several(kept.stacks, "stack");
        lines.push(format!("{:>12}  {why} ({stacks}{largest})", size(kept.bytes)));
    }
    for pooled in &found.pooled {
        let library = clean(&pooled.library);
        let what = if pooled.free { "kept free" } else { "kept" };
        let mut line = format!("{:>12}  {what} by {library} in its pool", size(pooled.bytes));
        if let Some(rate) = pooled.bytes_per_second {
            let hint = pool_hint(&pooled.library)
                .unwrap_or("a trace with its blocks separates a leak from fragmentation");
            line = format!("{line}, which GROWS by {}/s: {hint}", size(rate as u64));
        }
        lines.push(line);
    }
    for held in &found.held_by_driver {
        let why = match held.why {
            HeldReason::Filling => "new ones still come: a cache that fills stops at some count",
            HeldReason::Stopped => "no new ones: a cache that is full",
            HeldReason::Reused => "launched again and again",
        };
        let graphs = several(held.graphs, "executable graph");
        let roles = classifier.roles(held.stack);
        let by = classifier.frame(held.stack, roles.lead).map(|frame| frame_words(frame, how));
        let by = by.map(|by| format!(", by {by}")).unwrap_or_default();
        lines.push(format!("{:>12}  {graphs}{by}: {why}", size(held.bytes)));
    }
    for suppressed in &found.suppressed {
        let (leaks, line) = (several(suppressed.leaks, "leak"), suppressed.line);
        let bytes = size(suppressed.bytes);
        lines.push(format!("{bytes:>12}  {leaks} suppressed by line {line} of the file"));
    }
    if lines.is_empty() {
        return String::new();
    }
    let mut out = format!("\n  {}\n", paint(DIM, "held, and no leak:"));
    for line in lines {
        out.push_str(&format!("  {line}\n"));
    }
    out
}

/// `▁▂▃▄▅▆▇█`: a curve of at most `width` characters. Each shows the lowest value of its interval.
fn sparkline(values: &[u64], width: usize) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let high = values.iter().copied().max().unwrap_or(0).max(1);
    let part = values.len().div_ceil(width).max(1);
    let lowest = values.chunks(part).map(|chunk| chunk.iter().copied().min().unwrap_or(0));
    lowest.map(|value| STEPS[(u128::from(value) * 7 / u128::from(high)) as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_bars() {
        assert_eq!(sparkline(&[0, 1, 2, 3, 4, 5, 6, 7], 60), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[0, 7, 3, 7], 2), "▁▄");
        assert_eq!(sparkline(&[0; 4], 60), "▁▁▁▁");
        assert_eq!(sparkline(&[], 60), "");
        assert_eq!(sparkline(&[u64::MAX], 60), "█");
    }
}
