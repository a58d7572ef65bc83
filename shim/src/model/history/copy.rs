//! Writes all bins as events. A stack whose figures are the same in several bins is written once.

use super::bins::{Bin, Row};
use super::sampler::History;
use crate::model::ledger::{KINDS, Ledger};
use vramtrace_format::{
    Event, HistoryBin, HistoryDevice, HistoryHolder, Kind, Purpose, SummaryMoment,
};

/// Bytes of a record.
pub(super) fn bytes_of(event: &Event) -> u64 {
    match event {
        Event::HistoryDevice(_) | Event::HistoryHolder(_) | Event::StateHolder(_) => 40,
        Event::HistoryLevel(_) => 80,
        Event::HistoryPhase(_) => 56,
        _ => 32,
    }
}

/// Writes a copy, and counts its bytes.
struct Writer<'e> {
    emit: &'e mut dyn FnMut(&Event),
    bytes: u64,
    most_bytes: u64,
    /// Holders were left out.
    cut: bool,
}

impl History {
    /// Writes the largest holders at each device's highest peak, and all bins. `most_bytes`: how long it may become.
    /// Returns its bytes, and whether holders were left out.
    pub fn copy(
        &self,
        id: u8,
        most_bytes: u64,
        ledger: &Ledger,
        emit: &mut dyn FnMut(&Event),
    ) -> (u64, bool) {
        emit(&Event::StateBegin { id, what: Purpose::History, cache_ooms: 0 });
        let mut to = Writer { emit, bytes: 0, most_bytes, cut: false };
        for device in ledger.devices() {
            for of_framework in [false, true] {
                for holder in ledger.holders(device, SummaryMoment::Peak, of_framework) {
                    to.put(Event::StateHolder(holder));
                }
            }
        }
        for (tier, bins) in (0..).zip(self.tiers.each_ref().map(|tier| &tier.bins)) {
            for at in 0..bins.len() {
                // The figures of very many devices: what is finer is left out.
                if to.bytes < 2 * most_bytes {
                    to.bin(tier, &bins[..at], &bins[at..]);
                } else {
                    to.cut = true;
                }
            }
        }
        let Writer { emit, bytes, cut, .. } = to;
        emit(&Event::StateEnd { id, cut });
        (bytes, cut)
    }
}

impl Writer<'_> {
    fn put(&mut self, event: Event) {
        self.bytes += bytes_of(&event);
        (self.emit)(&event);
    }

    /// Writes the first bin of `bins`, to which the one before and those that follow are compared.
    fn bin(&mut self, tier: u8, before: &[Bin], bins: &[Bin]) {
        let (bin, before) = (&bins[0], before.last());
        let &Bin { from_ns, until_ns, samples, .. } = bin;
        self.put(Event::HistoryBin(HistoryBin { tier, samples, from_ns, until_ns }));
        for of in &bin.devices {
            let [refused_by_cap, refused_by_driver] = of.refused;
            let (device, peak) = (of.device, of.peak);
            let figures = HistoryDevice { device, peak, refused_by_cap, refused_by_driver };
            self.put(Event::HistoryDevice(figures));
            for level in of.levels.iter().filter(|level| level.allocations > 0) {
                self.put(Event::HistoryLevel(*level));
            }
            let known = before.and_then(|bin| bin.devices.iter().find(|of| of.device == device));
            let known = known.map_or([0; KINDS], |of| of.kinds);
            for kind in Kind::ALL {
                let at_peak = of.kinds[kind as usize];
                if at_peak != known[kind as usize] {
                    self.put(Event::StateKind { device, kind: kind as u8, at_peak, live: 0 });
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
            self.put(event);
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
