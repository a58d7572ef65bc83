//! Leaks, for people and for programs.

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::holders::{FrameFacts, Listing, frame_facts, words as frame_words};
use super::layout::{BAD, BOLD, DIM, PLAIN, WARN, clean, count, paint, several};
use super::words;
use crate::analysis::Level;
use crate::analysis::leaks::{Because, Leak, Leaks, Still, Suppressions, Verdict};
use crate::analysis::{By, Reading, pool_hint};
use crate::units::{seconds, size};

pub const SCHEMA: &str = "vramtrace.leaks/1";

/// `vramtrace.leaks/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    /// Of all processes, the certain and the large ones first.
    pub leaks: Vec<LeakFacts>,
    pub processes: Vec<ProcessFacts>,
    /// Rules of the suppressions file that fit nothing.
    pub unused_suppressions: Vec<RuleFacts>,
}

#[derive(Debug, Serialize)]
pub struct RuleFacts {
    /// Line of the suppressions file.
    pub line: usize,
    pub rule: String,
}

#[derive(Debug, Serialize)]
pub struct LeakFacts {
    /// `growing`, `never_freed` or `freed_at_end`.
    pub verdict: &'static str,
    /// `driver` or `tensor`.
    pub level: &'static str,
    /// Ordinal as the process saw it; null: not known.
    pub device: Option<u8>,
    /// Live at the end; for `freed_at_end` before that.
    pub bytes: u64,
    pub count: u64,
    pub rate_bytes_per_s: Option<f64>,
    /// From the end of the trace until the cap or the card is full, by this leak alone.
    pub exhausted_in_s: Option<f64>,
    /// 0 to 1.
    pub confidence: f64,
    /// Innermost first.
    pub frames: Vec<FrameFacts>,
    /// Places in `frames`: the innermost frame outside of frameworks, and the innermost one of
    /// the program's own tree if it is another.
    pub lead: Option<usize>,
    pub caller: Option<usize>,
    pub library: Option<String>,
    /// Different stacks that are part of it; the frames are those of the largest.
    pub stacks: u64,
    pub allocations: u64,
    pub frees: u64,
    pub evidence: Vec<String>,
    /// Lowest live bytes in equal parts of the time from `from_s` on.
    pub shape: Vec<u64>,
    pub pid: u32,
    pub rank: Option<u32>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct ProcessFacts {
    pub pid: u32,
    pub rank: Option<u32>,
    pub trace: String,
    pub running: bool,
    /// What was watched, in seconds since the trace began; judged from the end of warm-up on.
    pub from_s: f64,
    pub warm_up_until_s: f64,
    pub until_s: f64,
    /// Earlier events are not in the file.
    pub beginning_lost: bool,
    pub live_is_known: bool,
    /// What is held and is no leak.
    pub kept: Vec<KeptFacts>,
    /// Pools of frameworks where their blocks are not known, or what is free in them.
    pub pooled: Vec<PooledFacts>,
    pub suppressed: Vec<SuppressedFacts>,
}

#[derive(Debug, Serialize)]
pub struct KeptFacts {
    /// `steady`: as after warm-up; `stopped`: grew and stopped; `moves`: comes and goes.
    pub why: &'static str,
    pub level: &'static str,
    pub device: Option<u8>,
    pub bytes: u64,
    pub count: u64,
    pub stacks: u64,
}

#[derive(Debug, Serialize)]
pub struct PooledFacts {
    pub library: String,
    pub device: Option<u8>,
    pub bytes: u64,
    /// It is what lies free in the pool; its blocks are judged one by one.
    pub free: bool,
    /// Not null: the pool grows.
    pub rate_bytes_per_s: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct SuppressedFacts {
    /// Line of the suppressions file.
    pub line: usize,
    pub leaks: u64,
    pub bytes: u64,
}

/// Rules that fit none of all these leaks.
pub fn unused(rules: &Suppressions, all: &[Leaks]) -> Vec<RuleFacts> {
    rules.unused(all).into_iter().map(|(line, rule)| RuleFacts { line, rule }).collect()
}

pub fn report(all: &[Leaks], rules: &Suppressions) -> Report {
    let mut leaks: Vec<LeakFacts> = all.iter().flat_map(facts).collect();
    leaks.sort_by_key(|leak| (leak.confidence < 0.5, std::cmp::Reverse(leak.bytes)));
    let processes = all.iter().map(process_facts).collect();
    Report { schema: SCHEMA, leaks, processes, unused_suppressions: unused(rules, all) }
}

pub fn ordinal(device: DeviceId) -> Option<u8> {
    (device != DeviceId::UNKNOWN).then_some(device.0)
}

pub fn facts(found: &Leaks) -> Vec<LeakFacts> {
    let reading = Reading::new(&found.symbols, &found.header);
    let fact = |leak: &Leak| {
        let said = reading.read(leak.stack);
        let frames: Vec<FrameFacts> = found.symbols.stack(leak.stack).map(frame_facts).collect();
        LeakFacts {
            verdict: leak.verdict.name(),
            level: leak.level.name(),
            device: ordinal(leak.device),
            bytes: leak.bytes,
            count: leak.count,
            rate_bytes_per_s: leak.growth.as_ref().map(|growth| growth.bytes_per_second),
            exhausted_in_s: leak.exhausted_in_s,
            confidence: (leak.confidence * 1000.0).round() / 1000.0,
            lead: said.lead,
            caller: said.caller,
            library: reading.library_name(&said).map(str::to_string),
            stacks: leak.stacks,
            allocations: leak.allocations,
            frees: leak.frees,
            evidence: evidence(found, leak),
            shape: leak.shape.clone(),
            pid: found.header.pid,
            rank: found.header.rank,
            no_frames: frames.is_empty().then(|| found.symbols.why_empty(leak.stack)),
            frames,
        }
    };
    found.leaks.iter().map(fact).collect()
}

fn process_facts(found: &Leaks) -> ProcessFacts {
    let at = |ns: u64| ns as f64 / 1e9;
    ProcessFacts {
        pid: found.header.pid,
        rank: found.header.rank,
        trace: found.trace.display().to_string(),
        running: found.living,
        from_s: at(found.from_ns),
        warm_up_until_s: at(found.warm_ns),
        until_s: at(found.until_ns),
        beginning_lost: found.beginning_lost,
        live_is_known: found.live_is_known,
        kept: found
            .kept
            .iter()
            .map(|kept| KeptFacts {
                why: match kept.why {
                    Still::Steady => "steady",
                    Still::Stopped => "stopped",
                    Still::Moves => "moves",
                },
                level: kept.level.name(),
                device: ordinal(kept.device),
                bytes: kept.bytes,
                count: kept.count,
                stacks: kept.stacks,
            })
            .collect(),
        pooled: found
            .pooled
            .iter()
            .map(|pooled| PooledFacts {
                library: pooled.library.clone(),
                device: ordinal(pooled.device),
                bytes: pooled.bytes,
                free: pooled.free,
                rate_bytes_per_s: pooled.bytes_per_second,
            })
            .collect(),
        suppressed: found
            .suppressed
            .iter()
            .map(|s| SuppressedFacts { line: s.line, leaks: s.leaks, bytes: s.bytes })
            .collect(),
    }
}

/// What speaks for a leak, a line each.
fn evidence(found: &Leaks, leak: &Leak) -> Vec<String> {
    let calls = |allocations: u64, frees: u64| {
        format!("{}, {} freed", several(allocations, "allocation"), count(frees))
    };
    let mut lines = Vec::new();
    if let Some(growth) = &leak.growth {
        let (from, to) = (found.from_ns + growth.first_ns, found.from_ns + growth.last_ns);
        let points = if growth.troughs { "low points" } else { "moments" };
        lines.push(format!(
            "what it never gave back rose by {} from {} to {}: at {} of {} {points}, in order {:.2} \
             of 1",
            size(growth.risen),
            seconds(from),
            seconds(to),
            growth.rises,
            growth.points,
            growth.tau,
        ));
    }
    match leak.because {
        Because::OthersFreed { freed, held } => lines.push(format!(
            "when the process ended it freed the memory of {freed} of {held} stacks that held some, not this"
        )),
        Because::NoneFreed => {
            lines.push("too few to tell it from a small cache, but none was freed".into());
        }
        Because::Trend => {}
    }
    lines.push(match leak.verdict {
        Verdict::FreedAtEnd => {
            format!(
                "{}, the grown part when the process ended",
                calls(leak.allocations, leak.frees)
            )
        }
        _ => calls(leak.allocations, leak.frees),
    });
    lines
}

/// `rank 2, pid 4711`.
pub fn process_name(found: &Leaks) -> String {
    match found.header.rank {
        Some(rank) => format!("rank {rank}, pid {}", found.header.pid),
        None => format!("pid {}", found.header.pid),
    }
}

/// `GPU 0`.
pub fn device_name(device: DeviceId) -> String {
    match device {
        DeviceId::UNKNOWN => "an unknown device".to_string(),
        id => format!("GPU {}", id.0),
    }
}

/// A line for each leak, in their order.
pub fn one_liners(found: &Leaks) -> Vec<String> {
    let reading = Reading::new(&found.symbols, &found.header);
    let how = Listing { by: By::Line, top: 1, full: false, when: "" };
    let line = |leak: &Leak| {
        let said = reading.read(leak.stack);
        let lead = match reading.frame(leak.stack, said.lead) {
            Some(frame) => frame_words(frame, how),
            None => format!("? ({})", found.symbols.why_empty(leak.stack)),
        };
        let rate = match &leak.growth {
            Some(growth) => format!(", +{}/s", size(growth.bytes_per_second as u64)),
            None => String::new(),
        };
        format!(
            "leak on {} by {lead}: {}, {}{rate}, {} % sure",
            device_name(leak.device),
            leak.verdict.name().replace('_', " "),
            size(leak.bytes),
            (leak.confidence * 100.0).floor(),
        )
    };
    found.leaks.iter().map(line).collect()
}

/// One process's leaks, and what it holds besides.
pub fn details(found: &Leaks, top: usize, full: bool) -> String {
    let mut out = head(found);
    let reading = Reading::new(&found.symbols, &found.header);
    let how = Listing { by: By::Line, top, full, when: "" };
    for leak in found.leaks.iter().take(top) {
        out.push('\n');
        out.push_str(&one(found, &reading, leak, how));
    }
    if found.leaks.len() > top {
        let rest = &found.leaks[top..];
        let bytes = rest.iter().map(|leak| leak.bytes).fold(0, u64::saturating_add);
        let text = format!("\n  and {} more, {} together", count(rest.len() as u64), size(bytes));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    out.push_str(&besides(found, &reading, how));
    out
}

fn head(found: &Leaks) -> String {
    let name = process_name(found);
    let sure = found.leaks.iter().filter(|leak| leak.confidence >= 0.5).count();
    let (style, verdict) = match (found.leaks.len(), sure) {
        (0, _) => (BOLD, "no leak".to_string()),
        (all, 0) => (WARN, several(all as u64, "faint sign") + " of a leak"),
        (_, sure) => (BAD, several(sure as u64, "leak")),
    };
    let mut out = format!("{}: {}\n", paint(BOLD, &name), paint(style, &verdict));
    let watched = found.until_ns.saturating_sub(found.from_ns);
    let running = if found.living { ", it is still running" } else { "" };
    let text = format!(
        "  watched for {}, judged after a warm-up of {}{running}",
        words::age(watched),
        words::age(found.warm_ns.saturating_sub(found.from_ns)),
    );
    out.push_str(&format!("{}\n", paint(DIM, &text)));
    let mut warn = |text: String| {
        out.push_str(&format!("  {} {text}\n", paint(WARN, "!")));
    };
    if found.beginning_lost {
        warn(format!(
            "the file's history begins at {}: what is older counts as there from the beginning",
            seconds(found.from_ns)
        ));
    }
    if !found.live_is_known {
        warn("events are missing and no checkpoint follows: this may be wrong".into());
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

fn one(found: &Leaks, reading: &Reading, leak: &Leak, how: Listing) -> String {
    let verdict = match leak.verdict {
        Verdict::Growing => "GROWING",
        Verdict::NeverFreed => "NEVER FREED",
        Verdict::FreedAtEnd => "FREED ONLY AT THE END",
    };
    let sure = (leak.confidence * 100.0).floor();
    let style = if leak.confidence >= 0.5 { BAD } else { WARN };
    let piece = match leak.level {
        Level::Driver => "allocation",
        Level::Tensor => "block",
    };
    let device = device_name(leak.device);
    let mut out = format!(
        "  {}  {}: {} in {}",
        paint(style, verdict),
        device,
        paint(BOLD, &size(leak.bytes)),
        several(leak.count, piece)
    );
    if let Some(growth) = &leak.growth {
        out.push_str(&format!(", +{}/s", size(growth.bytes_per_second as u64)));
    }
    if let Some(left) = leak.exhausted_in_s {
        let left = words::age((left.min(1e10) * 1e9) as u64);
        let full = if found.living { "full in" } else { "full after another" };
        out.push_str(&format!(", {}", paint(BOLD, &format!("{full} {left}"))));
    }
    out.push_str(&format!(", {sure} % sure\n"));
    let said = reading.read(leak.stack);
    let library = reading.library_name(&said).map(|name| format!("  ({})", clean(name)));
    let lead = match reading.frame(leak.stack, said.lead) {
        Some(frame) => frame_words(frame, how),
        None => found.symbols.why_empty(leak.stack).to_string(),
    };
    out.push_str(&format!("    {}{}\n", paint(BOLD, &lead), library.unwrap_or_default()));
    if let Some(caller) = reading.frame(leak.stack, said.caller) {
        let text = format!("    called from {}", frame_words(caller, how));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    if leak.stacks > 1 {
        let text = format!("    by {} that lead to this line", several(leak.stacks, "stack"));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    if how.full {
        for frame in found.symbols.stack(leak.stack) {
            let text = format!("      {}", frame_words(frame, how));
            out.push_str(&format!("{}\n", paint(DIM, &text)));
        }
    }
    out.push_str(&format!("    {}\n", paint(PLAIN, &sparkline(&leak.shape, 60))));
    for line in evidence(found, leak) {
        out.push_str(&format!("    {line}\n"));
    }
    out
}

/// What is held and is no leak, so that nobody looks for it.
fn besides(found: &Leaks, reading: &Reading, how: Listing) -> String {
    let mut lines = Vec::new();
    for kept in &found.kept {
        let why = match kept.why {
            Still::Steady => "steady since warm-up",
            Still::Stopped => "grew, and stopped: a cache that is full",
            Still::Moves => "comes and goes",
        };
        let said = reading.read(kept.largest);
        let largest = reading.frame(kept.largest, said.lead);
        let largest = largest
            .map_or_else(String::new, |frame| format!("; the most by {}", frame_words(frame, how)));
        let stacks = several(kept.stacks, "stack");
        lines.push(format!("{:>12}  {why} ({stacks}{largest})", size(kept.bytes)));
    }
    for pooled in &found.pooled {
        let library = clean(&pooled.library);
        let what = if pooled.free { "kept free" } else { "kept" };
        let mut line = format!("{:>12}  {what} by {library} in its pool", size(pooled.bytes));
        if let Some(rate) = pooled.bytes_per_second {
            let hint = pool_hint(&pooled.library)
                .unwrap_or("a trace with its blocks tells a leak from fragmentation");
            line = format!("{line}, which GROWS by {}/s: {hint}", size(rate as u64));
        }
        lines.push(line);
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

/// `▁▂▃▄▅▆▇█`: at most `width` characters, each the lowest of its part.
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
