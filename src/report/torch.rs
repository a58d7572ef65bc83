//! What a report says of PyTorch's cache: its curves, and why it gave up.

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::layout::{PLAIN, Table, WARN, paint, several};
use crate::analysis::oom::PostMortem;
use crate::analysis::{Level, Moment, Process};
use crate::replay::{CacheSums, DeviceState, SegmentAt};
use crate::units::{gib, seconds, size};

/// Of `report --json`, a device's. Absent where no blocks were recorded.
#[derive(Debug, Serialize)]
pub struct TorchFacts {
    pub allocated_bytes: u64,
    pub reserved_bytes: u64,
    pub peak_allocated_bytes: u64,
    pub peak_allocated_at_s: f64,
    pub peak_reserved_bytes: u64,
    pub peak_reserved_at_s: f64,
    /// 1 - peak allocated / peak reserved.
    pub fragmentation: Option<f64>,
    pub free_in_segments_bytes: u64,
    pub largest_free_block_bytes: u64,
    pub segments: u64,
    /// Held by one block that takes less than half of it.
    pub segments_held_by_one_block: u64,
    pub blocks: u64,
    pub allocations: u64,
    pub frees: u64,
    /// Of the allocated bytes, those on memory that no driver call showed.
    pub outside_bytes: u64,
    /// How often PyTorch's own totals were others than these.
    pub disagreements: u64,
    /// The run ended with it; absent where it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<FatalFacts>,
}

#[derive(Debug, Serialize)]
pub struct FatalFacts {
    pub at_s: f64,
    /// The block that was asked for.
    pub size_bytes: u64,
    /// `fragmentation`, `cap`, `bad_cap`, `card`, `torch` (its own limit) or `unknown`.
    pub cause: &'static str,
    pub cap_bytes: Option<u64>,
    pub allocated_bytes: u64,
    pub reserved_bytes: u64,
    pub free_in_segments_bytes: u64,
    pub largest_free_block_bytes: u64,
    pub segments_pinned: u64,
    /// PYTORCH_CUDA_ALLOC_CONF with which the replayed run fits.
    pub fix: Option<String>,
    pub smallest_capacity_bytes: Option<u64>,
}

pub fn facts(process: &Process, id: DeviceId, device: &DeviceState) -> Option<TorchFacts> {
    let cache = &device.cache;
    if !cache.is_used() {
        return None;
    }
    let room = Room::of(process, id);
    let of_cache = |fatal: &&PostMortem| fatal.oom.device == id && fatal.oom.level == Level::Tensor;
    let fatal = process.fatal.iter().find(of_cache);
    let s = |ns: u64| ns as f64 / 1e9;
    Some(TorchFacts {
        allocated_bytes: cache.allocated,
        reserved_bytes: cache.reserved,
        peak_allocated_bytes: cache.peak_allocated.bytes,
        peak_allocated_at_s: s(cache.peak_allocated.time_ns),
        peak_reserved_bytes: cache.peak_reserved.bytes,
        peak_reserved_at_s: s(cache.peak_reserved.time_ns),
        fragmentation: cache.fragmentation(),
        free_in_segments_bytes: cache.free(),
        largest_free_block_bytes: room.largest_hole,
        segments: room.segments,
        segments_held_by_one_block: room.held_by_one,
        blocks: cache.blocks,
        allocations: cache.allocations,
        frees: cache.frees,
        outside_bytes: cache.outside,
        disagreements: cache.disagreements,
        out_of_memory: fatal.map(|fatal| FatalFacts {
            at_s: s(fatal.oom.time_ns),
            size_bytes: fatal.oom.size,
            cause: fatal.cause.name(),
            cap_bytes: fatal.oom.refusal.map(|at| at.refused.limit).filter(|limit| *limit > 0),
            allocated_bytes: fatal.allocated,
            reserved_bytes: fatal.reserved,
            free_in_segments_bytes: fatal.free,
            largest_free_block_bytes: fatal.largest_hole,
            segments_pinned: fatal.pinned,
            fix: fatal.remedy.as_ref().and_then(|it| Some(it.fix.as_ref()?.0.clone())),
            smallest_capacity_bytes: fatal.remedy.as_ref().and_then(|it| it.as_it_is),
        }),
    })
}

/// What only the segments themselves tell.
struct Room {
    segments: u64,
    held_by_one: u64,
    largest_hole: u64,
}

