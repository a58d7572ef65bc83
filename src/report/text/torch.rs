//! The section of a report about PyTorch's caching allocator on one device.

use vramtrace_format::DeviceId;

use super::layout::{PLAIN, Table, WARN, bars, line, room, section};
use crate::analysis::Process;
use crate::replay::DeviceState;
use crate::report::segments::SegmentCounts;
use crate::units::{seconds, several, size};

/// Maximum width of a curve in characters.
const COLUMNS: usize = 36;

/// The section of a device; empty if PyTorch's allocator was not used on it.
pub(super) fn of_device(process: &Process, id: DeviceId, device: &DeviceState) -> String {
    let cache = &device.cache;
    if !cache.is_used() {
        return String::new();
    }
    let mut table = Table::titled(4, "llrl", &["PyTorch's cache", "", "now", "highest"]);
    let ended = process.fatal().iter().any(|fatal| fatal.oom.device == id);
    let [allocated, reserved] = process.over_time.get(&id).map_or_else(Default::default, |of| {
        // Names and figures take 55 characters.
        let cells = room(55).clamp(5, COLUMNS);
        [&of.allocated, &of.reserved].map(|curve| curve.columns(process.ending.last_ns, cells))
    });
    let most = reserved.iter().chain(&allocated).copied().max().unwrap_or(0);
    let mark = if ended { "✗" } else { "" };
    for (name, curve, mark, now, peak) in [
        ("reserved", reserved, mark, cache.reserved, cache.peak_reserved),
        ("allocated", allocated, "", cache.allocated, cache.peak_allocated),
    ] {
        if peak.bytes == 0 && cache.outside > 0 {
            table.row([name.into(), String::new(), "not known".into(), String::new()]);
            continue;
        }
        let curve = format!("{}{mark}", bars(&curve, most));
        let peak = format!("{} at {}", size(peak.bytes), seconds(peak.time_ns));
        table.row([name.into(), curve, size(now), peak]);
    }
    let counts = SegmentCounts::of(process, id);
    let mut out = section(table.render());
    let mut say = |style, text: String| out.push_str(&line(4, style, &text));
    let pinned = match counts.held_by_one {
        0 => String::new(),
        n => format!("; {} for one small block", several(n, "segment")),
    };
    let inside = match counts.largest_hole {
        None => "; which memory is free between them was not recorded".to_string(),
        Some(hole) => format!(", the largest hole {}{pinned}", size(hole)),
    };
    let (blocks, segments) = (several(cache.blocks, "block"), several(counts.segments, "segment"));
    say(PLAIN, format!("{blocks} in {segments}{inside}"));
    if let Some(part) = cache.fragmentation() {
        let part = part * 100.0;
        say(PLAIN, format!("fragmentation {part:.0} %: highest reserved, never in tensors"));
    }
    if cache.ooms > 0 {
        let after = if cache.ended_in_oom() { "" } else { ", and the run went on" };
        say(WARN, format!("torch.OutOfMemoryError raised {}{after}", several(cache.ooms, "time")));
    }
    if cache.reserved_paused > 0 {
        let (reserved, blocks) = (size(cache.reserved_paused), size(cache.paused));
        say(
            PLAIN,
            format!(
                "{reserved} of the reserved asleep: unmapped, may come back; {blocks} of it in blocks"
            ),
        );
    }
    if cache.outside > 0 {
        let bytes = size(cache.outside);
        say(WARN, format!("{bytes} of blocks lie on memory that no driver call showed"));
    }
    if cache.disagreements > 0 {
        let times = several(cache.disagreements, "time");
        say(WARN, format!("PyTorch's own totals differed from these {times}"));
    }
    out
}
