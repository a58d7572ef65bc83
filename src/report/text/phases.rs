//! The text of `vramtrace report --by phase`.

use super::layout::{BOLD, DIM, PLAIN, Table, paint};
use crate::analysis::{InPhase, Phase};
use crate::report::wording::gpu_name;
use crate::units::{clean, count, seconds, shorten, size};

/// The most characters of the name of a phase.
const WIDTH: usize = 48;

/// One table per device, one row per phase. Inner phases are indented.
pub fn table(phases: &[Phase]) -> String {
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
    out
}
