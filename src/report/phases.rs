//! What memory did in each phase that the program marked.

use serde::Serialize;

use super::layout::{BOLD, DIM, PLAIN, Table, clean, count, paint, shorten};
use super::leaks::{device_name, ordinal};
use crate::analysis::{InPhase, Phase};
use crate::units::{seconds, size};

const WIDTH: usize = 48;

#[derive(Debug, Serialize)]
pub struct PhaseFacts {
    /// From the outermost in.
    pub path: Vec<String>,
    pub times: u64,
    pub seconds: f64,
    pub first_s: f64,
    pub devices: Vec<InPhaseFacts>,
}

#[derive(Debug, Serialize)]
pub struct InPhaseFacts {
    pub device: Option<u8>,
    pub peak_bytes: u64,
    pub allocated_bytes: u64,
    pub freed_bytes: u64,
    /// Of what was allocated in it, what was live when it ended.
    pub stayed_bytes: u64,
}

pub fn facts(phases: &[Phase]) -> Vec<PhaseFacts> {
    let fact = |phase: &Phase| PhaseFacts {
        path: phase.path.clone(),
        times: phase.times,
        seconds: phase.duration_ns as f64 / 1e9,
        first_s: phase.first_ns as f64 / 1e9,
        devices: phase
            .devices
            .iter()
            .map(|(device, sums)| InPhaseFacts {
                device: ordinal(*device),
                peak_bytes: sums.peak_bytes,
                allocated_bytes: sums.allocated_bytes,
                freed_bytes: sums.freed_bytes,
                stayed_bytes: sums.stayed_bytes,
            })
            .collect(),
    };
    phases.iter().map(fact).collect()
}

/// A table for each device.
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
        out.push_str(&format!(
            "\n{}\n",
            paint(BOLD, &format!("{} by phase", device_name(*device)))
        ));
        let mut table = Table::new(2, "lrrrrrr");
        table.head(&["phase", "times", "time", "peak", "allocated", "freed", "stayed"]);
        for phase in phases {
            let sums = phase.devices.get(device).copied().unwrap_or_default();
            let InPhase { peak_bytes, allocated_bytes, freed_bytes, stayed_bytes } = sums;
            let depth = phase.path.len() - 1;
            let name = phase.path.last().map_or("", String::as_str);
            let name = format!("{}{}", "  ".repeat(depth), shorten(&clean(name), WIDTH));
            table.styled([
                (name, PLAIN),
                (count(phase.times), PLAIN),
                (seconds(phase.duration_ns), DIM),
                (size(peak_bytes), BOLD),
                (size(allocated_bytes), PLAIN),
                (size(freed_bytes), PLAIN),
                (size(stayed_bytes), PLAIN),
            ]);
        }
        out.push_str(&table.render());
    }
    out
}
