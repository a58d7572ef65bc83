//! Writes all bins as events, in slices of one bin. A stack whose figures are the same in several bins is written once.

use super::bins::{Bin, Row};
use super::sampler::{EVERY_NS, History};
use crate::model::ledger::{KINDS, Ledger};
use vramtrace_format::{
    Event, HistoryBin, HistoryDevice, HistoryHolder, HistoryLevel, Kind, SummaryMoment,
};

/// Bytes of a record.
pub(super) fn bytes_of(event: &Event) -> u64 {
    match event {
        Event::HistoryBin(_) => 32,
        Event::HistoryDevice(_) | Event::HistoryHolder(_) | Event::HistoryPeakHolder(_) => 40,
        Event::HistoryLevel(_) => 80,
        Event::HistoryPhase(_) => 56,
        _ => 24,
    }
}

/// A copy under way. The bins may not change meanwhile: no sample is taken.
pub struct Copy {
    id: u32,
    most_bytes: u64,
    bytes: u64,
    records: u64,
    /// Records of phases, which `records` does not count.
    phases: u64,
    cut: bool,
    /// The next bin.
    tier: usize,
    bin: usize,
}

impl Copy {
    /// Writes the largest holders at each device's highest peak. `most_bytes`: how long it may become.
    pub fn begin(id: u32, most_bytes: u64, ledger: &Ledger, emit: &mut dyn FnMut(&Event)) -> Copy {
        emit(&Event::HistoryBegin { id, every_ns: EVERY_NS });
        let (bytes, records, phases, cut, tier, bin) = (0, 0, 0, false, 0, 0);
        let mut copy = Copy { id, most_bytes, bytes, records, phases, cut, tier, bin };
        for device in ledger.devices() {
            for of_framework in [false, true] {
                for holder in ledger.holders(device, SummaryMoment::Peak, of_framework) {
                    copy.put(Event::HistoryPeakHolder(holder), emit);
                }
            }
        }
        copy
    }

    /// Bytes of its records.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether holders were left out.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    fn put(&mut self, event: Event, emit: &mut dyn FnMut(&Event)) {
        match event {
            Event::HistoryPhase(_) => self.phases += 1,
            _ => self.records += 1,
        }
        self.bytes += bytes_of(&event);
        emit(&event);
    }

    /// Writes the next bin. True: the copy is complete.
    pub fn slice(&mut self, history: &History, emit: &mut dyn FnMut(&Event)) -> bool {
        while let Some(tier) = history.tiers.get(self.tier) {
            if self.bin == tier.bins.len() {
                (self.tier, self.bin) = (self.tier + 1, 0);
            } else if self.bytes >= 2 * self.most_bytes {
                // The figures of very many devices: what is finer is left out.
                self.cut = true;
                break;
            } else {
                self.bin(&tier.bins[..self.bin], &tier.bins[self.bin..], emit);
                self.bin += 1;
                return false;
            }
        }
        let &mut Copy { id, cut, records, phases, .. } = self;
        emit(&Event::HistoryEnd { id, cut, records, phases });
        true
    }

    /// Writes the first bin of `bins`, to which the one before and those that follow are compared.
    fn bin(&mut self, before: &[Bin], bins: &[Bin], emit: &mut dyn FnMut(&Event)) {
        let (bin, before) = (&bins[0], before.last());
        let &Bin { from_ns, until_ns, samples, .. } = bin;
        let tier = self.tier as u8;
        self.put(Event::HistoryBin(HistoryBin { tier, samples, from_ns, until_ns }), emit);
        for of in &bin.devices {
            let [refused_by_cap, refused_by_driver] = of.refused;
            let (device, peak) = (of.device, of.peak);
            let figures = HistoryDevice { device, peak, refused_by_cap, refused_by_driver };
            self.put(Event::HistoryDevice(figures), emit);
            for (level, sums) in of.levels.iter().enumerate().filter(|(_, sums)| sums.calls[0] > 0)
            {
                let level = HistoryLevel {
                    device,
                    of_framework: level == 1,
                    lowest: sums.lowest,
                    highest: sums.highest,
                    allocations: sums.calls[0],
                    frees: sums.calls[1],
                    other_stacks: sums.other_stacks,
                    other_lowest: sums.other_lowest,
                    other_highest: sums.other_highest,
                    other_grew: sums.other_grew,
                };
                self.put(Event::HistoryLevel(level), emit);
            }
            let known = before.and_then(|bin| bin.devices.iter().find(|of| of.device == device));
            let known = known.map_or([0; KINDS], |of| of.kinds);
            for kind in Kind::ALL {
                let bytes = of.kinds[kind as usize];
                if bytes != known[kind as usize] {
                    let kind = kind as u8;
                    self.put(Event::HistoryKind { device, kind, bytes }, emit);
                }
            }
        }
        let phases = bin.phases.iter().map(|phase| Event::HistoryPhase(*phase));
        let rows = bin.rows.iter().filter(|row| !before.is_some_and(|bin| is_same(bin, row)));
        for event in phases.chain(rows.map(|row| holder(bins, row))) {
            if self.bytes >= self.most_bytes {
                self.cut = true;
                return;
            }
            self.put(event, emit);
        }
    }
}

fn is_same(bin: &Bin, row: &Row) -> bool {
    let known = bin.row(row.key);
    known.is_some_and(|known| known.lowest == row.lowest && known.highest == row.highest)
}

/// The record of a row, which also stands for the bins that follow and have the same. A tier has no more bins than a run is
/// long.
fn holder(bins: &[Bin], row: &Row) -> Event {
    let later = bins[1..].iter().take(usize::from(u8::MAX));
    Event::HistoryHolder(HistoryHolder {
        run: later.take_while(|bin| is_same(bin, row)).count() as u8,
        of_framework: row.key.level() == 1,
        stack: row.key.stack(),
        device: row.key.device(),
        lowest: row.lowest,
        highest: row.highest,
    })
}
