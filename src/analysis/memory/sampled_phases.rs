//! Phases in the recorder's history: in which ranges of the program a device's memory was highest, also in the time whose
//! events were erased.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::{DeviceId, HistoryPhase};

use crate::facts;
use crate::replay::History;
use crate::replay::history::BinDevice;
use crate::trace::Definitions;

/// A phase in a part of the time. Times are ns since the start, sizes bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledPhase {
    /// Names of the ranges, outermost first. Empty: outside of all ranges.
    pub path: Vec<String>,
    /// The highest physical bytes of the device, of all threads, while its last range was the innermost one.
    #[serde(rename = "peak_bytes")]
    pub peak: u64,
    /// When, up to the next mark or sample of the recorder.
    #[serde(rename = "at_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub at_ns: u64,
    /// How long it was the innermost one, at least.
    #[serde(rename = "open_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub open_ns: u64,
}

impl SampledPhase {
    fn of(definitions: &Definitions, phase: &HistoryPhase) -> SampledPhase {
        let &HistoryPhase { peak, at_ns, open_ns, .. } = phase;
        let name = |id| definitions.text(id).unwrap_or("(no name)").to_string();
        SampledPhase { path: phase.names().map(name).collect(), peak, at_ns, open_ns }
    }

    /// The phases of a device in a bin, highest first.
    pub(super) fn all(definitions: &Definitions, of: &BinDevice) -> Vec<SampledPhase> {
        of.phases.iter().map(|phase| SampledPhase::of(definitions, phase)).collect()
    }
}

/// The phases that were open when a device reached its peak: one for each thread that had one. Empty: not known.
/// `bytes`, `time_ns`: of the peak.
pub fn phases_at_peak(
    history: &History,
    definitions: &Definitions,
    device: DeviceId,
    bytes: u64,
    time_ns: u64,
) -> Vec<SampledPhase> {
    let has_peak = |of: &&BinDevice| of.peak == bytes && !of.phases.is_empty();
    // A peak that is reached while a sample is taken is in the bin after it. Finer tiers say the same, if they have it.
    let bins = history.tiers.iter().rev().flat_map(|tier| &tier.bins);
    let found = bins.filter_map(|bin| {
        let of = bin.devices.get(&device).filter(has_peak)?;
        let away = time_ns.saturating_sub(bin.until_ns).max(bin.from_ns.saturating_sub(time_ns));
        Some((away, of))
    });
    let Some((_, of)) = found.min_by_key(|(away, _)| *away) else { return Vec::new() };
    let highest = || of.phases.iter().filter(|phase| phase.peak == bytes);
    let Some(first_ns) = highest().map(|phase| phase.at_ns).min() else { return Vec::new() };
    let at_once = highest().filter(|phase| phase.at_ns == first_ns);
    at_once.map(|phase| SampledPhase::of(definitions, phase)).collect()
}

/// The phases of the time before `until_ns` by device, the highest peak first: those that its bins tell.
pub fn phases_before(
    history: &History,
    definitions: &Definitions,
    until_ns: u64,
) -> BTreeMap<DeviceId, Vec<SampledPhase>> {
    let mut all: BTreeMap<DeviceId, Vec<SampledPhase>> = BTreeMap::new();
    for (tier, at) in history.parts(until_ns) {
        for (device, of) in &tier.bins[at].devices {
            let known = all.entry(*device).or_default();
            for phase in SampledPhase::all(definitions, of) {
                match known.iter_mut().find(|known| known.path == phase.path) {
                    Some(known) => known.add(phase),
                    None => known.push(phase),
                }
            }
        }
    }
    all.retain(|_, phases| !phases.is_empty());
    for phases in all.values_mut() {
        phases.sort_by_key(|phase| (std::cmp::Reverse(phase.peak), phase.at_ns));
    }
    all
}

impl SampledPhase {
    fn add(&mut self, more: SampledPhase) {
        if (more.peak, !more.at_ns) > (self.peak, !self.at_ns) {
            (self.peak, self.at_ns) = (more.peak, more.at_ns);
        }
        self.open_ns = self.open_ns.saturating_add(more.open_ns);
    }
}
