//! The key `phases` of `report --by phase --json`.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::sampled::{SampledPhaseFacts, phase_facts};
use crate::analysis::{Phase, SampledPhase};
use crate::report::wording::ordinal;

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PhaseFacts {
    /// From the outermost phase inwards.
    pub path: Vec<String>,
    pub times: u64,
    pub seconds: f64,
    pub first_s: f64,
    pub devices: Vec<InPhaseFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InPhaseFacts {
    pub device: Option<u8>,
    pub peak_bytes: u64,
    /// The highest sum of live blocks; where none were recorded, as `peak_bytes`.
    pub peak_allocated_bytes: u64,
    pub allocated_bytes: u64,
    pub freed_bytes: u64,
    /// Bytes that were allocated in it and live when it ended.
    pub stayed_bytes: u64,
}

/// A device in the time whose events were erased.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PhasesBeforeFacts {
    pub device: Option<u8>,
    /// By the recorder's history, which keeps four for a device in each part of the time; highest first.
    pub phases: Vec<SampledPhaseFacts>,
}

/// The value of `phases_before`.
pub fn before(found: &BTreeMap<DeviceId, Vec<SampledPhase>>) -> Vec<PhasesBeforeFacts> {
    let fact = |(device, phases): (&DeviceId, &Vec<SampledPhase>)| PhasesBeforeFacts {
        device: ordinal(*device),
        phases: phase_facts(phases),
    };
    found.iter().map(fact).collect()
}

/// The value of `phases`.
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
                peak_allocated_bytes: sums.peak_allocated_bytes,
                allocated_bytes: sums.allocated_bytes,
                freed_bytes: sums.freed_bytes,
                stayed_bytes: sums.stayed_bytes,
            })
            .collect(),
    };
    phases.iter().map(fact).collect()
}
