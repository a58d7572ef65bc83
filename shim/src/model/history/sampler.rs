//! Takes the samples, in slices.

use super::bins::{Key, LEVELS, TIERS};
use super::over_time::OverTime;
use super::peak::PeakHolders;
use super::phases::Phases;
use super::tier::{Sample, Tier};
use super::tracks::Tracks;
use crate::model::ledger::{HeldCursor, KINDS, Ledger, Walked};
use crate::runtime::fallible::TryPush;
use vramtrace_format::{DeviceId, HeldBytes, Kind};

/// Most bins of each tier; in a trace with a limit below [`SMALL`] half, below a quarter of that a quarter of them.
pub(super) const WHOLE: usize = 256;
const MINUTES: usize = 120;
const SECONDS: usize = 60;
const SMALL: u64 = 32 << 20;
pub(super) const SECOND_NS: u64 = 1_000_000_000;
/// Rows of a bin, of each level: the largest, and as many of those that grew most.
const ROWS: usize = 64;
pub(super) const LEAST_ROWS: usize = 8;
/// Time from one sample to the next, at least; and at least this many times what the last one took.
pub(super) const EVERY_NS: u64 = SECOND_NS;
const SHARE: u64 = 200;
/// Slots of the table of stacks that one slice looks at.
const SLOTS: usize = 128;

/// What the next slice does.
enum Step {
    Idle,
    Walk(HeldCursor),
    Add(usize),
    Join(usize),
    /// Rows are taken out of the bins: tier and bin.
    Shrink(usize, usize),
}

