//! `whatif --json`: schema `vramtrace.whatif/1`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::allocator::ReplayOutcome;
use crate::analysis::whatif::{Origin, Prediction, Setting};
use crate::report::whatif::{PredictedDevice, caveats};

pub const SCHEMA: &str = "vramtrace.whatif/1";

/// `vramtrace.whatif/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WhatifReport {
    pub schema: &'static str,
    pub devices: Vec<PredictionFacts>,
}

/// One device of one process.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PredictionFacts {
    pub ordinal: u8,
    pub pid: u32,
    pub rank: Option<u32>,
    /// The setting that the run was recorded under; null: the trace does not contain it.
    pub in_force: Option<String>,
    /// As recorded.
    pub recorded_peak_reserved_bytes: u64,
    pub recorded_peak_allocated_bytes: u64,
    /// The history begins here; null: it is complete.
    pub from_s: Option<f64>,
    /// The last request, if it failed and the run allocated nothing after it.
    pub out_of_memory: Option<OutOfMemoryFacts>,
    /// Best first.
    pub settings: Vec<SettingFacts>,
    /// What limits the prediction.
    pub caveats: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OutOfMemoryFacts {
    /// Since the start of the trace. In a trace without times it is only an order.
    pub at_s: f64,
    pub asked_bytes: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SettingFacts {
    pub conf: String,
    pub in_force: bool,
    pub peak_reserved_bytes: u64,
    /// Only of backend:cudaMallocAsync: the least that the driver's pool reserves; `peak_reserved_bytes` is then the most.
    pub least_reserved_bytes: Option<u64>,
    pub peak_allocated_bytes: u64,
    pub driver_allocations: u64,
    pub driver_frees: u64,
    pub retries: u64,
    /// By capacity in bytes.
    pub fits: BTreeMap<String, bool>,
    pub at_capacity: Vec<AtCapacity>,
    pub smallest_capacity_bytes: Option<u64>,
    pub compatible: bool,
    pub reason: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtCapacity {
    pub capacity_bytes: u64,
    /// `asked`, `cap` or `card`.
    pub origin: &'static str,
    pub fits: bool,
    /// It fits by less than what uses by other streams may need, which the trace does not show; or it lies between the least
    /// and the most of backend:cudaMallocAsync.
    pub too_close: bool,
    pub peak_reserved_bytes: u64,
    pub retries: u64,
    /// Unused bytes of the capacity at the peak; null where it does not fit.
    pub spare_bytes: Option<u64>,
}

/// The document.
pub fn report(devices: &[PredictedDevice]) -> WhatifReport {
    WhatifReport { schema: SCHEMA, devices: devices.iter().map(facts).collect() }
}

fn facts(device: &PredictedDevice) -> PredictionFacts {
    let PredictedDevice { recorded, prediction, .. } = device;
    PredictionFacts {
        ordinal: recorded.device.0,
        pid: device.pid,
        rank: device.rank,
        in_force: recorded.in_force.set.as_ref().map(|_| recorded.in_force.name().to_string()),
        recorded_peak_reserved_bytes: recorded.peak_reserved,
        recorded_peak_allocated_bytes: recorded.peak_allocated,
        from_s: recorded.from_ns.map(|ns| ns as f64 / 1e9),
        out_of_memory: recorded
            .out_of_memory
            .last
            .map(|oom| OutOfMemoryFacts { at_s: oom.time_ns as f64 / 1e9, asked_bytes: oom.size }),
        settings: prediction
            .settings
            .iter()
            .map(|setting| setting_facts(setting, prediction))
            .collect(),
        caveats: caveats(recorded, prediction),
    }
}

fn setting_facts(setting: &Setting, prediction: &Prediction) -> SettingFacts {
    let at = || prediction.capacities.iter().zip(&setting.at);
    SettingFacts {
        conf: setting.name.clone(),
        in_force: setting.in_force,
        peak_reserved_bytes: setting.free.peak_reserved,
        least_reserved_bytes: setting.free.least.map(|least| least.reserved),
        peak_allocated_bytes: setting.free.peak_allocated,
        driver_allocations: setting.free.driver_allocations,
        driver_frees: setting.free.driver_frees,
        retries: setting.free.retries,
        fits: at().map(|(capacity, o)| (capacity.bytes.to_string(), o.fits())).collect(),
        at_capacity: at()
            .map(|(capacity, outcome)| AtCapacity {
                capacity_bytes: capacity.bytes,
                origin: origin_name(capacity.origin),
                fits: outcome.fits(),
                too_close: prediction.is_too_close(outcome, capacity.bytes),
                peak_reserved_bytes: outcome.peak_reserved,
                retries: outcome.retries,
                spare_bytes: spare(outcome, capacity.bytes),
            })
            .collect(),
        smallest_capacity_bytes: setting.smallest,
        compatible: setting.forbidden.is_none(),
        reason: setting.forbidden.clone(),
    }
}

/// The name of a capacity's origin in JSON.
pub(super) fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Asked => "asked",
        Origin::Cap => "cap",
        Origin::Card => "card",
        Origin::Reserved => "reserved",
    }
}

/// Unused bytes of the capacity at the peak. `None`: the run does not fit.
fn spare(outcome: &ReplayOutcome, capacity: u64) -> Option<u64> {
    outcome.fits().then(|| capacity.saturating_sub(outcome.peak_total))
}
