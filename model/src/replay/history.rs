//! The history of a process whose trace has a limit: samples of the recorder, thinned, for the time whose events were
//! erased. Input: the records of the last whole history. Times are ns since the start, sizes bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use vramtrace_format::{
    DeviceId, Event, HistoryBin, HistoryDevice, HistoryHolder, HistoryLevel, HistoryPhase, Kind,
    Purpose, StateHolder,
};

use crate::facts;

/// The whole time, minutes, and seconds.
pub const TIERS: usize = 3;
/// Maximum number of bins of a tier that are read. The recorder writes 256 at most.
const MAX_BINS: usize = 1 << 12;
/// Maximum number of phases of a device in a bin that are read. The recorder writes 4 at most.
const MAX_PHASES: usize = 64;

/// A copy of the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub tiers: [Tier; TIERS],
    /// The largest holders at the highest peak of each device up to then.
    pub peak_holders: Vec<StateHolder>,
    /// Holders of the latest bins are left out.
    pub cut: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tier {
    /// In the order of time.
    pub bins: Vec<Bin>,
    /// Stacks with the bins in which their figures are the same: the first one, and how many follow.
    runs: Vec<(usize, HistoryHolder)>,
}

/// The part of the time that is known by samples. Times are ns since the start of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Sampled {
    #[serde(rename = "from_s", with = "facts::Seconds")]
    pub from_ns: u64,
    /// From here on every event is known.
    #[serde(rename = "until_s", with = "facts::Seconds")]
    pub until_ns: u64,
    /// The time for which there is one value: the shortest and the longest.
    #[serde(rename = "finest_s", with = "facts::Seconds")]
    pub finest_ns: u64,
    #[serde(rename = "coarsest_s", with = "facts::Seconds")]
    pub coarsest_ns: u64,
}

/// A part of the time.
#[derive(Clone, Debug, PartialEq)]
pub struct Bin {
    pub from_ns: u64,
    pub until_ns: u64,
    pub samples: u32,
    pub devices: BTreeMap<DeviceId, BinDevice>,
}

/// A device in a bin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BinDevice {
    /// The highest physical bytes.
    pub peak: u64,
    /// Refused requests from the start to the end of the bin.
    pub refused: u64,
    pub driver: Option<HistoryLevel>,
    pub blocks: Option<HistoryLevel>,
    /// Bytes by kind at the highest sample of the driver's memory.
    kinds: BTreeMap<u8, u64>,
    /// The phases of the program with the highest peaks, highest first. Empty: the program marks none.
    pub phases: Vec<HistoryPhase>,
}

impl BinDevice {
    /// The driver's memory, or that of a framework's blocks.
    pub fn level(&self, of_framework: bool) -> Option<&HistoryLevel> {
        if of_framework { self.blocks.as_ref() } else { self.driver.as_ref() }
    }

    /// Bytes by kind at the highest sample, with those of the process alone that are device memory.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, u64)> {
        self.kinds.iter().filter_map(|(kind, bytes)| Some((Kind::from_u8(*kind)?, *bytes)))
    }
}

impl Bin {
    /// Length in ns.
    pub fn length_ns(&self) -> u64 {
        self.until_ns.saturating_sub(self.from_ns)
    }
}

impl Tier {
    /// The stacks that are told apart in a bin.
    pub fn holders(&self, bin: usize) -> impl Iterator<Item = &HistoryHolder> {
        let runs = self.runs.iter();
        runs.filter(move |(first, of)| (*first..=first + usize::from(of.run)).contains(&bin))
            .map(|(_, of)| of)
    }

    /// Each stack's figures with the bins that they are of: the first and the last one, in ascending order.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, &HistoryHolder)> {
        let last = self.bins.len().saturating_sub(1);
        self.runs
            .iter()
            .map(move |(first, of)| (*first, (first + usize::from(of.run)).min(last), of))
    }

    fn add(&mut self, record: HistoryBin) {
        let HistoryBin { from_ns, until_ns, samples, .. } = record;
        // A damaged record may end before it begins.
        let until_ns = until_ns.max(from_ns);
        if self.bins.len() < MAX_BINS {
            self.bins.push(Bin { from_ns, until_ns, samples, devices: BTreeMap::new() });
        }
    }
}

impl History {
    /// The finest bin at a time, with its tier and place there. `None`: the history has nothing of it.
    pub fn at(&self, time_ns: u64) -> Option<(&Tier, usize)> {
        self.tiers.iter().rev().find_map(|tier| {
            let at = tier.bins.partition_point(|bin| bin.until_ns < time_ns);
            let bin = tier.bins.get(at)?;
            (bin.from_ns <= time_ns).then_some((tier, at))
        })
    }

    /// The parts of the time up to `until_ns` in order, each as fine as the history has it without a gap: bins of the
    /// whole time, and behind the last of them those of finer tiers.
    pub fn parts(&self, until_ns: u64) -> Vec<(&Tier, usize)> {
        let mut parts = Vec::new();
        let mut from_ns = 0;
        for tier in &self.tiers {
            for (at, bin) in tier.bins.iter().enumerate() {
                if bin.from_ns >= from_ns && bin.until_ns <= until_ns && bin.until_ns > from_ns {
                    parts.push((tier, at));
                    from_ns = bin.until_ns;
                }
            }
        }
        parts
    }

    /// What its parts up to `until_ns`, where the events go on, resolve. `None`: there are none.
    pub fn sampled(&self, until_ns: u64) -> Option<Sampled> {
        let parts = self.parts(until_ns);
        let from_ns = parts.first().map(|(tier, at)| tier.bins[*at].from_ns)?;
        let lengths = || parts.iter().map(|(tier, at)| tier.bins[*at].length_ns());
        let (finest_ns, coarsest_ns) = (lengths().min()?, lengths().max()?);
        Some(Sampled { from_ns, until_ns, finest_ns, coarsest_ns })
    }

