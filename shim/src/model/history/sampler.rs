//! Takes the samples.

use super::bins::{Bin, Key, OfDevice};
use super::over_time::OverTime;
use super::phases::Phases;
use super::tier::Tier;
use super::tracks::Tracks;
use crate::model::ledger::Ledger;
use crate::runtime::fallible::TryPush;
use vramtrace_format::Kind;

/// Most bins of each tier; in a trace with a limit below [`SMALL`] half, below a quarter of that a quarter of them.
pub(super) const WHOLE: usize = 176;
const MINUTES: usize = 120;
const SECONDS: usize = 60;
pub(super) const TIERS: usize = 3;
const SMALL: u64 = 32 << 20;
pub(super) const SECOND_NS: u64 = 1_000_000_000;
/// Rows of a bin, of each level: the largest, and as many of those that grew most.
const ROWS: usize = 64;
pub(super) const LEAST_ROWS: usize = 8;
/// Time from one sample to the next, at least; and at least this many times what the last one took.
pub(super) const EVERY_NS: u64 = SECOND_NS;
const SHARE: u64 = 200;

pub struct History {
    pub(super) tiers: [Tier; TIERS],
    tracks: Tracks,
    /// Number of the last sample.
    number: u32,
    /// When the next one is due.
    due_ns: u64,
    over_time: OverTime,
    pub(super) most_rows: usize,
}

impl History {
    /// `limit`: most bytes of the trace.
    pub fn new(limit: u64) -> History {
        let part = match limit {
            _ if limit < SMALL / 4 => 4,
            _ if limit < SMALL => 2,
            _ => 1,
        };
        let tiers = [
            Tier::new(SECOND_NS, WHOLE / part, true),
            Tier::new(60 * SECOND_NS, MINUTES / part, false),
            Tier::new(SECOND_NS, SECONDS / part, false),
        ];
        let (tracks, over_time) = (Tracks::default(), OverTime::default());
        History { tiers, tracks, number: 0, due_ns: EVERY_NS, over_time, most_rows: ROWS }
    }

    /// Whether a sample is due.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// How much each device held for how long. The process ends now: this time counts too.
    pub fn held_over_time(&mut self, ledger: &Ledger, phases: &Phases, now_ns: u64) -> OverTime {
        self.over_time.begin(now_ns);
        for device in ledger.devices() {
            let peak = phases.take_peak(ledger, device);
            self.over_time.add(device, ledger.live(device), peak);
        }
        std::mem::take(&mut self.over_time)
    }

    /// Takes a sample. `clock`: the time when it is done.
    pub fn sample(
        &mut self,
        ledger: &Ledger,
        phases: &Phases,
        now_ns: u64,
        clock: impl Fn() -> u64,
    ) {
        self.number += 1;
        let mut sample = Bin { samples: 1, until_ns: now_ns, ..Bin::default() };
        phases.sample(ledger, now_ns, &mut sample.phases);
        self.over_time.begin(now_ns);
        for device in ledger.devices() {
            let (peak, refused) = (phases.take_peak(ledger, device), ledger.refused_so_far(device));
            self.over_time.add(device, ledger.live(device), peak);
            let mut of = OfDevice { peak, refused, ..OfDevice::new(device) };
            for kind in Kind::ALL {
                of.kinds[kind as usize] = ledger.live_of(device, kind);
            }
            // A device without room has no figures in this sample.
            let _ = sample.devices.try_push(of);
        }
        ledger.each_held(|held| {
            if let Some(of) = sample.devices.iter_mut().find(|of| of.device == held.device) {
                let of = &mut of.levels[usize::from(held.of_framework)];
                of.highest = of.highest.saturating_add(held.bytes);
                of.lowest = of.highest;
                let [allocations, frees] = held.calls;
                of.allocations = of.allocations.saturating_add(allocations);
                of.frees = of.frees.saturating_add(frees);
            }
            let key = Key::new(held.device, held.of_framework, held.stack);
            self.tracks.find(key, held.bytes, self.number, &self.tiers);
        });
        self.tiers.iter_mut().for_each(|tier| tier.sampled(&sample));
        self.tracks.add(self.number, &mut self.tiers, self.most_rows);
        self.tiers.iter_mut().for_each(|tier| tier.end_sample(self.most_rows));
        let cost_ns = clock().saturating_sub(now_ns);
        self.due_ns = now_ns.saturating_add(EVERY_NS.max(cost_ns.saturating_mul(SHARE)));
    }

    /// The copy was too long: bins tell fewer stacks apart from now on.
    pub fn shrink(&mut self) {
        if self.most_rows > LEAST_ROWS {
            self.most_rows /= 2;
            let bins = self.tiers.iter_mut().flat_map(|tier| &mut tier.bins);
            bins.for_each(|bin| bin.choose(self.most_rows));
        }
    }

    /// Number of stacks that are followed.
    #[cfg(test)]
    pub fn followed(&self) -> usize {
        self.tracks.len()
    }
}
