//! The sentences of a post-mortem, without colours.

use std::borrow::Cow;

use vramtrace_format::RefusedBy;

use super::super::sum::on_one_line;
use crate::analysis::Level;
use crate::analysis::oom::{
    Advice, AdvisedChange, AtStep, Neighbour, OomCause, PostMortem, Used, UsedPart, UsedSum,
};
use crate::facts::ProcessId;
use crate::replay::DeviceState;
use crate::report::oom::fits_in_words;
use crate::report::shell::quoted;
use crate::report::wording::{cuda_name, headline};
use crate::units::{self, clean, seconds, several, size};

/// `rank 3 cuda:3 pid 4711`.
pub(super) fn process(id: ProcessId, one: &PostMortem) -> String {
    let rank = id.rank.map_or(String::new(), |rank| format!("rank {rank} "));
    let pid = if id.pid > 0 { format!(" pid {}", id.pid) } else { String::new() };
    format!("{rank}{}{pid}", cuda_name(one.oom.device))
}

/// `23 asked 1.31 GiB; the largest requests of steps 1 to 22: 409.60 MiB to 921.60 MiB`.
pub(super) fn step(step: AtStep) -> String {
    let AtStep { number, earlier_low_bytes, earlier_high_bytes, asked, .. } = step;
    let before = match number - 1 {
        1 => "step 1".to_string(),
        last => format!("steps 1 to {last}"),
    };
    match (earlier_low_bytes.map(size), earlier_high_bytes.map(size)) {
        (Some(low), Some(high)) => {
            let range = if low == high { high } else { format!("{low} to {high}") };
            format!("{number} asked {}; the largest requests of {before}: {range}", size(asked))
        }
        _ => format!("{number}, the first one"),
    }
}

/// The limit that the request exceeded, and the free memory of the card.
pub(in crate::report::text) fn limit(one: &PostMortem) -> String {
    let refused = one.oom.refusal.map(|at| at.refused);
    let limit = match refused {
        None if one.own_limit => {
            let least = size(one.cache.reserved_bytes.saturating_add(one.oom.size));
            format!("below {least} by PyTorch's own memory fraction: no call was refused")
        }
        None if one.is_imported_from_full_card() => "the card".to_string(),
        None if one.imported => {
            let least = size(one.device.cache.peak_reserved.bytes);
            format!("not in what was imported; PyTorch had {least} reserved before")
        }
        None => "not known: the trace shows no refused call".to_string(),
        Some(refused) => match refused.by {
            RefusedBy::BadCap => {
                return "VRAMTRACE_CAP cannot be understood: every request is refused".to_string();
            }
            RefusedBy::Group => format!(
                "{} by the group's cap; its processes together had {}",
                units::limit(refused.limit),
                size(refused.counted)
            ),
            RefusedBy::Cap => format!("{} by the cap", units::limit(refused.limit)),
            RefusedBy::Driver if one.cause == OomCause::Mps => {
                format!("what MPS allows this process ({})", vramtrace_format::oom::MPS_LIMIT)
            }
            RefusedBy::Driver if one.cause == OomCause::Cgroup => {
                format!("what the kernel's cgroup allows ({})", vramtrace_format::oom::CGROUP_LIMIT)
            }
            RefusedBy::Driver | RefusedBy::Warned => match one.card_bytes {
                Some(bytes) => format!("the card: {}", size(bytes)),
                None => "the card".to_string(),
            },
        },
    };
    let Some(free) = one.card_free() else { return limit };
    let so = match one.is_capped() {
        true if free >= one.oom.size => ": not the card",
        true => ": too little as well",
        false => "",
    };
    let others = neighbours(one).filter(|_| !one.is_capped());
    let others = others.map_or(String::new(), |others| format!("; {others}"));
    format!("{limit}; the card had {} free{so}{others}", size(free))
}

/// Other processes on the card, the largest first. `None`: none was listed.
fn neighbours(one: &PostMortem) -> Option<String> {
    const MAX_NEIGHBOURS: usize = 3;
    let mut all = one.oom.neighbours.clone();
    all.sort_by_key(|other| (std::cmp::Reverse(other.bytes), other.pid));
    let name = |Neighbour { pid, bytes }: &Neighbour| match bytes {
        Some(bytes) => format!("pid {pid} {}", size(*bytes)),
        None => format!("pid {pid}"),
    };
    let mut names: Vec<String> = all.iter().take(MAX_NEIGHBOURS).map(name).collect();
    if all.len() > MAX_NEIGHBOURS {
        names.push(format!("{} more", all.len() - MAX_NEIGHBOURS));
    }
    (!names.is_empty()).then(|| format!("other processes: {}", names.join(", ")))
}

/// How the free memory of the cache is divided: `in 106 pinned segments, largest hole 893.22 MiB`.
fn holes(one: &PostMortem) -> String {
    match one.figures.largest_hole {
        Some(hole) => {
            format!(
                "in {}, largest hole {}",
                several(one.cache.segments_pinned, "pinned segment"),
                size(hole)
            )
        }
        None => "in pieces".to_string(),
    }
}

