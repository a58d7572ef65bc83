//! Writes all bins as events, in slices. A stack whose figures are the same in several bins is written once.

use super::bins::{Bin, OfDevice, Row, TIERS};
use super::sampler::{EVERY_NS, History};
use crate::model::ledger::KINDS;
use vramtrace_format::{Event, HistoryBin, HistoryDevice, HistoryHolder, HistoryLevel, Kind};

/// Records that one slice writes, and rows that it looks for, about.
const RECORDS: usize = 32;
const LOOKUPS: usize = 256;
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
    tier: usize,
    bin: usize,
    /// The next row of the bin, and whether its figures are written.
    row: usize,
    has_figures: bool,
    holder: usize,
}

impl Copy {
    /// `most_bytes`: how long it may become.
    pub fn begin(id: u32, most_bytes: u64, emit: &mut dyn FnMut(&Event)) -> Copy {
        emit(&Event::HistoryBegin { id, every_ns: EVERY_NS });
        let (tier, bin, row, holder) = (0, 0, 0, 0);
        let (bytes, records, phases, cut, has_figures) = (0, 0, 0, false, false);
        Copy { id, most_bytes, bytes, records, phases, cut, tier, bin, row, has_figures, holder }
    }

    /// Bytes of its records.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether holders were left out.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    fn written(&self) -> u64 {
        self.records + self.phases
    }

    fn put(&mut self, event: Event, emit: &mut dyn FnMut(&Event)) {
        match event {
            Event::HistoryPhase(_) => self.phases += 1,
            _ => self.records += 1,
        }
        self.bytes += bytes_of(&event);
        emit(&event);
    }

    /// Writes on. True: the copy is complete.
    pub fn slice(&mut self, history: &History, emit: &mut dyn FnMut(&Event)) -> bool {
        let end = self.written() + RECORDS as u64;
        let mut lookups = 0;
        while let Some(holder) = history.peak.found.get(self.holder).copied() {
            if self.written() >= end {
                return false;
            }
            self.holder += 1;
            self.put(Event::HistoryPeakHolder(holder), emit);
        }
        while self.tier < TIERS {
            let bins = &history.tiers[self.tier].bins;
            let Some(bin) = bins.get(self.bin) else {
                (self.tier, self.bin, self.row) = (self.tier + 1, 0, 0);
                continue;
            };
            if self.written() >= end {
                return false;
            }
            if self.bytes >= 2 * self.most_bytes {
                // The figures of very many devices: what is finer is left out.
                (self.tier, self.cut) = (TIERS, true);
                break;
            }
            if !std::mem::replace(&mut self.has_figures, true) {
                let before = self.bin.checked_sub(1).map(|before| &bins[before]);
                self.figures(bin, before, emit);
            }
            while let Some(row) = bin.rows.get(self.row) {
                if self.bytes >= self.most_bytes {
                    self.cut = true;
                    self.row = bin.rows.len();
                    break;
                }
                if self.written() >= end || lookups >= LOOKUPS {
                    return false;
                }
                let (event, looked) = holder(bins, self.bin, row);
                lookups += looked;
                self.row += 1;
                event.into_iter().for_each(|event| self.put(event, emit));
            }
            (self.bin, self.row, self.has_figures) = (self.bin + 1, 0, false);
        }
        let &mut Copy { id, cut, records, phases, .. } = self;
        emit(&Event::HistoryEnd { id, cut, records, phases });
        true
    }

    fn figures(&mut self, bin: &Bin, before: Option<&Bin>, emit: &mut dyn FnMut(&Event)) {
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
                let others = &sums.others;
                let level = HistoryLevel {
                    device,
                    of_framework: level == 1,
                    lowest: sums.lowest,
                    highest: sums.highest,
                    allocations: sums.calls[0],
                    frees: sums.calls[1],
                    other_stacks: others.stacks,
                    other_lowest: others.lowest,
                    other_highest: others.highest,
                    other_grew: others.grew,
                };
                self.put(Event::HistoryLevel(level), emit);
            }
            let known = before.and_then(|bin| bin.devices.iter().find(|of| of.device == device));
            let known: [u64; KINDS] = known.map_or([0; KINDS], |of: &OfDevice| of.kinds);
            for kind in Kind::ALL {
                let bytes = of.kinds[kind as usize];
                if bytes != known[kind as usize] {
                    let kind = kind as u8;
                    self.put(Event::HistoryKind { device, kind, bytes }, emit);
                }
            }
        }
        if self.bytes >= self.most_bytes {
            self.cut |= !bin.phases.is_empty();
            return;
        }
        for phase in &bin.phases {
            self.put(Event::HistoryPhase(*phase), emit);
        }
    }
}

fn is_same(bin: Option<&Bin>, row: &Row) -> bool {
    let known = bin.and_then(|bin| bin.row(row.key));
    known.is_some_and(|known| known.lowest == row.lowest && known.highest == row.highest)
}

/// The record of a row, unless the record of an earlier bin stands for it; and the number of rows that were looked for.
/// A tier has no more bins than a run is long.
fn holder(bins: &[Bin], at: usize, row: &Row) -> (Option<Event>, usize) {
    if is_same(at.checked_sub(1).map(|before| &bins[before]), row) {
        return (None, 1);
    }
    let later = bins[at + 1..].iter().take(usize::from(u8::MAX));
    let run = later.take_while(|bin| is_same(Some(bin), row)).count();
    let holder = HistoryHolder {
        run: run as u8,
        of_framework: row.key.level() == 1,
        stack: row.key.stack(),
        device: row.key.device(),
        lowest: row.lowest,
        highest: row.highest,
    };
    (Some(Event::HistoryHolder(holder)), run + 2)
}
