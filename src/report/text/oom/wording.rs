//! The sentences of a post-mortem, without colours.

use std::borrow::Cow;

use vramtrace_format::oom;
use vramtrace_format::{Refused, RefusedBy};

use super::super::sum::on_one_line;
use crate::analysis::Level;
use crate::analysis::oom::{
    Advice, AdvisedChange, AtStep, CacheAtOom, Neighbour, Oom, OomCause, OtherStreams, PostMortem,
    Spread, Used, UsedPart, UsedSum,
};
use crate::analysis::whatif::LARGEST_DEVICE;
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
    format!("{rank}{}{pid}", device(&one.oom))
}

/// What had too little memory: `cuda:3`, `host`.
pub(super) fn device(oom: &Oom) -> String {
    if oom.is_of_host() { "host".to_string() } else { cuda_name(oom.device) }
}

/// `23 asked 1.31 GiB; the largest requests of steps 1 to 22: 409.60 MiB to 921.60 MiB`.
pub(in crate::report) fn step(step: AtStep) -> String {
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

/// The least memory that a cache keeps unused and that is mentioned: the driver's pools grow in steps of 32 MiB.
const MIN_KEPT: u64 = 64 << 20;

/// The limit that the request exceeded, and the free memory of the card.
pub(in crate::report) fn limit(one: &PostMortem) -> String {
    let refused = one.oom.refusal.map(|at| at.refused).filter(|_| !one.imported);
    let limit = match refused {
        Some(_) if one.oom.is_of_host() => return "host memory, not the GPU's".to_string(),
        Some(Refused { by, counted, limit, .. }) => {
            oom::limit(one.cause, by, counted, limit, one.card_bytes)
        }
        None if one.own_limit => {
            oom::own_limit(one.cache.reserved_bytes.saturating_add(one.oom.size))
        }
        None if one.is_imported_from_full_card() => "the card".to_string(),
        None if one.imported => {
            let least = one.device.cache.peak_reserved.bytes;
            let before = format!("; PyTorch had {} reserved before", size(least));
            let own = match one.card_free() {
                Some(_) => ", unless it is PyTorch's own (set_per_process_memory_fraction)",
                None => "",
            };
            format!(
                "not in what was imported{own}{}",
                if least > 0 { before } else { String::new() }
            )
        }
        None => "not known: the trace shows no refused call".to_string(),
    };
    let by = refused.map(|refused| refused.by);
    let Some(free) = one.card_free().filter(|_| by != Some(RefusedBy::BadCap)) else {
        return limit;
    };
    let (run, others): (Vec<&Neighbour>, Vec<_>) =
        one.oom.neighbours.iter().partition(|it| it.of_run);
    let others = others.into_iter().map(|other| (other.pid, other.bytes));
    let bytes = run.iter().filter_map(|it| it.bytes).reduce(u64::saturating_add);
    let bytes = bytes.map_or(String::new(), |bytes| format!(", {}", size(bytes)));
    let of_run = format!("; other processes of this run: {}{bytes}", run.len());
    let of_run = if run.is_empty() { String::new() } else { of_run };
    // NVML listed none, as in a container.
    let unlisted = one.others().filter(|_| one.oom.neighbours.is_empty());
    let unlisted = unlisted.map(|bytes| format!("; other processes: {}", size(bytes)));
    limit + &oom::card_had(free, one.oom.size, by, others) + &unlisted.unwrap_or(of_run)
}

/// Why the request did not fit.
pub(in crate::report) fn why(one: &PostMortem) -> String {
    let asked = size(one.oom.size);
    let figures = &one.figures;
    if let Some(spread) = one.spread {
        return in_pool(one.cause, spread);
    }
    match one.cause {
        OomCause::BadCap => return "the setting is wrong, not the program".to_string(),
        OomCause::Fragmentation if one.oom.level == Level::Driver => {
            let free = size(figures.free);
            return format!(
                "fragmentation: {free} free in the driver's pools, beside live allocations: only smaller requests of these pools fit there"
            );
        }
        OomCause::Fragmentation => {
            let pinned = several(one.cache.segments_pinned, "pinned segment");
            return figures.in_pieces(&format!("in {pinned}, ")) + &unavailable(&one.cache, "more");
        }
        OomCause::Cap
        | OomCause::Card
        | OomCause::Mps
        | OomCause::Cgroup
        | OomCause::Torch
        | OomCause::Unknown => {}
    }
    if let Some(call) = &one.other_call {
        let bytes = if one.oom.size > 0 { format!(", for {asked}") } else { String::new() };
        let whose = match one.oom.is_of_host() {
            true => {
                "; the driver does not say whether `ulimit -l`, a cgroup or the machine has less"
            }
            false => "",
        };
        return format!("{} was refused{bytes}{whose}", clean(call));
    }
    if let Some(card) = one.card_bytes.filter(|card| one.oom.size > *card) {
        return format!("asked {asked}: more than the whole card has ({})", size(card));
    }
    let cache = &one.cache;
    if one.may_pass_again() {
        let waiting = size(cache.streams.waiting_bytes);
        return format!(
            "asked {asked} while {waiting} of freed blocks only waited for another stream: the same request may pass when repeated"
        );
    }
    let capped = one.oom.refusal.map(|at| at.refused.limit).filter(|limit| *limit > 0);
    let ever = capped.or(one.card_bytes).unwrap_or(LARGEST_DEVICE);
    figures.no_room(one.room(), ever)
        + &match one.oom.level {
            Level::Tensor => in_cache(one),
            Level::Driver => {
                let kept = [
                    ("PyTorch's cache keeps", cache.releasable_bytes, "tensor"),
                    ("the driver's pools keep", one.device.free_in_pools(), "allocation"),
                ];
                let kept = kept.into_iter().filter(|(_, bytes, _)| *bytes >= MIN_KEPT);
                kept.map(|(who, bytes, what)| {
                    format!("; {who} {} that no {what} uses", size(bytes))
                })
                .collect()
            }
        }
}

/// PyTorch's cache, where it had no room.
fn in_cache(one: &PostMortem) -> String {
    let (cache, hole) = (&one.cache, one.cache.largest_free_block_bytes);
    let [allocated, free] = [cache.allocated_bytes, cache.free_in_segments_bytes].map(size);
    let mut text = format!("; {allocated} allocated");
    if cache.segments > 0 || !one.imported {
        text += &format!(", {free} free in cache");
    }
    if hole >= one.oom.size {
        text +=
            &format!(" (a hole of {} would do, but it is another stream's or pool's)", size(hole));
    }
    text + &unavailable(cache, "of it")
}

/// Free memory of the cache that could not serve the request; `of`: whether the figure before has it.
fn unavailable(cache: &CacheAtOom, of: &str) -> String {
    let OtherStreams { waiting_bytes, other_stream_bytes } = cache.streams;
    let parts = [
        (waiting_bytes, "waiting for another stream"),
        (other_stream_bytes, "for another stream"),
        (cache.private_bytes, "in private pools (CUDA graphs, torch.cuda.MemPool)"),
    ];
    let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
    parts.map(|(bytes, what)| format!("; {} {of} {what}", size(bytes))).collect()
}

/// Why a pool refused whose size and reserve are not in what was imported.
fn in_pool(cause: OomCause, spread: Spread) -> String {
    let used = size(spread.bytes);
    match cause {
        OomCause::Fragmentation => format!(
            "a fragmented pool is likely: {used} in use, over {} of addresses, with {} in holes of up to {}",
            size(spread.from_first_to_last),
            size(spread.holes),
            size(spread.largest_hole)
        ),
        _ => format!("not known: {used} in use; how large the pool may be is not in the file"),
    }
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
        UsedPart::FreeInPools => "free in pools".into(),
        UsedPart::Rounding => "pages and graphs".into(),
        UsedPart::Context => "context".into(),
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
        AdvisedChange::Repeat => format!(
            "torch.cuda.synchronize(), then the same request: {} only waited for other streams",
            size(bytes)
        ),
        AdvisedChange::CorrectCap => "correct VRAMTRACE_CAP: 8GiB, 50%, 0=8GiB,1=50%".into(),
        AdvisedChange::Setting => format!(
            "PYTORCH_CUDA_ALLOC_CONF={}   (replayed, it {})",
            quoted(advice.conf.as_deref().unwrap_or_default()),
            fits(advice)
        ),
        AdvisedChange::Cap => format!("a cap of {}", units::enough(bytes)),
        AdvisedChange::GroupCap => format!("a cap of {} for the group", units::enough(bytes)),
        AdvisedChange::MemoryFraction => {
            "a larger torch.cuda.set_per_process_memory_fraction".into()
        }
        AdvisedChange::Card => format!("{} of the card for this process", size(bytes)),
        AdvisedChange::LargerCard => {
            format!("a card with {} for this process", units::enough(bytes))
        }
        AdvisedChange::EmptyCache => {
            format!("torch.cuda.empty_cache() before it: {} go back to the driver", size(bytes))
        }
        AdvisedChange::PrivatePools => format!(
            "the CUDA graphs or torch.cuda.MemPool deleted first: {} go back to the driver",
            size(bytes)
        ),
        AdvisedChange::ProgramOption => {
            format!("lower {}", advice.conf.as_deref().unwrap_or_default().replace('=', " to "))
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
fn fits(advice: &Advice) -> String {
    let under = advice.under.map_or("", fits_in_words);
    format!("fits {under}, {} to spare", size(advice.spare_bytes.unwrap_or(0)))
}

/// Earlier refusals that were absorbed, and repetitions of this request.
pub(super) fn before(one: &PostMortem) -> Vec<String> {
    let oom = &one.oom;
    let mut all = Vec::new();
    if oom.absorbed > 0 {
        let how = oom::absorbed(oom.level == Level::Tensor);
        all.push(format!("{} {how}", several(oom.absorbed, "refusal")));
    }
    if oom.requests > 1 {
        let since = seconds(oom.first_ns);
        all.push(format!("{} got nothing since {since}", several(oom.requests, "request")));
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