pub struct History {
    pub(super) tiers: [Tier; TIERS],
    tracks: Tracks,
    step: Step,
    /// Number of the sample, and its time, which is the end of its walk.
    sample: u32,
    sample_ns: u64,
    sums: Vec<Sample>,
    /// When the next sample is due, and what this one has cost.
    due_ns: u64,
    cost_ns: u64,
    pub(super) peak: PeakHolders,
    over_time: OverTime,
    has_ended: bool,
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
        History {
            tiers,
            tracks: Tracks::default(),
            step: Step::Idle,
            sample: 0,
            sample_ns: 0,
            sums: Vec::new(),
            due_ns: EVERY_NS,
            cost_ns: 0,
            peak: PeakHolders::default(),
            over_time: OverTime::default(),
            has_ended: false,
            most_rows: ROWS,
        }
    }

    /// Whether a sample is due, or not complete.
    pub fn is_due(&self, now_ns: u64) -> bool {
        !self.is_idle() || now_ns >= self.due_ns
    }

    /// Whether no sample is being taken: the bins change only while one is.
    pub fn is_idle(&self) -> bool {
        matches!(self.step, Step::Idle)
    }

    /// Takes a sample at once.
    pub fn sample_now(&mut self, ledger: &Ledger, phases: &Phases, now_ns: u64) {
        self.due_ns = 0;
        while self.is_due(now_ns) {
            self.slice(ledger, phases, now_ns, || now_ns);
        }
    }

    /// The process ends: the time since the last sample counts in [`History::held_over_time`].
    pub fn end(&mut self, ledger: &Ledger, phases: &Phases, now_ns: u64) {
        self.has_ended = true;
        self.over_time.begin(now_ns);
        for device in ledger.devices() {
            let peak = phases.take_peak(ledger, device);
            self.over_time.add(device, ledger.live(device), peak);
        }
    }

    /// How much a device held for how long, up to [`History::end`].
    pub fn held_over_time(&self, device: DeviceId) -> Option<HeldBytes> {
        self.over_time.of(device).filter(|_| self.has_ended)
    }

    /// Does one slice of the work that is due. `clock`: the time when it is done.
    pub fn slice(
        &mut self,
        ledger: &Ledger,
        phases: &Phases,
        now_ns: u64,
        clock: impl Fn() -> u64,
    ) {
        match self.step {
            Step::Idle if now_ns >= self.due_ns => self.begin(ledger, phases, now_ns),
            Step::Idle => return,
            Step::Walk(cursor) => self.walk(ledger, cursor, now_ns),
            Step::Add(index) => self.add(index),
            Step::Join(at) => self.join(at),
            Step::Shrink(tier, bin) => self.shrink_at(tier, bin),
        }
        self.cost_ns += clock().saturating_sub(now_ns);
        if self.is_idle() {
            let pause_ns = EVERY_NS.max(self.cost_ns.saturating_mul(SHARE));
            self.due_ns = now_ns.saturating_add(pause_ns);
            self.cost_ns = 0;
        }
    }

    fn begin(&mut self, ledger: &Ledger, phases: &Phases, now_ns: u64) {
        self.sample += 1;
        self.sums.clear();
        let tiers = &mut self.tiers;
        phases.sample(ledger, now_ns, |row| tiers.iter_mut().for_each(|tier| tier.add_phase(row)));
        self.peak.begin();
        self.over_time.begin(now_ns);
        for device in ledger.devices() {
            let mut kinds = [0; KINDS];
            Kind::ALL.iter().for_each(|kind| {
                kinds[*kind as usize] = ledger.live_of(device, *kind);
            });
            let sum = Sample {
                device,
                peak: phases.take_peak(ledger, device),
                refused: ledger.refused_so_far(device),
                bytes: [0; LEVELS],
                calls: [[0; 2]; LEVELS],
                kinds,
            };
            self.over_time.add(device, ledger.live(device), sum.peak);
            // A device without room has no figures in this sample.
            let _ = self.sums.try_push(sum);
            self.peak.begin_device(device, ledger.epoch(device));
        }
        let sums = &self.sums;
        self.tiers.iter_mut().for_each(|tier| tier.began(sums));
        self.step = Step::Walk(HeldCursor::default());
    }

    fn walk(&mut self, ledger: &Ledger, mut cursor: HeldCursor, now_ns: u64) {
        let (sums, tracks) = (&mut self.sums, &mut self.tracks);
        let (sample, tiers) = (self.sample, &self.tiers);
        let walked = ledger.held_slice(&mut cursor, &mut |held| {
            let level = usize::from(held.of_framework);
            if let Some(sum) = sums.iter_mut().find(|sum| sum.device == held.device) {
                sum.bytes[level] = sum.bytes[level].saturating_add(held.bytes);
                for (sum, more) in sum.calls[level].iter_mut().zip(held.calls) {
                    *sum = sum.saturating_add(more);
                }
            }
            let key = Key::new(held.device, held.of_framework, held.stack);
            tracks.find(key, held, sample, tiers);
        });
        match walked {
            Walked::More => self.step = Step::Walk(cursor),
            // What was found is not added to any bin.
            Walked::Void => self.step = Step::Idle,
            Walked::Done => {
                self.sample_ns = now_ns;
                self.peak.walked(|device| ledger.epoch(device));
                let sums = &self.sums;
                self.tiers.iter_mut().for_each(|tier| tier.sampled(now_ns, sums));
                self.step = Step::Add(0);
            }
        }
    }

    fn add(&mut self, mut index: usize) {
        let mut looked = 0;
        while index < self.tracks.capacity() && looked < SLOTS {
            looked += 1;
            let mut closed = [None; TIERS];
            let peak = &mut self.peak;
            let at_peak = |key, sums| peak.offer(key, sums);
            let close = |tier: usize, row| closed[tier] = Some(row);
            let stays = self.tracks.add(index, self.sample, &self.tiers, at_peak, close);
            for (tier, row) in self.tiers.iter_mut().zip(closed) {
                row.into_iter().for_each(|row| tier.offer(row, self.most_rows));
            }
            index += usize::from(stays);
        }
        if index < self.tracks.capacity() {
            self.step = Step::Add(index);
            return;
        }
        let now_ns = self.sample_ns;
        self.tiers.iter_mut().for_each(|tier| tier.end_sample(now_ns));
        self.peak.end();
        let is_full = self.tiers[0].is_full() && self.tiers[0].widen();
        self.step = if is_full { Step::Join(0) } else { Step::Idle };
    }

    /// Joins bins that are together no longer than a bin may be, from this one on; at the end of the row bins may be
    /// twice as long, until there are few enough.
    fn join(&mut self, mut at: usize) {
        let tier = &mut self.tiers[0];
        for _ in 0..SLOTS {
            self.step = match tier.may_join(at) {
                // Without host memory they stay.
                Some(true) if tier.join_at(at, self.most_rows).is_ok() => Step::Join(at),
                Some(_) => {
                    at += 1;
                    continue;
                }
                None if !tier.is_roomy() && tier.widen() => Step::Join(0),
                None => Step::Idle,
            };
            return;
        }
        self.step = Step::Join(at);
    }

    /// The copy was too long: bins tell fewer stacks apart from now on.
    pub fn shrink(&mut self) {
        if self.most_rows > LEAST_ROWS && self.is_idle() {
            self.most_rows /= 2;
            self.step = Step::Shrink(0, 0);
        }
    }

    fn shrink_at(&mut self, tier: usize, bin: usize) {
        let most = self.most_rows;
        self.step = match self.tiers.get_mut(tier).map(|tier| tier.bins.get_mut(bin)) {
            Some(Some(of)) => {
                // Without host memory it keeps its rows.
                let _ = of.choose(most);
                Step::Shrink(tier, bin + 1)
            }
            Some(None) => Step::Shrink(tier + 1, 0),
            None => Step::Idle,
        };
    }

    /// Number of stacks that are followed.
    #[cfg(test)]
    pub fn followed(&self) -> usize {
        self.tracks.len()
    }
}
