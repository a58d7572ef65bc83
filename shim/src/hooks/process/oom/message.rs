//! The text of a post-mortem, from the facts that the trace gets and with the words of `vramtrace oom`, which says more: the
//! sum of the use and its parts, the cause with its figures, and the refusals that the program survived.
#![allow(clippy::disallowed_methods)] // texts of one message, given back with it

use super::burst::Refusal;
use super::held::{self, Row};
use super::names::with_names;
use super::{QUIET_S, Report};
use crate::hooks::process::state::Process;
use std::path::Path;
use vramtrace_format::oom::{self, Figures, OomCause, OtherLimit};
use vramtrace_format::shown::shown;
use vramtrace_format::size::{Bytes, enough};
use vramtrace_format::torch_conf::{Bypass, CONF_VARIABLES, releases_first};
use vramtrace_format::{DeviceId, OomEvidence, PostMortem, RefusedBy};

/// What a post-mortem says.
#[derive(Clone, Debug)]
pub struct Findings {
    pub event: PostMortem,
    /// Bytes that would have been requested of the driver for it.
    pub whole: u64,
    /// Free ranges beside blocks; what else is free is in private pools.
    pub in_holes: u64,
    /// The refused call takes no memory for the program.
    pub other_call: bool,
    pub rank: Option<u32>,
    pub pid: u32,
    /// The memory of the card.
    pub card: Option<u64>,
    /// The source line of the request.
    pub requested_at: Option<String>,
    /// The lines that hold most at the refusal. `None`: not known.
    pub holders: Vec<(Option<String>, Row)>,
    /// One of them may leak; in a framework's cache that is not known.
    pub may_leak: bool,
    /// Other processes on the device.
    pub neighbours: Vec<(u32, Option<u64>)>,
    /// Whether expandable segments of PyTorch's allocator are not set, and could be.
    pub could_expand: bool,
    /// Another limit that the environment sets.
    pub other: Option<OtherLimit>,
    /// With which the process ends, if it does now.
    pub status: Option<i32>,
    /// The trace with the details.
    pub trace: Option<String>,
}

/// Holders that are listed.
const HOLDERS: usize = 5;
/// Longest line, in bytes: names come from files.
const LINE_MOST: usize = 240;

/// Names what was found.
pub fn findings(p: &'static Process, report: &Report) -> Findings {
    with_names(p, |names| {
        let Report { refusal: Refusal { whole, other_call, event, .. }, held, neighbours } = report;
        let header = p.trace_writer.this_process();
        let rows = held.named(names);
        let placed = rows.iter().map(|(row, _)| (names.place(row.stack), *row));
        let holders = held::sums(placed);
        let releases = releases_first(|name| p.config.setting(name));
        Findings {
            event: PostMortem { largest_hole: held.largest_hole, ..*event },
            whole: *whole.max(&event.size),
            in_holes: if releases { held.in_holes } else { u64::MAX },
            other_call: *other_call,
            rank: header.rank,
            pid: header.pid,
            card: p.devices.known(event.device).map(|device| device.total_bytes),
            holders,
            may_leak: held.may_leak && event.cache.is_none(),
            requested_at: names.place(event.stack),
            neighbours: neighbours.clone(),
            could_expand: !held.fixed_segments && could_expand(p),
            other: OtherLimit::of(|name| p.config.setting(name)),
            status: p.oom.aftermath.status(),
            trace: p.trace_writer.path().map(|path| as_typed(&path)),
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

pub fn summary(found: &Findings) -> String {
    let mut lines = vec![head(found)];
    let mut line = |label: &str, text: String| lines.push(format!("  {label:<7} {text}"));
    line("limit", limit(found));
    for (n, holder) in found.holders.iter().take(HOLDERS).enumerate() {
        line(if n == 0 { "holds" } else { "" }, holds(holder));
    }
    // What leaks fills a larger limit too; and of a refusal that nothing explains, or a call without a size, it is not known
    // what helps.
    let is_known = figures(found).cause() != OomCause::Unknown && found.event.size > 0;
    if !found.may_leak && is_known {
        line("try", advice(found));
    }
    line("more", more(found));
    lines.iter().map(|line| plain(line) + "\n").collect()
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

fn figures(found: &Findings) -> Figures {
    let in_cache = found.event.cache.map_or(0, |cache| cache.free());
    let free = found.event.largest_hole.map_or(in_cache, |_| in_cache.min(found.in_holes));
    let (other, other_call) = (found.other, found.other_call);
    Figures { other, other_call, ..Figures::of(&found.event, free) }
}

fn head(found: &Findings) -> String {
    let rank = found.rank.map_or(String::new(), |rank| format!("rank{rank} "));
    let device = match found.event.device {
        DeviceId::UNKNOWN => "?".to_string(),
        DeviceId(ordinal) => ordinal.to_string(),
    };
    let what = match found.event.evidence {
        OomEvidence::FrameworkGaveUp => "torch is out of memory:",
        OomEvidence::EndedRefused if found.status == Some(0) => "ended with status 0: last refused",
        OomEvidence::EndedRefused => "ended out of memory: last refused",
        OomEvidence::StillRefused => "out of memory for a second now:",
    };
    let place = found.requested_at.as_ref().map_or(String::new(), |place| format!(" at {place}"));
    let size = match found.event.size {
        0 => "a call that names no bytes".to_string(),
        size => Bytes(size).to_string(),
    };
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

fn holds((place, row): &(Option<String>, Row)) -> String {
    let what = if row.of_framework { "block" } else { "allocation" };
    let end = if row.count == 1 { "" } else { "s" };
    let place = place.as_deref().unwrap_or("where is not known");
    format!("{:>10} {place}   {} {what}{end}", Bytes(row.bytes).to_string(), row.count)
}

fn advice(found: &Findings) -> String {
    let PostMortem { by, size, counted, driver_free, .. } = found.event;
    let figures = figures(found);
    let mut all = Vec::new();
    if figures.cause() == OomCause::Fragmentation && found.could_expand {
        all.push("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_string());
    }
    match by {
        Some(RefusedBy::Cap | RefusedBy::Group)
            if driver_free.is_none_or(|free| free >= found.whole) =>
        {
            let whose = if by == Some(RefusedBy::Group) { " for the group" } else { "" };
            all.push(format!("a cap of {}{whose}", enough(counted.saturating_add(found.whole))));
        }
        Some(RefusedBy::Driver) => {
            let theirs = found.neighbours.iter().filter_map(|(_, bytes)| *bytes);
            let theirs = theirs.fold(0, u64::saturating_add);
            if theirs > 0 && driver_free.unwrap_or(0).saturating_add(theirs) >= size {
                let theirs = Bytes(theirs);
                all.push(format!("another card: other processes hold {theirs} of this one"));
            }
        }
        None => all.push("a larger torch.cuda.set_per_process_memory_fraction".into()),
        _ => {}
    }
    all.push(match (figures.of_cache, figures.left) {
        (true, _) => "a smaller batch".into(),
        (_, Some(left @ 1..)) => {
            format!("a smaller request: up to {} would have been served", Bytes(left))
        }
        _ => "less memory held".into(),
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
    let quiet = match found.event.evidence {
        OomEvidence::EndedRefused => String::new(),
        _ => format!("quiet for {QUIET_S} s; "),
    };
    format!("{text}   ({quiet}VRAMTRACE_OOM_REPORT=off)")
}

#[cfg(test)]
mod tests;
