//! The text of a post-mortem, ten lines at most, from the facts that the trace gets and with the words of `vramtrace oom`.
#![allow(clippy::disallowed_methods)] // texts of one message, given back with it

use super::Report;
use super::burst::{Refusal, Use};
use super::held::{self, Held, Row};
use super::names::{Library, TORCH, with_names};
use crate::hooks::process::state::Process;
use std::fmt::Write;
use std::path::Path;
use vramtrace_format::oom::{self, Cause, Figures, OtherLimit};
use vramtrace_format::shown::shown;
use vramtrace_format::size::{Bytes, enough};
use vramtrace_format::torch_conf::{Bypass, CONF_VARIABLES};
use vramtrace_format::{CacheBytes, DeviceId, OomEvidence, PostMortem, RefusedBy};

/// What a post-mortem says.
#[derive(Clone, Debug)]
pub struct Findings {
    pub event: PostMortem,
    /// Bytes that would have been requested of the driver for it.
    pub whole: u64,
    pub rank: Option<u32>,
    pub pid: u32,
    /// The memory of the card.
    pub card: Option<u64>,
    /// The source line of the request.
    pub requested_at: Option<String>,
    /// The parts that make up the use.
    pub parts: Vec<(String, u64)>,
    /// Free bytes inside the framework's segments.
    pub free_inside: u64,
    /// The lines that hold most. `None`: not known.
    pub holders: Vec<(Option<String>, Row)>,
    /// How long before the refusal the holders were determined; `None`: at the refusal.
    pub held_before_ns: Option<u64>,
    /// Other processes on the device.
    pub neighbours: Vec<(u32, Option<u64>)>,
    /// Whether expandable segments of PyTorch's allocator are not set, and could be.
    pub could_expand: bool,
    /// Another limit that the environment sets.
    pub other: Option<OtherLimit>,
    /// The trace with the details.
    pub trace: Option<String>,
    /// For how long later refusals are not reported; `None`: the process ends.
    pub quiet_s: Option<u64>,
}

/// Lines of the summary.
const LINES: usize = 10;
/// Longest line, in bytes: names come from files.
const LINE_MOST: usize = 240;
/// Libraries that are listed separately.
const LIBRARIES_MOST: usize = 4;

/// Names what was found.
pub fn findings(p: &'static Process, report: &Report) -> Findings {
    with_names(p, |names| {
        let Report { refusal, held, held_before_ns, neighbours } = report;
        let Refusal { whole, in_use, event, .. } = *refusal;
        let header = p.trace_writer.this_process();
        let rows = held.named(names);
        let placed = rows.iter().map(|(row, _)| (names.place(row.stack), *row));
        let holders = held::sums(placed);
        let of_this_moment = if held_before_ns.is_none() { &rows[..] } else { &[] };
        let in_cache = event.cache.map(|cache| cache.free());
        Findings {
            event: PostMortem { largest_hole: held.holes.map(|holes| holes.largest), ..event },
            whole: whole.max(event.size),
            rank: header.rank,
            pid: header.pid,
            card: p.devices.known(event.device).map(|device| device.total_bytes),
            holders,
            requested_at: names.place(event.stack),
            // The holders of another moment would not add up to this sum.
            parts: parts(in_use, event.cache, held, of_this_moment),
            free_inside: in_cache.or(held.holes.map(|holes| holes.free)).unwrap_or(0),
            held_before_ns: *held_before_ns,
            neighbours: neighbours.clone(),
            could_expand: !held.fixed_segments && could_expand(p),
            other: OtherLimit::of(|name| p.config.setting(name)),
            trace: p.trace_writer.path().map(|path| as_typed(&path)),
            quiet_s: (event.evidence != OomEvidence::EndedRefused).then_some(super::QUIET_S),
        }
    })
}

/// The path as a user would type it.
fn as_typed(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let relative = here.and_then(|here| path.strip_prefix(here).ok());
    relative.unwrap_or(path).to_string_lossy().into_owned()
}

/// Expandable segments are not set, and the allocator that they are for is in use.
fn could_expand(p: &'static Process) -> bool {
    let mut texts = CONF_VARIABLES.into_iter().filter_map(|name| p.config.setting(name));
    let is_expandable =
        texts.any(|value| value.replace(' ', "").contains("expandable_segments:True"));
    !is_expandable && Bypass::of(|name| p.config.setting(name)).is_none()
}

