//! The time whose events were erased, by the recorder's history: what its samples say of the part around a moment, and in
//! which ranges of the program a device's memory was highest.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use vramtrace_format::{DeviceId, Header, HistoryHolder, HistoryLevel, HistoryPhase, Kind};

use super::classifier::{NamedStack, StackClassifier};
use super::holders::{GroupBy, Holder};
use super::holdings::{Holding, Holdings, Owner};
use crate::facts;
use crate::replay::History;
use crate::replay::history::BinDevice;
use crate::symbols::Symbols;
use crate::trace::Definitions;

/// The part of the time around a moment, by samples.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SampledMoment {
    pub pid: u32,
    pub rank: Option<u32>,
    pub trace: String,
    /// The requested moment, and the time that its figures are of.
    #[serde(rename = "at_s", with = "facts::Seconds")]
    pub asked_ns: u64,
    #[serde(rename = "from_s", with = "facts::Seconds")]
    pub from_ns: u64,
    #[serde(rename = "until_s", with = "facts::Seconds")]
    pub until_ns: u64,
    pub samples: u32,
    pub devices: Vec<SampledDevice>,
    #[serde(skip)]
    pub symbols: Symbols,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SampledDevice {
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    /// The highest in this time, also between samples.
    pub peak_bytes: u64,
    /// Refused requests from the start to the end of this time.
    pub refused: u64,
    /// Bytes by kind at the highest sample.
    #[serde(skip)]
    pub kinds: Vec<(Kind, u64)>,
    /// The driver's memory, and the blocks of a framework, which lie in it.
    pub levels: Vec<SampledLevel>,
    /// The phases of the program in which the device's memory was highest, highest first; four at most. Empty: not known.
    pub phases: Vec<SampledPhase>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SampledLevel {
    /// `driver`, or `tensor`: blocks of PyTorch's cache.
    pub level: &'static str,
    pub lowest_bytes: u64,
    pub highest_bytes: u64,
    /// At the highest sample, largest first.
    pub holders: Vec<SampledHolder>,
    /// The stacks that are not told apart, their bytes at the highest sample, and their growth in this time.
    pub other_stacks: u64,
    pub other_bytes: u64,
    pub other_grew_bytes: i64,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SampledHolder {
    pub bytes: u64,
    pub library: Option<String>,
    #[serde(flatten)]
    pub stack: NamedStack,
}

impl SampledMoment {
    /// `None`: the history has nothing of this moment.
    pub fn at(
        history: &Arc<History>,
        definitions: &Definitions,
        (header, trace): (&Header, &Path),
        asked_ns: u64,
    ) -> Option<SampledMoment> {
        let (tier, at) = history.at(asked_ns)?;
        let bin = &tier.bins[at];
        let holders: Vec<&HistoryHolder> = tier.holders(at).collect();
        let symbols = Symbols::of(definitions, header, holders.iter().map(|holder| holder.stack));
        let classifier = StackClassifier::new(&symbols, header);
        let level = |device: DeviceId, figures: HistoryLevel| {
            let mut holdings = Holdings::default();
            let of_framework = figures.of_framework;
            let here = holders.iter().filter(|holder| holder.device == device);
            for holder in here.filter(|holder| holder.of_framework == of_framework) {
                let of_cache = of_framework;
                let owner = Owner { of_cache, ..Owner::of_memory(device, holder.stack) };
                holdings
                    .add(owner, Holding { bytes: holder.highest, count: 1, ..Holding::default() });
            }
            let mut holders = classifier.holders(&holdings, GroupBy::Line);
            holders.retain(|holder| holder.bytes > 0);
            let line = |holder: Holder| SampledHolder {
                bytes: holder.bytes,
                library: holder.library,
                stack: holder.stack,
            };
            SampledLevel {
                level: if of_framework { "tensor" } else { "driver" },
                lowest_bytes: figures.lowest,
                highest_bytes: figures.highest,
                holders: holders.into_iter().map(line).collect(),
                other_stacks: figures.other_stacks,
                other_bytes: figures.other_highest,
                other_grew_bytes: figures.other_grew,
            }
        };
        let device = |(id, of): (&DeviceId, &BinDevice)| SampledDevice {
            device: *id,
            peak_bytes: of.peak,
            refused: of.refused,
            kinds: of.kinds().filter(|(_, bytes)| *bytes > 0).collect(),
            phases: SampledPhase::all(definitions, of),
            levels: [of.driver, of.blocks].into_iter().flatten().map(|of| level(*id, of)).collect(),
        };
        let devices = bin.devices.iter().map(device).collect();
        Some(SampledMoment {
            pid: header.pid,
            rank: header.rank,
            trace: trace.display().to_string(),
            asked_ns,
            from_ns: bin.from_ns,
            until_ns: bin.until_ns,
            samples: bin.samples,
            devices,
            symbols,
        })
    }
}

/// A phase in a part of the time. Times are ns since the start, sizes bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SampledPhase {
    /// Names of the ranges, outermost first. Empty: outside of all ranges.
    pub path: Vec<String>,
    /// The highest physical bytes of the device, of all threads, while its last range was the innermost one.
    #[serde(rename = "peak_bytes")]
    pub peak: u64,
    /// When, up to the next mark or sample of the recorder.
    #[serde(rename = "at_s", with = "facts::Seconds")]
    pub at_ns: u64,
    /// How long it was the innermost one, at least.
    #[serde(rename = "open_s", with = "facts::Seconds")]
    pub open_ns: u64,
}

impl SampledPhase {
    fn of(definitions: &Definitions, phase: &HistoryPhase) -> SampledPhase {
        let &HistoryPhase { peak, at_ns, open_ns, .. } = phase;
        let name = |id| definitions.text(id).unwrap_or("(no name)").to_string();
        SampledPhase { path: phase.names().map(name).collect(), peak, at_ns, open_ns }
    }

    /// The phases of a device in a bin, highest first.
    fn all(definitions: &Definitions, of: &BinDevice) -> Vec<SampledPhase> {
        of.phases.iter().map(|phase| SampledPhase::of(definitions, phase)).collect()
    }

    fn add(&mut self, more: SampledPhase) {
        if (more.peak, !more.at_ns) > (self.peak, !self.at_ns) {
            (self.peak, self.at_ns) = (more.peak, more.at_ns);
        }
        self.open_ns = self.open_ns.saturating_add(more.open_ns);
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