/// Why the request did not fit.
pub(in crate::report) fn why(one: &PostMortem) -> String {
    let asked = size(one.oom.size);
    match one.cause {
        OomCause::BadCap => return "the setting is wrong, not the program".to_string(),
        OomCause::Fragmentation => {
            let free = size(one.figures.free);
            let found = format!("{}: {free} free in cache, {}", one.cause.words(), holes(one));
            return match one.figures.left {
                Some(left) if !one.figures.is_free_enough() => {
                    format!("{found}, and {} left; together {asked} would fit", size(left))
                }
                _ => format!("{found}; in one piece {asked} would fit"),
            };
        }
        OomCause::Cap
        | OomCause::Card
        | OomCause::Mps
        | OomCause::Cgroup
        | OomCause::Torch
        | OomCause::Unknown => {}
    }
    if let Some(card) = one.card_bytes.filter(|card| one.oom.size > *card) {
        return format!("asked {asked}: more than the whole card has ({})", size(card));
    }
    let short = match one.room() {
        Some(_) if one.figures.over > 0 => {
            let (over, missing) = (size(one.figures.over), size(one.figures.missing()));
            format!(", {over} over the limit already: {missing} short")
        }
        Some(room) => format!(", {} left of the limit", size(room)),
        None => String::new(),
    };
    let mut out = format!("{}: asked {asked}{short}", one.cause.words());
    if one.oom.level == Level::Tensor {
        out.push_str(&format!(
            "; {} allocated, {} free in cache",
            size(one.cache.allocated_bytes),
            size(one.cache.free_in_segments_bytes)
        ));
        if one.cache.largest_free_block_bytes >= one.oom.size {
            out.push_str(&format!(
                " (a hole of {} would do, but it is another stream's or pool's)",
                size(one.cache.largest_free_block_bytes)
            ));
        }
    } else if one.cache.releasable_bytes > 0 {
        let kept = size(one.cache.releasable_bytes);
        out.push_str(&format!("; PyTorch's cache keeps {kept} that no tensor uses"));
    }
    out
}

/// The name of a part of the sum, in a few words.
fn part(part: &Used) -> Cow<'static, str> {
    match part.what {
        UsedPart::Tensors => "allocated".into(),
        UsedPart::TorchCache => "free in cache".into(),
        UsedPart::Library => match part.library.as_deref() {
            Some(name) => clean(name).into(),
            None => "other allocations".into(),
        },
        UsedPart::Rounding => "pages and pools".into(),
        UsedPart::Context => "context".into(),
        UsedPart::Limits => "local memory and heaps".into(),
        UsedPart::Driver(cause) => format!("driver's {}", cause.words()).into(),
        UsedPart::Unattributed => "unattributed".into(),
        UsedPart::Counted => "under way".into(),
    }
}

/// `13.24 GiB = allocated 11.01 GiB + free in cache 1.51 GiB + ..`.
pub(super) fn sum(sum: &UsedSum) -> String {
    let parts = sum.parts.iter().map(|one| (part(one), one.bytes));
    format!("{} = {}", size(sum.bytes), on_one_line(parts))
}

/// One piece of advice as text.
pub(in crate::report) fn advice(advice: &Advice) -> String {
    let bytes = advice.bytes.unwrap_or(0);
    match advice.what {
        AdvisedChange::CorrectCap => "correct VRAMTRACE_CAP: 8GiB, 50%, 0=8GiB,1=50%".into(),
        AdvisedChange::Setting => format!(
            "PYTORCH_CUDA_ALLOC_CONF={}   (replayed, it {})",
            quoted(advice.conf.as_deref().unwrap_or_default()),
            fits(advice)
        ),
        AdvisedChange::Cap => format!("a cap of {}", units::enough(bytes)),
        AdvisedChange::MemoryFraction => {
            "a larger torch.cuda.set_per_process_memory_fraction".into()
        }
        AdvisedChange::Card => format!("{} of the card for this process", size(bytes)),
        AdvisedChange::EmptyCache => {
            format!("torch.cuda.empty_cache() before it: {} go back to the driver", size(bytes))
        }
        AdvisedChange::SmallerRequest => {
            format!("a smaller request: up to {} would have been served", size(bytes))
        }
        AdvisedChange::OtherProcesses => {
            format!("another card: other processes hold {} of this one", size(bytes))
        }
    }
}

/// Where the replay of a setting fits: `fits under the same cap, 1.29 GiB to spare`.
pub(in crate::report) fn fits(advice: &Advice) -> String {
    let under = advice.under.map_or("", fits_in_words);
    format!("fits {under}, {} to spare", size(advice.spare_bytes.unwrap_or(0)))
}

/// Earlier refusals that were absorbed, and repetitions of this request.
pub(super) fn before(one: &PostMortem) -> Vec<String> {
    let oom = &one.oom;
    let mut all = Vec::new();
    if oom.absorbed > 0 {
        let who = match oom.level {
            Level::Tensor => "that PyTorch absorbed by emptying its cache",
            Level::Driver => "after which the program went on",
        };
        all.push(format!("{} {who} (harmless)", several(oom.absorbed, "refusal")));
    }
    if oom.requests > 1 {
        let since = seconds(oom.first_ns);
        all.push(format!(
            "{} in a row got nothing since {since}",
            several(oom.requests, "request")
        ));
    }
    all
}

/// `peak 13.77 GiB counted of a cap of 14.44 GiB`.
pub(super) fn peak(device: &DeviceState) -> String {
    let of = &device.peak.in_use;
    // A cap is compared with what it counts.
    let counted = size(of.counted_by_cap());
    match (device.cap_bytes, device.group_cap_bytes) {
        (Some(cap), _) => format!("peak {counted} counted of a cap of {}", units::limit(cap)),
        (None, Some(cap)) => {
            format!("peak {counted} counted, the group's cap {}", units::limit(cap))
        }
        (None, None) => format!("peak {}, no cap", headline(of)),
    }
}
