//! The section of a report about PyTorch's caching allocator on one device.

use vramtrace_format::DeviceId;

use super::layout::{PLAIN, Table, WARN, paint, room};
use crate::analysis::Process;
use crate::replay::DeviceState;
use crate::report::segments::SegmentCounts;
use crate::units::{gib, seconds, several, size};

/// The most characters of a curve.
const COLUMNS: usize = 36;

/// The section of a device; empty if PyTorch's allocator was not used on it.
pub(super) fn of_device(process: &Process, id: DeviceId, device: &DeviceState) -> String {
    let cache = &device.cache;
    if !cache.is_used() {
        return String::new();
    }
    let mut table = Table::new(4, "llrl");
    table.head(&["PyTorch's cache", "", "now", "highest"]);
    let ended = process.fatal.iter().any(|fatal| fatal.oom.device == id);
    let (allocated, reserved) = process.curves.get(&id).map_or_else(Default::default, |curves| {
        // Names and figures take 55 characters.
        let cells = room(55).clamp(5, COLUMNS);
        let (allocated, reserved) = curves.columns(process.ending.last_ns, cells);
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
    let counts = SegmentCounts::of(process, id);
    let mut out = format!("\n{}", table.render());
    let mut say = |style, text: String| out.push_str(&format!("    {}\n", paint(style, &text)));
    let inside = match counts.largest_hole {
        None => "; which memory is free between them was not recorded".to_string(),
        Some(hole) => format!(
            ", the largest hole {}{}",
            size(hole),
            match counts.held_by_one {
                0 => String::new(),
                n => format!("; {} for one small block", several(n, "segment")),
            }
        ),
    };
    let (blocks, segments) = (several(cache.blocks, "block"), several(counts.segments, "segment"));
    say(PLAIN, format!("{blocks} in {segments}{inside}"));
    if let Some(part) = cache.fragmentation() {
        say(
            PLAIN,
            format!("fragmentation {:.0} %: highest reserved, never in tensors", part * 100.0),
        );
    }
    if cache.ooms > 0 {
        let after = if cache.ended_in_oom() { "" } else { ", and the run went on" };
        say(WARN, format!("torch.OutOfMemoryError raised {}{after}", several(cache.ooms, "time")));
    }
    if cache.reserved_paused > 0 {
        let text = format!(
            "{} of the reserved asleep: unmapped, may come back; {} of it in blocks",
            size(cache.reserved_paused),
            size(cache.paused)
        );
        say(PLAIN, text);
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

/// A curve as bars of eight heights; a space for 0. `most`: the value of the highest bar.
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
