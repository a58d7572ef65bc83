//! The sentences of a post-mortem, without colours.

use vramtrace_format::{Cause, RefusedBy};

use super::super::sum_line::sum_line;
use crate::analysis::Level;
use crate::analysis::oom::{
    Advice, AtStep, Cause as Why, Neighbour, PostMortem, UsedPart, UsedSum,
};
use crate::facts::ProcessId;
use crate::replay::DeviceState;
use crate::report::oom::fits_in_words;
use crate::report::shell::quoted;
use crate::report::wording::{cause_words, cuda_name, headline};
use crate::units::{self, clean, gib, several, size};

/// `rank 3 cuda:3 pid 4711`.
pub(super) fn process(id: ProcessId, one: &PostMortem) -> String {
    let rank = id.rank.map_or(String::new(), |rank| format!("rank {rank} "));
    let pid = if id.pid > 0 { format!(" pid {}", id.pid) } else { String::new() };
    format!("{rank}{}{pid}", cuda_name(one.oom.device))
}

/// `23 asked 1.31 GiB, steps 1 to 22 asked 0.40 to 0.90 GiB at most`.
pub(super) fn step(step: AtStep) -> String {
    let AtStep { number, differs, earlier_low_bytes, earlier_high_bytes, asked } = step;
    let Some((low, high)) = earlier_low_bytes.zip(earlier_high_bytes) else {
        return format!("{number}, the first one");
    };
    let before = match number - 1 {
        1 => "step 1".to_string(),
        last => format!("steps 1 to {last}"),
    };
    let range = match (size(low), size(high)) {
        (low, high) if low == high => high,
        (low, high) => format!("{low} to {high}"),
    };
    match differs {
        true => {
            format!("{number} asked {}; the largest requests of {before}: {range}", size(asked))
        }
        false => format!("{number}, which asked no more than {before}: {range}"),
    }
}

/// The limit that the request exceeded, and the free memory of the card.
pub(super) fn limit(one: &PostMortem) -> String {
    let refused = one.oom.refusal.map(|at| at.refused);
    let limit = match refused {
        None if one.own_limit => {
            let least = size(one.reserved.saturating_add(one.oom.size));
            format!("below {least} by PyTorch's own memory fraction: no call was refused")
        }
        None if one.is_imported_from_full_card() => "the card".to_string(),
        None if one.imported => {
            let least = gib(one.device.cache.peak_reserved.bytes);
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
                gib(refused.counted)
            ),
            RefusedBy::Cap => format!("{} by the cap", units::limit(refused.limit)),
            RefusedBy::Driver if one.cause == Why::Mps => {
                format!("what MPS allows this process ({})", vramtrace_format::oom::MPS_LIMIT)
            }
            RefusedBy::Driver if one.cause == Why::Cgroup => {
                format!("what the kernel's cgroup allows ({})", vramtrace_format::oom::CGROUP_LIMIT)
            }
            RefusedBy::Driver | RefusedBy::Warned => match one.card_bytes {
                Some(bytes) => format!("the card: {}", gib(bytes)),
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
    let others = neighbours(one).map_or(String::new(), |others| format!("; {others}"));
    let others = if one.is_capped() { String::new() } else { others };
    format!("{limit}; the card had {} free{so}{others}", size(free))
}

/// Other processes on the card, the largest first. `None`: none was listed.
pub(super) fn neighbours(one: &PostMortem) -> Option<String> {
    const MOST: usize = 3;
    let mut all = one.oom.neighbours.clone();
    all.sort_by_key(|other| (std::cmp::Reverse(other.bytes), other.pid));
    let name = |Neighbour { pid, bytes }: &Neighbour| match bytes {
        Some(bytes) => format!("pid {pid} {}", size(*bytes)),
        None => format!("pid {pid}"),
    };
    let mut names: Vec<String> = all.iter().take(MOST).map(name).collect();
    if all.len() > MOST {
        names.push(format!("{} more", all.len() - MOST));
    }
    (!names.is_empty()).then(|| format!("other processes: {}", names.join(", ")))
}

/// How the free memory of the cache is divided: `in 106 pinned segments, largest hole 893.22 MiB`.
pub(super) fn holes(one: &PostMortem) -> String {
    match one.figures.largest_hole {
        Some(hole) => {
            format!("in {}, largest hole {}", several(one.pinned, "pinned segment"), size(hole))
        }
        None => "in pieces".to_string(),
    }
}

/// Why the request did not fit.
pub(super) fn why(one: &PostMortem) -> String {
    let asked = size(one.oom.size);
    match one.cause {
        Why::BadCap => return "the setting is wrong, not the program".to_string(),
        Why::Fragmentation => {
            let free = size(one.figures.free);
            let found = format!("{}: {free} free inside PyTorch {}", one.cause.words(), holes(one));
            return match one.figures.left {
                Some(left) if !one.figures.is_free_enough() => {
                    format!("{found}, and {} left; together {asked} would fit", size(left))
                }
                _ => format!("{found}; in one piece {asked} would fit"),
            };
        }
        Why::Cap | Why::Card | Why::Mps | Why::Cgroup | Why::Torch | Why::Unknown => {}
    }
    if let Some(card) = one.card_bytes.filter(|card| one.oom.size > *card) {
        return format!("asked {asked}: more than the whole card has ({})", gib(card));
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
            "; {} in tensors, {} free in PyTorch's cache",
            size(one.allocated),
            size(one.free)
        ));
        if one.largest_hole >= one.oom.size {
            out.push_str(&format!(
                " (a hole of {} would do, but it is another stream's or pool's)",
                size(one.largest_hole)
            ));
        }
    } else if one.releasable > 0 {
        let kept = size(one.releasable);
        out.push_str(&format!("; PyTorch's cache keeps {kept} that no tensor uses"));
    }
    out
}