impl Room {
    fn of(process: &Process, id: DeviceId) -> Room {
        let all = process.state.segments();
        let here: Vec<&SegmentAt> = all.iter().filter(|segment| segment.device == id).collect();
        Room {
            segments: here.len() as u64,
            held_by_one: here.iter().filter(|segment| segment.is_pinned_by_one()).count() as u64,
            largest_hole: here.iter().map(|segment| segment.largest_hole()).max().unwrap_or(0),
        }
    }
}

/// Characters of a curve.
const COLUMNS: usize = 36;

/// The part of a device.
pub(super) fn of_device(process: &Process, id: DeviceId, device: &DeviceState) -> String {
    let cache = &device.cache;
    if !cache.is_used() {
        return String::new();
    }
    let mut table = Table::new(4, "llrl");
    table.head(&["PyTorch's cache", "", "now", "highest"]);
    let ended = process.fatal.iter().any(|fatal| fatal.oom.device == id);
    let (allocated, reserved) = process.curves.get(&id).map_or_else(Default::default, |curves| {
        let (allocated, reserved) = curves.columns(process.ending.last_ns, COLUMNS);
        let most = reserved.iter().chain(&allocated).copied().max().unwrap_or(0);
        (spark(&allocated, most), spark(&reserved, most))
    });
    let mark = if ended { "✗" } else { "" };
    for (name, curve, now, peak) in [
        ("reserved", format!("{reserved}{mark}"), cache.reserved, cache.peak_reserved),
        ("allocated", allocated, cache.allocated, cache.peak_allocated),
    ] {
        table.row([
            name.into(),
            curve,
            gib(now),
            format!("{} at {}", gib(peak.bytes), seconds(peak.time_ns)),
        ]);
    }
    let room = Room::of(process, id);
    let mut out = format!("\n{}", table.render());
    let mut say = |style, text: String| out.push_str(&format!("    {}\n", paint(style, &text)));
    say(
        PLAIN,
        format!(
            "{} in {}, the largest hole {}{}",
            several(cache.blocks, "block"),
            several(room.segments, "segment"),
            size(room.largest_hole),
            match room.held_by_one {
                0 => String::new(),
                n => format!("; {} for one small block", several(n, "segment")),
            }
        ),
    );
    if let Some(part) = cache.fragmentation() {
        say(
            PLAIN,
            format!("fragmentation {:.0} %: highest reserved, never in tensors", part * 100.0),
        );
    }
    if cache.refusals_recovered > 0 || cache.ooms > 0 {
        say(if cache.ooms > 0 { WARN } else { PLAIN }, refusals(cache));
    }
    if cache.outside > 0 {
        let text =
            format!("{} of blocks lie on memory that no driver call showed", gib(cache.outside));
        say(WARN, text);
    }
    if cache.disagreements > 0 {
        let times = several(cache.disagreements, "time");
        say(WARN, format!("PyTorch's own totals differed from these {times}"));
    }
    out
}

fn refusals(cache: &CacheSums) -> String {
    let absorbed = match cache.refusals_recovered {
        0 => String::new(),
        n => format!("{} absorbed by PyTorch: it emptied its cache", several(n, "refusal")),
    };
    let raised = match cache.ooms {
        0 => String::new(),
        n => {
            let after = if cache.ended_in_oom() { "" } else { ", and the run went on" };
            format!("torch.OutOfMemoryError raised {}{after}", several(n, "time"))
        }
    };
    [absorbed, raised].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Bars of eight heights; nothing for 0.
fn spark(values: &[u64], most: u64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |value: &u64| match *value {
        0 => ' ',
        value => {
            let eighths = u128::from(value) * 8 / u128::from(most.max(1));
            BARS[(eighths.clamp(1, 8) - 1) as usize]
        }
    };
    values.iter().map(bar).collect()
}

/// The rows of the sum that allocations are made of, where that is known: bytes and words.
pub(super) fn parts(
    process: &Process,
    device: &DeviceState,
    shown: Moment,
) -> Option<[(u64, &'static str); 3]> {
    let cache = &device.cache;
    let known = shown != Moment::Peak && process.state.live_is_known() && cache.outside == 0;
    let others = device.live_bytes.checked_sub(cache.reserved)?;
    (known && cache.reserved > 0).then_some([
        (cache.allocated, "tensors"),
        (cache.free(), "unused in PyTorch's cache"),
        (others, "other allocations"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_part_of_the_highest() {
        assert_eq!(spark(&[0, 1, 50, 100], 100), " ▁▄█");
        assert_eq!(spark(&[u64::MAX], u64::MAX), "█");
        assert_eq!(spark(&[0], 0), " ");
    }
}
