//! The text of `vramtrace report --by phase`.

use std::collections::{BTreeMap, BTreeSet};

use vramtrace_format::DeviceId;

use super::layout::{BOLD, DIM, Table, line, paint, section};
use crate::analysis::{Phase, SampledPhase};
use crate::report::wording::gpu_name;
use crate::units::{clean, count, seconds, shorten, size};

/// Maximum length of a phase's name in characters.
const WIDTH: usize = 48;

/// `epoch > forward`, as the recorder's history has it.
pub(super) fn path(phase: &SampledPhase) -> String {
    if phase.path.is_empty() {
        return "outside of all phases".to_string();
    }
    let names: Vec<String> = phase.path.iter().map(|name| shorten(&clean(name), WIDTH)).collect();
    names.join(" > ")
}

/// The phases of a part of the time, by the recorder's history. Empty where there are none.
pub(super) fn sampled(phases: &[SampledPhase], title: &str) -> String {
    let mut table = Table::titled(4, "rDDL", &[title, "at", "open", ""]);
    for phase in phases {
        let (at, open) = (seconds(phase.at_ns), seconds(phase.open_ns));
        table.row([size(phase.peak), at, open, path(phase)]);
    }
    section(table.render())
}

/// The phases of the time whose events were erased, one table per device.
pub fn before(found: &BTreeMap<DeviceId, Vec<SampledPhase>>, until_ns: u64, top: usize) -> String {
    let mut out = String::new();
    for (device, phases) in found {
        let (name, until) = (paint(BOLD, &gpu_name(*device)), seconds(until_ns));
        out.push_str(&format!(
            "\n{name} before {until}, whose events were erased: by the recorder's history\n"
        ));
        out.push_str(&sampled(&phases[..phases.len().min(top)], "peak"));
        if phases.len() > top {
            let more = count((phases.len() - top) as u64);
            out.push_str(&line(4, DIM, &format!("and {more} more with less")));
        }
    }
    out
}

/// One table per device, one row per phase. Inner phases are indented. `before`: what is known of erased events.
pub fn table(phases: &[Phase], before: &str) -> String {
    if phases.is_empty() && before.is_empty() {
        return "\n  no phases: the program marked none (NVTX ranges, with `vramtrace run` or \
                NVTX_INJECTION64_PATH)\n"
            .to_string();
    }
    let devices: BTreeSet<_> = phases.iter().flat_map(|phase| phase.devices.keys()).collect();
    let mut out = String::new();
    for device in devices {
        out.push_str(&section(line(0, BOLD, &format!("{} by phase", gpu_name(*device)))));
        let titles =
            ["phase", "times", "time", "peak allocated", "allocated in all", "freed", "stayed"];
        let mut table = Table::titled(2, "lrDRrrr", &titles);
        for phase in phases {
            let sums = phase.devices.get(device).copied().unwrap_or_default();
            let name = phase.path.last().map_or("", String::as_str);
            let indent = "  ".repeat(phase.path.len() - 1);
            let name = format!("{indent}{}", shorten(&clean(name), WIDTH));
            let (times, time) = (count(phase.times), seconds(phase.duration_ns));
            let [peak, allocated, freed, stayed] = [
                sums.peak_allocated_bytes,
                sums.allocated_bytes,
                sums.freed_bytes,
                sums.stayed_bytes,
            ]
            .map(size);
            table.row([name, times, time, peak, allocated, freed, stayed]);
        }
        out.push_str(&table.render());
    }
    out + before
}
