//! The text of the post-mortem, ten lines at most.
#![allow(clippy::disallowed_methods)] // texts of one message, given back with it

use super::sums::Part;
use std::fmt::Write;
use vramtrace_format::oom::{Cause, Figures, OtherLimit};
use vramtrace_format::shown::shown;
use vramtrace_format::size::{AsGiven, Bytes};
use vramtrace_format::{DeviceId, OomEvidence, PostMortem, RefusedBy};

/// The figures of a post-mortem.
#[derive(Clone, Debug)]
pub struct Findings {
    pub event: PostMortem,
    /// Bytes that would have been requested of the driver for it.
    pub whole: u64,
    pub rank: Option<u32>,
    pub pid: u32,
    /// The source line of the request.
    pub requested_at: Option<String>,
    /// Where the limit comes from.
    pub limit: Limit,
    /// The parts that make up the use, in the order of the message.
    pub parts: Vec<Part>,
    /// Free bytes inside the framework's segments.
    pub free_inside: u64,
    /// Who holds most.
    pub holders: Vec<Holder>,
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// Set when the process was started.
    #[default]
    Cap,
    /// Set while it ran.
    Ordered,
    Group(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub bytes: u64,
    pub count: u64,
    pub of_framework: bool,
    /// `None`: not known.
    pub place: Option<String>,
}

/// Lines of the summary.
const LINES: usize = 10;
/// Longest line, in bytes: names come from files.
const LINE_MOST: usize = 240;
/// Libraries that are listed by name.
const PARTS_MOST: usize = 8;

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

fn is_framework(found: &Findings) -> bool {
    found.event.evidence == OomEvidence::FrameworkGaveUp
}

fn head(found: &Findings) -> String {
    let mut text = String::from("vramtrace ");
    if let Some(rank) = found.rank {
        let _ = write!(text, "rank{rank} ");
    }
    match found.event.device {
        DeviceId::UNKNOWN => text.push_str("cuda:? "),
        DeviceId(ordinal) => {
            let _ = write!(text, "cuda:{ordinal} ");
        }
    }
    let what = match found.event.evidence {
        OomEvidence::FrameworkGaveUp => "torch is out of memory:",
        OomEvidence::EndedRefused => "ended out of memory: last refused",
        OomEvidence::StillRefused => "out of memory for a second now:",
    };
    let _ = write!(text, "pid {}: {what} {}", found.pid, Bytes(found.event.size));
    if let Some(place) = &found.requested_at {
        let _ = write!(text, " at {place}");
    }
    text
}

fn limit(found: &Findings) -> String {
    let PostMortem { by, size, counted, limit, driver_free, cache, .. } = found.event;
    let card = match driver_free {
        None => String::new(),
        Some(free) if free >= size && found.neighbours.is_empty() => {
            format!(" (card: {} free; not the card)", Bytes(free))
        }
        Some(free) if free >= size => {
            format!(" (card: {} free; not the card, not a neighbour)", Bytes(free))
        }
        Some(free) => format!(" (card: {} free)", Bytes(free)),
    };
    match by {
        Some(RefusedBy::Group) => {
            let Limit::Group(name) = &found.limit else {
                return AsGiven(limit).to_string() + &card;
            };
            let ours = sum(found.parts.iter().map(|(_, bytes)| *bytes));
            let others = Bytes(counted.saturating_sub(ours));
            format!("{} by the group {name}, of which others have {others}{card}", AsGiven(limit))
        }
        Some(RefusedBy::Driver) => {
            let mut text = String::from(match figures(found).cause() {
                Cause::Mps => "MPS, by CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                Cause::Cgroup => "the kernel's cgroup, by dmem.max",
                _ => "the card itself",
            });
            if let Some(free) = driver_free {
                let _ = write!(text, ": {} free", Bytes(free));
            }
            if limit > 0 {
                let _ = write!(text, " (the cap of {} is not reached)", AsGiven(limit));
            }
            text + &neighbours(found)
        }
        Some(_) => {
            let whose = match &found.limit {
                Limit::Ordered => "the cap that was ordered while it ran",
                _ => "VRAMTRACE_CAP",
            };
            format!("{} by {whose}{card}", AsGiven(limit))
        }
        None => {
            let above = cache.map_or(0, |cache| cache.reserved.saturating_add(size));
            format!("below {} by torch's own memory fraction{card}", Bytes(above))
        }
    }
}

fn neighbours(found: &Findings) -> String {
    let mut known: Vec<(u32, u64)> =
        found.neighbours.iter().filter_map(|(pid, bytes)| Some((*pid, (*bytes)?))).collect();
    known.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut text = String::new();
    for (n, (pid, bytes)) in known.iter().take(3).enumerate() {
        let word = if n == 0 { "; other processes:" } else { "," };
        let _ = write!(text, "{word} pid {pid} {}", Bytes(*bytes));
    }
    let others = found.neighbours.len() - known.len().min(3);
    if !known.is_empty() && others > 0 {
        let _ = write!(text, ", {others} more");
    }
    text
}

/// Totals that a framework reports may have any value: the sum saturates.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// The sum, and its parts in the same unit.
fn used(parts: &[Part]) -> String {
    let sum = sum(parts.iter().map(|(_, bytes)| *bytes));
    let step = match sum {
        0x4000_0000.. => 1u64 << 30,
        _ => 1 << 20,
    };
    let in_step = |bytes: u64| bytes as f64 / step as f64;
    let unit = if step == 1 << 30 { "GiB" } else { "MiB" };
    let mut text = format!("{:.2} {unit}", in_step(sum));
    let shown = |(_, bytes): &&Part| *bytes >= step / 200;
    for (n, (name, bytes)) in parts.iter().filter(shown).take(PARTS_MOST).enumerate() {
        let _ = write!(text, " {} {name} {:.2}", if n == 0 { '=' } else { '+' }, in_step(*bytes));
    }
    text
}

fn figures(found: &Findings) -> Figures {
    Figures::of(&found.event, found.free_inside).with_other_limit(found.other)
}

fn why(found: &Findings) -> String {
    let size = Bytes(found.event.size);
    let free = Bytes(found.free_inside);
    let hole = match found.event.largest_hole {
        Some(hole) => format!("largest hole {}", Bytes(hole)),
        None => "in pieces".into(),
    };
    let figures = figures(found);
    let (cause, left) = (figures.cause(), figures.left);
    let begin = cause.words();
    match cause {
        Cause::Fragmentation if figures.is_free_enough() => {
            format!("{begin}: {free} free inside torch, {hole}; in one piece {size} would fit")
        }
        Cause::Fragmentation => format!(
            "{begin}: {free} free inside torch, {hole}, and {} left; together {size} would fit",
            Bytes(left.unwrap_or(0))
        ),
        _ => {
            let mut text = format!("{begin}: {size} asked for");
            match left {
                Some(_) if figures.over > 0 => {
                    let _ = write!(text, ", {} over the limit already", Bytes(figures.over));
                }
                Some(left) => {
                    let _ = write!(text, ", {} left", Bytes(left));
                }
                None => {}
            }
            if is_framework(found) {
                let _ = write!(text, ", {free} free inside torch");
            }
            if let Some(hole) = figures.largest_hole.filter(|hole| *hole >= figures.size) {
                let hole = Bytes(hole);
                let _ = write!(text, " ({hole} of it in one piece, for another stream or pool)");
            }
            let missing = figures.missing();
            if missing > 0 {
                let _ = write!(text, ": {} short", Bytes(missing));
            }
            text
        }
    }
}

fn holds(holder: &Holder, before_ns: Option<u64>) -> String {
    let Holder { bytes, count, of_framework, place } = holder;
    let what = match (*of_framework, *count) {
        (true, 1) => "block",
        (true, _) => "blocks",
        (false, 1) => "allocation",
        (false, _) => "allocations",
    };
    let place = place.as_deref().unwrap_or("where is not known");
    let text = format!("{:>10} {place}   {count} {what}", Bytes(*bytes).to_string());
    match before_ns {
        Some(ns) => format!("{text} ({:.1} ms earlier)", ns as f64 / 1e6),
        None => text,
    }
}

fn absorbed(found: &Findings) -> Option<String> {
    let PostMortem { absorbed, cache, .. } = found.event;
    let how = match cache {
        Some(_) => "torch absorbed by emptying its cache",
        None => "the program lived with",
    };
    match absorbed {
        0 => None,
        1 => Some(format!("1 refusal that {how} (harmless)")),
        n => Some(format!("{n} refusals that {how} (harmless)")),
    }
}

fn advice(found: &Findings) -> String {
    let PostMortem { by, size, counted, driver_free, largest_hole, .. } = found.event;
    let mut all = Vec::new();
    if figures(found).cause() == Cause::Fragmentation && found.could_expand {
        all.push("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_string());
    }
    let card_has_it = driver_free.is_none_or(|free| free >= found.whole);
    match by {
        Some(RefusedBy::Cap) if card_has_it => {
            all.push(format!("a cap of {}", rounded_up(counted.saturating_add(found.whole))));
        }
        Some(RefusedBy::Group) if card_has_it => {
            all.push(format!("a group cap of {}", rounded_up(counted.saturating_add(found.whole))));
        }
        Some(RefusedBy::Driver) => {
            let theirs = sum(found.neighbours.iter().filter_map(|(_, bytes)| *bytes));
            if theirs > 0 && driver_free.unwrap_or(0).saturating_add(theirs) >= size {
                all.push(format!("a card without the {} of other processes", Bytes(theirs)));
            }
        }
        None => all.push("a larger fraction (torch.cuda.set_per_process_memory_fraction)".into()),
        _ => {}
    }
    let most = figures(found).left.unwrap_or(0).max(largest_hole.unwrap_or(0));
    if is_framework(found) {
        all.push("a smaller batch".into());
    } else if most > 0 {
        all.push(format!("a smaller request: {} would fit", Bytes(most)));
    } else {
        all.push("less memory held".into());
    }
    // A setting that is copied as a word has no comma behind it.
    all.join(" or ")
}

/// Up to the next tenth of a GiB, or the next MiB, as a cap is written.
fn rounded_up(bytes: u64) -> String {
    match bytes {
        0x4000_0000.. => {
            let tenths = (u128::from(bytes) * 10).div_ceil(1 << 30);
            format!("{}.{} GiB", tenths / 10, tenths % 10)
        }
        _ => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}

fn more(found: &Findings) -> String {
    let mut text = match &found.trace {
        Some(trace) => format!("vramtrace oom {trace}   ("),
        None => "in a trace, but none is recorded (VRAMTRACE_OUT=off)   (".to_string(),
    };
    if let Some(quiet) = found.quiet_s {
        let _ = write!(text, "quiet for {quiet} s; ");
    }
    text + "VRAMTRACE_OOM_REPORT=off)"
}

#[cfg(test)]
mod tests;