/// The parts that add up to the use. `rows`: who holds it.
fn parts(
    in_use: Use,
    cache: Option<CacheBytes>,
    held: &Held,
    rows: &[(Row, Option<Library>)],
) -> Vec<(String, u64)> {
    let mut left = in_use.live;
    let mut parts = Vec::new();
    let mut add = |name: &str, bytes| parts.push((name.to_string(), bytes));
    if let Some(CacheBytes { allocated, reserved }) = cache {
        // Unmapped memory of blocks is not in use.
        let allocated = allocated.saturating_sub(held.paused);
        let reserved = reserved.saturating_sub(held.asleep);
        add("allocated", allocated);
        add("free in cache", reserved.saturating_sub(allocated));
        left = left.saturating_sub(reserved);
    }
    // Free memory of PyTorch's cache is listed as the cache's, not as a library's.
    let is_listed =
        |library: &&Library| !library.own && (cache.is_none() || library.title != TORCH);
    let of_driver = rows.iter().filter(|(row, _)| !row.of_framework);
    let libraries = of_driver
        .filter_map(|(row, library)| Some((&library.as_ref().filter(is_listed)?.title, *row)));
    for (title, row) in held::sums(libraries).into_iter().take(LIBRARIES_MOST) {
        let bytes = row.bytes.min(left);
        left -= bytes;
        add(title, bytes);
    }
    add(if cache.is_some() { "other allocations" } else { "allocations" }, left);
    add("context", in_use.contexts);
    let rest = in_use.counted.saturating_sub(sum(parts.iter().map(|(_, bytes)| *bytes)));
    parts.push(("other".to_string(), rest));
    parts.retain(|(_, bytes)| *bytes > 0);
    parts
}

/// Totals that a framework reports may have any value: the sum saturates.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

pub fn summary(found: &Findings) -> String {
    let mut lines = vec![head(found)];
    let mut line = |label: &str, text: String| lines.push(format!("  {label:<7} {text}"));
    line("limit", limit(found));
    line("used", used(&found.parts));
    line("why", why(found));
    let absorbed = absorbed(found);
    let room = LINES - 6 - usize::from(absorbed.is_some());
    for (n, holder) in found.holders.iter().take(room).enumerate() {
        line(if n == 0 { "holds" } else { "" }, holds(holder, found.held_before_ns));
    }
    if let Some(absorbed) = absorbed {
        line("before", absorbed);
    }
    line("try", advice(found));
    line("more", more(found));
    let mut text = String::new();
    for line in lines {
        text.push_str(&plain(&line));
        text.push('\n');
    }
    text
}

/// File names may hold characters that break or colour a line.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for character in line.trim_end().chars() {
        if text.len() + character.len_utf8() > LINE_MOST {
            break;
        }
        text.push(shown(character));
    }
    text
}

fn of_cache(found: &Findings) -> bool {
    found.event.evidence == OomEvidence::FrameworkGaveUp
}

fn figures(found: &Findings) -> Figures {
    Figures::of(&found.event, found.free_inside).with_other_limit(found.other)
}

fn head(found: &Findings) -> String {
    let rank = found.rank.map_or(String::new(), |rank| format!("rank{rank} "));
    let device = match found.event.device {
        DeviceId::UNKNOWN => "?".to_string(),
        DeviceId(ordinal) => ordinal.to_string(),
    };
    let what = match found.event.evidence {
        OomEvidence::FrameworkGaveUp => "torch is out of memory:",
        OomEvidence::EndedRefused => "ended out of memory: last refused",
        OomEvidence::StillRefused => "out of memory for a second now:",
    };
    let place = found.requested_at.as_ref().map_or(String::new(), |place| format!(" at {place}"));
    let size = Bytes(found.event.size);
    format!("vramtrace {rank}cuda:{device} pid {}: {what} {size}{place}", found.pid)
}