/// The name of a part of the sum, in a few words.
pub(super) fn part(what: &UsedPart) -> String {
    match what {
        UsedPart::Tensors => "tensors".into(),
        UsedPart::TorchCache => "torch cache".into(),
        UsedPart::Library(Some(name)) => clean(name),
        UsedPart::Library(None) => "other allocations".into(),
        UsedPart::Rounding => "pages and pools".into(),
        UsedPart::Context => "context".into(),
        UsedPart::Limits => "local memory and heaps".into(),
        UsedPart::Driver(cause) => cause_words(*cause).into(),
        UsedPart::Unattributed => "unattributed".into(),
        UsedPart::Counted => "under way".into(),
    }
}

/// A short explanation of a part of the sum.
pub(super) fn meaning(what: &UsedPart) -> &'static str {
    match what {
        UsedPart::Tensors => "blocks of PyTorch's cache",
        UsedPart::TorchCache => "PyTorch's segments, in no block",
        UsedPart::Library(_) | UsedPart::Context => "",
        UsedPart::Rounding => "rest of 2 MiB pages, reserves",
        UsedPart::Limits => "larger limits (cuCtxSetLimit)",
        UsedPart::Driver(Cause::Modules) => "code of kernels and libraries",
        UsedPart::Driver(Cause::LocalMemory) => "registers and stacks of kernels",
        UsedPart::Driver(Cause::Sharing) => "peer access, imports, multicast",
        UsedPart::Driver(_) => "taken by the driver for itself",
        UsedPart::Unattributed => "kernels, heaps, libraries",
        UsedPart::Counted => "requests, steps of managed",
    }
}

/// `13.24 GiB = tensors 11.01 + torch cache 1.51 + ..`. The printed figures add up exactly.
pub(super) fn sum(sum: &UsedSum) -> String {
    let parts: Vec<_> = sum.parts.iter().map(|(what, bytes)| (part(what), *bytes)).collect();
    let parts: Vec<_> = parts.iter().map(|(what, bytes)| (what.as_ref(), *bytes)).collect();
    let (total, parts) = sum_line(&parts);
    format!("{total} = {parts}")
}

/// One piece of advice as text.
pub(in crate::report) fn advice(advice: &Advice) -> String {
    match advice {
        Advice::CorrectCap => "correct VRAMTRACE_CAP: 8GiB, 50%, 0=8GiB,1=50%".into(),
        Advice::Setting { conf, spare, origin } => {
            format!(
                "PYTORCH_CUDA_ALLOC_CONF={}   (replayed, it fits {}, {} to spare)",
                quoted(conf),
                fits_in_words(*origin),
                size(*spare)
            )
        }
        Advice::Cap { bytes } => format!("a cap of {}", units::enough(*bytes)),
        Advice::Fraction => "a larger torch.cuda.set_per_process_memory_fraction".into(),
        Advice::Card { bytes } => format!("{} of the card for this process", size(*bytes)),
        Advice::EmptyCache { bytes } => {
            format!("torch.cuda.empty_cache() before it: {} go back to the driver", size(*bytes))
        }
        Advice::Smaller { bytes } => {
            format!("a smaller request: up to {} would have been served", size(*bytes))
        }
        Advice::Others { bytes } => {
            format!("another card: other processes hold {} of this one", size(*bytes))
        }
    }
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
        let since = crate::units::seconds(oom.first_ns);
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
    let peak = match (device.cap_bytes, device.group_cap_bytes) {
        (None, None) => headline(of),
        // A cap is compared with what it counts.
        _ => format!("{} counted", gib(of.counted_by_cap())),
    };
    match (device.cap_bytes, device.group_cap_bytes) {
        (Some(cap), _) => format!("peak {peak} of a cap of {}", units::limit(cap)),
        (None, Some(cap)) => format!("peak {peak}, the group's cap {}", units::limit(cap)),
        (None, None) => format!("peak {peak}, no cap"),
    }
}
