//! The text of `vramtrace report --by phase`.

use std::collections::BTreeMap;

use vramtrace_format::DeviceId;

use super::layout::{BOLD, DIM, PLAIN, Table, paint};
use crate::analysis::{InPhase, Phase, SampledPhase};
use crate::report::wording::gpu_name;
use crate::units::{clean, count, seconds, shorten, size};

/// The most characters of the name of a phase.
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
    if phases.is_empty() {
        return String::new();
    }
    let mut table = Table::new(4, "rrrl");
    table.head(&[title, "at", "open", ""]);
    for phase in phases {
        table.styled([
            (size(phase.peak), PLAIN),
            (seconds(phase.at_ns), DIM),
            (seconds(phase.open_ns), DIM),
            (path(phase), BOLD),
        ]);
    }
    format!("\n{}", table.render())
}

/// The phases of the time whose events were erased, one table per device.
pub fn before(found: &BTreeMap<DeviceId, Vec<SampledPhase>>, until_ns: u64, top: usize) -> String {
    let mut out = String::new();
    for (device, phases) in found {
        let name = paint(BOLD, &gpu_name(*device));
        let until = seconds(until_ns);
        out.push_str(&format!(
            "\n{name} before {until}, whose events were erased: by the recorder's history\n"
        ));
        out.push_str(&sampled(&phases[..phases.len().min(top)], "peak"));
        if phases.len() > top {
            let more = count((phases.len() - top) as u64);
            out.push_str(&format!("    {}\n", paint(DIM, &format!("and {more} more with less"))));
        }
    }
    out
}

/// One table per device, one row per phase. Inner phases are indented. `before`: what is known of erased events.
pub fn table(phases: &[Phase], before: &str) -> String {
    if phases.is_empty() && !before.is_empty() {
        return before.to_string();
    }
    if phases.is_empty() {
        return "\n  no phases: the program marked none (NVTX ranges, with `vramtrace run` or \
                NVTX_INJECTION64_PATH)\n"
            .to_string();
    }
    let mut devices: Vec<_> = phases.iter().flat_map(|phase| phase.devices.keys()).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut out = String::new();
    for device in devices {
        out.push_str(&format!("\n{}\n", paint(BOLD, &format!("{} by phase", gpu_name(*device)))));
        let mut table = Table::new(2, "lrrrrrr");
        table.head(&[
            "phase",
            "times",
            "time",
            "peak allocated",
            "allocated in all",
            "freed",
            "stayed",
        ]);
        for phase in phases {
            let sums = phase.devices.get(device).copied().unwrap_or_default();
            let InPhase {
                peak_allocated_bytes, allocated_bytes, freed_bytes, stayed_bytes, ..
            } = sums;
            let depth = phase.path.len() - 1;
            let name = phase.path.last().map_or("", String::as_str);
            let name = format!("{}{}", "  ".repeat(depth), shorten(&clean(name), WIDTH));
            table.styled([
                (name, PLAIN),
                (count(phase.times), PLAIN),
                (seconds(phase.duration_ns), DIM),
                (size(peak_allocated_bytes), BOLD),
                (size(allocated_bytes), PLAIN),
                (size(freed_bytes), PLAIN),
                (size(stayed_bytes), PLAIN),
            ]);
        }
        out.push_str(&table.render());
    }
    out.push_str(before);
    out
}
