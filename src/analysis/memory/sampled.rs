//! A moment whose events were erased: what the recorder's samples say of the part of the time around it.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use vramtrace_format::{DeviceId, Header, HistoryHolder, HistoryLevel, Kind};

use super::holders::{GroupBy, Holder, StackClassifier};
use super::holdings::{Held, Holdings, Owner};
use super::named::NamedStack;
use super::sampled_phases::SampledPhase;
use crate::facts;
use crate::replay::History;
use crate::symbols::Symbols;
use crate::trace::Definitions;

/// The part of the time around a moment, by samples.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledMoment {
    pub pid: u32,
    pub rank: Option<u32>,
    pub trace: String,
    /// The requested moment, and the time that its figures are of.
    #[serde(rename = "at_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub asked_ns: u64,
    #[serde(rename = "from_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub from_ns: u64,
    #[serde(rename = "until_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub until_ns: u64,
    pub samples: u32,
    pub devices: Vec<SampledDevice>,
    #[serde(skip)]
    pub symbols: Symbols,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledDevice {
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
                holdings.add(owner, Held { bytes: holder.highest, count: 1, ..Held::default() });
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
        let device = |(id, of): (&DeviceId, &crate::replay::history::BinDevice)| SampledDevice {
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