    /// When its first bin begins, and its last one ends.
    pub fn span(&self) -> Option<(u64, u64)> {
        let bins = || self.tiers.iter().flat_map(|tier| &tier.bins);
        let from = bins().map(|bin| bin.from_ns).min()?;
        Some((from, bins().map(|bin| bin.until_ns).max()?))
    }
}

/// Reads the records of histories.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// The history that is being read, with its id and the tier of its last bin.
    begun: Option<(u8, usize, History)>,
}

impl Reading {
    /// Takes a record. Returns the history that ends with it.
    pub(super) fn take(&mut self, event: &Event) -> Option<Arc<History>> {
        if let Event::StateBegin { id, what: Purpose::History, .. } = *event {
            self.begun = Some((id, 0, History::default()));
        }
        let (begun, last, history) = self.begun.as_mut()?;
        match *event {
            Event::StateEnd { id, cut } if id == *begun => {
                history.cut = cut;
                return self.begun.take().map(|(_, _, history)| Arc::new(history));
            }
            Event::HistoryBin(bin) => {
                *last = usize::from(bin.tier).min(TIERS - 1);
                history.tiers[*last].add(bin);
            }
            Event::StateHolder(holder) => history.peak_holders.push(holder),
            Event::HistoryHolder(holder) => {
                let tier = &mut history.tiers[*last];
                if let Some(bin) = tier.bins.len().checked_sub(1) {
                    tier.runs.push((bin, holder));
                }
            }
            _ => history.tiers[*last].figures(event),
        }
        None
    }
}

impl Tier {
    /// A figure of a device in the last bin.
    fn figures(&mut self, event: &Event) {
        let Some((last, before)) = self.bins.split_last_mut() else { return };
        match *event {
            Event::HistoryDevice(HistoryDevice {
                device,
                peak,
                refused_by_cap,
                refused_by_driver,
            }) => {
                let kinds = before.last().and_then(|bin| bin.devices.get(&device));
                let kinds = kinds.map(|of| of.kinds.clone()).unwrap_or_default();
                let refused = refused_by_cap.saturating_add(refused_by_driver);
                let of = BinDevice { peak, refused, kinds, ..BinDevice::default() };
                last.devices.insert(device, of);
            }
            Event::HistoryLevel(level) => {
                if let Some(of) = last.devices.get_mut(&level.device) {
                    let place = if level.of_framework { &mut of.blocks } else { &mut of.driver };
                    *place = Some(level);
                }
            }
            Event::HistoryPhase(phase) => {
                let of = last.devices.get_mut(&phase.device);
                if let Some(of) = of.filter(|of| of.phases.len() < MAX_PHASES) {
                    of.phases.push(phase);
                }
            }
            Event::StateKind { device, kind, at_peak, .. } if Kind::from_u8(kind).is_some() => {
                if let Some(of) = last.devices.get_mut(&device) {
                    of.kinds.insert(kind, at_peak);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::StackId;

    fn bin(tier: u8, from_ns: u64, until_ns: u64) -> Event {
        Event::HistoryBin(HistoryBin { tier, samples: 1, from_ns, until_ns })
    }

    fn holder(stack: u32, run: u8, lowest: u64) -> Event {
        let (device, stack) = (DeviceId(0), StackId(stack));
        let of_framework = false;
        let highest = lowest;
        Event::HistoryHolder(HistoryHolder { run, of_framework, stack, device, lowest, highest })
    }

    fn read(records: &[Event]) -> Option<Arc<History>> {
        let mut reading = Reading::default();
        let begin = Event::StateBegin { id: 7, what: Purpose::History, cache_ooms: 0 };
        assert_eq!(reading.take(&begin), None);
        records.iter().for_each(|record| assert_eq!(reading.take(record), None));
        reading.take(&Event::StateEnd { id: 7, cut: false })
    }

    #[test]
    fn a_holder_stands_for_the_bins_that_follow() {
        let records = [
            bin(0, 0, 10),
            holder(1, 2, 5),
            Event::StateEnd { id: 8, cut: false },
            bin(0, 10, 20),
            holder(2, 0, 6),
        ];
        let history = read(&records).unwrap();
        let of = |at| history.tiers[0].holders(at).map(|of| of.stack.0).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![1], vec![1, 2]), "the first is the same in both");
        assert_eq!(
            history.tiers[0].runs().next().map(|(first, last, _)| (first, last)),
            Some((0, 1))
        );
    }

    #[test]
    fn fine_bins_continue_coarse_ones_without_a_gap() {
        let records = [
            bin(0, 0, 100),
            bin(0, 100, 200),
            bin(1, 150, 210),
            bin(1, 210, 270),
            bin(2, 260, 270),
            bin(2, 270, 280),
        ];
        let history = read(&records).unwrap();
        let times = |until| -> Vec<(u64, u64)> {
            let of = |(tier, at): (&Tier, usize)| (tier.bins[at].from_ns, tier.bins[at].until_ns);
            history.parts(until).into_iter().map(of).collect()
        };
        assert_eq!(times(1000), [(0, 100), (100, 200), (210, 270), (270, 280)]);
        assert_eq!(times(275), [(0, 100), (100, 200), (210, 270)]);
        let (tier, at) = history.at(265).unwrap();
        assert_eq!(tier.bins[at].from_ns, 260, "the finest");
        assert!(history.at(281).is_none());
        assert_eq!(history.span(), Some((0, 280)));
    }
}
