//! The key `phases_before` of `report --by phase --json`.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::DeviceId;

use crate::analysis::SampledPhase;
use crate::report::wording::ordinal;

/// A device in the time whose events were erased.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PhasesBeforeFacts {
    pub device: Option<u8>,
    /// By the recorder's history, which keeps four for a device in each part of the time; highest first.
    pub phases: Vec<SampledPhase>,
}

/// The value of `phases_before`.
pub fn before(found: BTreeMap<DeviceId, Vec<SampledPhase>>) -> Vec<PhasesBeforeFacts> {
    let fact = |(device, phases)| PhasesBeforeFacts { device: ordinal(device), phases };
    found.into_iter().map(fact).collect()
}
