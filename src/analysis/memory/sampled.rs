//! A moment whose events were erased: what the recorder's samples say of the part of the time around it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use vramtrace_format::{DeviceId, Header, HistoryHolder, HistoryLevel, Kind, StackId};

use super::holders::{GroupBy, Holder, StackClassifier};
use super::holdings::{Held, Holdings, Owner};
use super::sampled_phases::SampledPhase;
use crate::analysis::engines::Role;
use crate::replay::History;
use crate::symbols::Symbols;
use crate::trace::Definitions;

/// The part of the time around a moment, by samples. Times are ns since the start, sizes bytes.
#[derive(Clone, Debug)]
pub struct SampledMoment {
    pub asked_ns: u64,
    pub from_ns: u64,
    pub until_ns: u64,
    /// Samples in this time.
    pub samples: u32,
    pub devices: Vec<SampledDevice>,
    pub symbols: Symbols,
}

#[derive(Clone, Debug)]
pub struct SampledDevice {
    pub device: DeviceId,
    /// The highest physical bytes in this time, between samples too.
    pub peak: u64,
    /// Requests that were refused up to its end.
    pub refused: u64,
    /// Bytes by kind at the highest sample.
    pub kinds: Vec<(Kind, u64)>,
    /// The driver's memory, and the blocks of a framework, which lie in it.
    pub levels: Vec<SampledLevel>,
    /// The phases of the program with the highest peaks, highest first. Empty: none is known.
    pub phases: Vec<SampledPhase>,
}

#[derive(Clone, Debug)]
pub struct SampledLevel {
    /// With the sums of the stacks that are not told apart.
    pub figures: HistoryLevel,
    /// At the highest sample, by line and by library, largest first. The counts are those of stacks.
    pub lines: Vec<Holder>,
    pub libraries: Vec<Holder>,
    /// Bytes by the role of the stack, largest first, without the stacks that are not told apart. Empty: no stack has one.
    pub roles: Vec<(Role, u64)>,
}

impl SampledMoment {
    /// `role`: of a stack, at the level of a framework's blocks or of the driver. `None`: the history has nothing of this moment.
    pub fn at(
        history: &Arc<History>,
        definitions: &Definitions,
        header: &Header,
        asked_ns: u64,
        role: impl Fn(bool, StackId) -> Role,
    ) -> Option<SampledMoment> {
        let (tier, at) = history.at(asked_ns)?;
        let bin = &tier.bins[at];
        let holders: Vec<&HistoryHolder> = tier.holders(at).collect();
        let symbols = Symbols::of(definitions, header, holders.iter().map(|holder| holder.stack));
        let classifier = StackClassifier::new(&symbols, header);
        let level = |device: DeviceId, figures: HistoryLevel| {
            let mut holdings = Holdings::default();
            let mut by_role: BTreeMap<Role, u64> = BTreeMap::new();
            let of_framework = figures.of_framework;
            let here = holders.iter().filter(|holder| holder.device == device);
            for holder in here.filter(|holder| holder.of_framework == of_framework) {
                let of_cache = of_framework;
                let owner = Owner { of_cache, ..Owner::of_memory(device, holder.stack) };
                holdings.add(owner, Held { bytes: holder.highest, count: 1, ..Held::default() });
                let sum = by_role.entry(role(of_framework, holder.stack)).or_default();
                *sum = sum.saturating_add(holder.highest);
            }
            let by = |by| {
                let mut holders = classifier.holders(&holdings, by);
                holders.retain(|holder| holder.bytes > 0);
                holders
            };
            by_role.retain(|_, bytes| *bytes > 0);
            let mut roles: Vec<(Role, u64)> = by_role.into_iter().collect();
            roles.sort_by_key(|(_, bytes)| Reverse(*bytes));
            if roles.iter().all(|(role, _)| *role == Role::Unknown) {
                roles.clear();
            }
            let (lines, libraries) = (by(GroupBy::Line), by(GroupBy::Library));
            SampledLevel { figures, lines, libraries, roles }
        };
        let device = |(id, of): (&DeviceId, &crate::replay::history::BinDevice)| SampledDevice {
            device: *id,
            peak: of.peak,
            refused: of.refused,
            kinds: of.kinds().filter(|(_, bytes)| *bytes > 0).collect(),
            phases: SampledPhase::all(definitions, of),
            levels: [of.driver, of.blocks].into_iter().flatten().map(|of| level(*id, of)).collect(),
        };
        let devices = bin.devices.iter().map(device).collect();
        let (from_ns, until_ns, samples) = (bin.from_ns, bin.until_ns, bin.samples);
        Some(SampledMoment { asked_ns, from_ns, until_ns, samples, devices, symbols })
    }
}
