//! One post-mortem as text: about ten lines of summary, then the tables.

use super::super::holders::{ListingOptions, table as holders_table};
use super::super::layout::{BOLD, DIM, PLAIN, WARN, caution, line, paint, section};
use super::super::leaks::keeps;
use super::super::stack::{listed, place, place_or_why};
use super::summary::{labelled, title, titled};
use super::wording;
use crate::analysis::oom::Explained;
use crate::analysis::{Holder, Level, with_cause};
use crate::units::{clean, estimate, seconds, several};

/// What a post-mortem contains.
#[derive(Clone, Copy, Debug)]
pub struct OomOptions {
    /// Maximum number of rows of each table.
    pub top: usize,
    /// All frames of each stack, and files with their full path.
    pub full: bool,
    /// Only the summary, without the tables.
    pub short: bool,
    /// The process is still running.
    pub running: bool,
    /// The number of out-of-memory failures in the run.
    pub of: usize,
}

/// Maximum number of frames of the request's stack that are shown without `full`.
const FRAMES: usize = 24;
/// The lines of the summary that list holders.
const HOLDS: usize = 3;

/// The whole post-mortem. `given`: the arguments that name the process in a command, each after a space.
pub fn text(it: &Explained, given: &str, shown: OomOptions) -> String {
    let one = &it.one;
    let number = match shown.of {
        0 | 1 => String::new(),
        of => format!("  ({} of {of})", it.number),
    };
    let still_runs = shown.running && !one.oom.went_on;
    let then = if still_runs { ", and the process still runs" } else { "" };
    let title = title(it.process, one, &it.stack, (&it.api, it.timed));
    let mut out = titled(&format!("{title}{then}{number}"));
    let advice: Vec<String> = it.answer.advice.iter().map(wording::advice).collect();
    let (advised, before, more) = match shown.short {
        true => (advice.len().min(1), Vec::new(), Vec::new()),
        false => (advice.len(), wording::before(one), further_commands(it, given)),
    };
    let used = (it.sum.bytes > 0 && !one.oom.is_of_host()).then(|| wording::sum(&it.sum));
    for (word, style, lines) in [
        ("limit", PLAIN, &[wording::limit(one)][..]),
        ("used", PLAIN, used.as_slice()),
        ("why", PLAIN, &[wording::why(one)]),
        ("leak", PLAIN, it.leak.as_ref().map(keeps).as_slice()),
        ("holds", PLAIN, &holder_lines(&it.holders)),
        ("step", PLAIN, it.step.map(wording::step).as_slice()),
        ("before", PLAIN, &before),
        ("try", BOLD, &advice[..advised]),
        ("more", DIM, &more),
    ] {
        out.push_str(&labelled(word, style, lines));
    }
    if shown.short {
        return out;
    }
    warnings(it).iter().for_each(|text| out.push_str(&caution(WARN, text)));
    let title = match one.held.level {
        Level::Tensor => "held by blocks",
        Level::Driver => "held",
    };
    let holders: Vec<&Holder> = it.holders.iter().collect();
    let (top, full) = (shown.top, shown.full);
    let how = ListingOptions { top, full, ..ListingOptions::default() };
    out.push_str(&section(holders_table(&holders, title, how)));
    out.push_str(&request_stack(it, shown));
    // Problems with reading symbols: the first five.
    let problems = it.problems.iter().take(5).map(|problem| caution(DIM, &clean(problem)));
    out + &problems.collect::<String>()
}

/// The largest holders, a line each: bytes, line of code, number of blocks or allocations.
fn holder_lines(holders: &[Holder]) -> Vec<String> {
    // The context is among the parts of the sum.
    let is_other = |of: &&Holder| of.stack.is_free_cache() || of.is_one_context();
    let named = || holders.iter().filter(|of| !is_other(of)).take(HOLDS);
    let line = |holder: &Holder| {
        let line = place(&holder.stack);
        let alike = named().filter(|other| place(&other.stack) == line).count() > 1;
        // The line of code identifies blocks of PyTorch. Their library is shown only if two of these
        // lines would be alike without it.
        let library = holder.library.as_deref().filter(|_| !holder.of_cache || alike);
        let library = library.map_or(String::new(), |name| format!(" ({})", clean(name)));
        let place = with_cause(holder.driver_memory, place_or_why(&holder.stack));
        let bytes = estimate(holder.bytes, holder.error_bytes);
        let pieces = match holder.driver_memory {
            Some(_) => "taken by the driver".into(),
            None => several(holder.count, if holder.of_cache { "block" } else { "allocation" }),
        };
        format!("{bytes}  {place}{library}   {pieces}")
    };
    named().map(line).collect()
}

/// Commands that show more about this failure.
fn further_commands(it: &Explained, given: &str) -> Vec<String> {
    let seconds = it.one.oom.time_ns as f64 / 1e9;
    let leaks = it.leak.as_ref().map(|_| format!("vramtrace leaks{given}"));
    let mut all = vec![format!("vramtrace holders{given} --at {seconds:.3} --full")];
    if it.one.oom.level == Level::Tensor {
        all.insert(0, format!("vramtrace frag{given} --at oom"));
        all.insert(1, format!("vramtrace whatif{given}"));
    }
    leaks.into_iter().chain(all).collect()
}

/// Gaps in the data behind this post-mortem.
fn warnings(it: &Explained) -> Vec<String> {
    let one = &it.one;
    let mut lines = Vec::new();
    if !one.live_is_known {
        lines.push("events are missing before it: what was live may be wrong".to_string());
    }
    if one.history_from_ns > 0 {
        let from = seconds(one.history_from_ns);
        lines.push(format!("the file's history begins at {from}: earlier failures are not in it"));
    }
    let imported = one.device.live_bytes > 0 && one.device.contexts_seen == 0;
    if it.sum.bytes > 0 && !it.sum.knows_process && !imported && !one.oom.is_of_host() {
        lines.push(
            "NVML had no figure for this process: what only shows there is not in the sum".into(),
        );
    }
    lines
}

/// The call stack of the failed request.
fn request_stack(it: &Explained, shown: OomOptions) -> String {
    let title = "asked for by";
    if let Some(why) = it.stack.why_no_frames() {
        return format!("\n    {}  {why}\n", paint(DIM, title));
    }
    let frames: Vec<_> = it.stack.frames().collect();
    let most = if shown.full { frames.len() } else { frames.len().min(FRAMES) };
    let mut out = section(line(4, DIM, title));
    for frame in &frames[..most] {
        out.push_str(&line(6, PLAIN, &listed(frame, shown.full)));
    }
    if frames.len() > most {
        let rest = several((frames.len() - most) as u64, "more frame");
        out.push_str(&line(6, DIM, &format!("and {rest} (--full)")));
    }
    out
}