fn limit(found: &Findings) -> String {
    let PostMortem { by, size, counted, limit, driver_free, cache, .. } = found.event;
    let text = match by {
        Some(by) => oom::limit(figures(found).cause(), by, counted, limit, found.card),
        None => oom::own_limit(cache.map_or(0, |cache| cache.reserved).saturating_add(size)),
    };
    let card =
        driver_free.map(|free| oom::card_had(free, size, by, found.neighbours.iter().copied()));
    text + &card.unwrap_or_default()
}

/// The sum, and its parts.
fn used(parts: &[(String, u64)]) -> String {
    let mut text = Bytes(sum(parts.iter().map(|(_, bytes)| *bytes))).to_string();
    for (n, (name, bytes)) in parts.iter().enumerate() {
        let _ = write!(text, " {} {name} {}", if n == 0 { '=' } else { '+' }, Bytes(*bytes));
    }
    text
}

fn why(found: &Findings) -> String {
    let (figures, size) = (figures(found), found.event.size);
    let in_cache = match found.event.cache.filter(|_| of_cache(found)) {
        Some(cache) => {
            let hole = figures.largest_hole.unwrap_or(0);
            oom::in_cache(cache.allocated, found.free_inside, hole, size)
        }
        None => String::new(),
    };
    match figures.cause() {
        Cause::Fragmentation => figures.in_pieces(""),
        _ => figures.too_much(figures.left) + &in_cache,
    }
}

fn holds((place, row): &(Option<String>, Row), before_ns: Option<u64>) -> String {
    let what = match (row.of_framework, row.count) {
        (true, 1) => "block",
        (true, _) => "blocks",
        (false, 1) => "allocation",
        (false, _) => "allocations",
    };
    let place = place.as_deref().unwrap_or("where is not known");
    let text = format!("{:>10} {place}   {} {what}", Bytes(row.bytes).to_string(), row.count);
    match before_ns {
        Some(ns) => format!("{text} ({:.1} ms earlier)", ns as f64 / 1e6),
        None => text,
    }
}

fn absorbed(found: &Findings) -> Option<String> {
    let how = oom::absorbed(found.event.cache.is_some());
    match found.event.absorbed {
        0 => None,
        1 => Some(format!("1 refusal {how}")),
        n => Some(format!("{n} refusals {how}")),
    }
}

fn advice(found: &Findings) -> String {
    let PostMortem { by, size, counted, driver_free, largest_hole, .. } = found.event;
    let figures = figures(found);
    let mut all = Vec::new();
    if figures.cause() == Cause::Fragmentation && found.could_expand {
        all.push("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_string());
    }
    match by {
        Some(RefusedBy::Cap | RefusedBy::Group)
            if driver_free.is_none_or(|free| free >= found.whole) =>
        {
            all.push(format!("a cap of {}", enough(counted.saturating_add(found.whole))));
        }
        Some(RefusedBy::Driver) => {
            let theirs = sum(found.neighbours.iter().filter_map(|(_, bytes)| *bytes));
            if theirs > 0 && driver_free.unwrap_or(0).saturating_add(theirs) >= size {
                let theirs = Bytes(theirs);
                all.push(format!("another card: other processes hold {theirs} of this one"));
            }
        }
        None => all.push("a larger torch.cuda.set_per_process_memory_fraction".into()),
        _ => {}
    }
    let most = figures.left.unwrap_or(0).max(largest_hole.unwrap_or(0));
    all.push(if of_cache(found) {
        "a smaller batch".into()
    } else if most > 0 {
        format!("a smaller request: up to {} would have been served", Bytes(most))
    } else {
        "less memory held".into()
    });
    // A setting that is copied as a word has no comma behind it.
    all.join(" or ")
}

fn more(found: &Findings) -> String {
    let mut text = match &found.trace {
        Some(trace) => format!("vramtrace oom {trace}"),
        None => "in a trace, but none is recorded (VRAMTRACE_OUT=off)".to_string(),
    };
    let places = found.holders.iter().map(|(place, _)| place).chain([&found.requested_at]);
    if places.flatten().any(|place| place.contains("+0x")) {
        text.push_str(" names the functions");
    }
    let quiet = found.quiet_s.map_or(String::new(), |seconds| format!("quiet for {seconds} s; "));
    format!("{text}   ({quiet}VRAMTRACE_OOM_REPORT=off)")
}

#[cfg(test)]
mod tests;
