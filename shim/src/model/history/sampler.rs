//! Takes the samples, in slices.

use super::bins::{Bin, Key, OfDevice};
use super::over_time::OverTime;
use super::phases::Phases;
use super::tier::Tier;
use super::tracks::Tracks;
use crate::model::ledger::{HeldCursor, Ledger, Walked};
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
/// Slots of the table of stacks that one slice looks at.
const SLOTS: usize = 128;

/// What the next slice does.
enum Step {
    Idle,
    Walk(HeldCursor),
    Add(usize),
}

pub struct History {
    pub(super) tiers: [Tier; TIERS],
    tracks: Tracks,
    step: Step,
    /// The sample that is being taken, and its number.
    sample: Bin,
    number: u32,
    /// When the next sample is due, and what this one has cost.
    due_ns: u64,
    cost_ns: u64,
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
        History {
            tiers,
            tracks: Tracks::default(),
            step: Step::Idle,
            sample: Bin { samples: 1, ..Bin::default() },
            number: 0,
            due_ns: EVERY_NS,
            cost_ns: 0,
            over_time: OverTime::default(),
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

    /// How much each device held for how long. The process ends now: this time counts too.
    pub fn held_over_time(&mut self, ledger: &Ledger, phases: &Phases, now_ns: u64) -> OverTime {
        self.over_time.begin(now_ns);
        for device in ledger.devices() {
            let peak = phases.take_peak(ledger, device);
            self.over_time.add(device, ledger.live(device), peak);
        }
        std::mem::take(&mut self.over_time)
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
        }
        self.cost_ns += clock().saturating_sub(now_ns);
        if self.is_idle() {
            let pause_ns = EVERY_NS.max(self.cost_ns.saturating_mul(SHARE));
            self.due_ns = now_ns.saturating_add(pause_ns);
            self.cost_ns = 0;
        }
    }

    fn begin(&mut self, ledger: &Ledger, phases: &Phases, now_ns: u64) {
        self.number += 1;
        phases.sample(ledger, now_ns, &mut self.sample.phases);
        self.over_time.begin(now_ns);
        let devices = &mut self.sample.devices;
        for device in ledger.devices() {
            let peak = phases.take_peak(ledger, device);
            self.over_time.add(device, ledger.live(device), peak);
            let known = devices.iter().position(|of| of.device == device);
            // That of a walk that was void belongs to this sample too.
            let before = known.map_or(0, |at| devices.swap_remove(at).peak);
            let refused = ledger.refused_so_far(device);
            let mut of = OfDevice { peak: peak.max(before), refused, ..OfDevice::new(device) };
            for kind in Kind::ALL {
                of.kinds[kind as usize] = ledger.live_of(device, kind);
            }
            // A device without room has no figures in this sample.
            let _ = devices.try_push(of);
        }
        self.step = Step::Walk(HeldCursor::default());
    }

    fn walk(&mut self, ledger: &Ledger, mut cursor: HeldCursor, now_ns: u64) {
        let History { sample, tracks, number, tiers, .. } = self;
        let walked = ledger.held_slice(&mut cursor, &mut |held| {
            if let Some(of) = sample.devices.iter_mut().find(|of| of.device == held.device) {
                let of = &mut of.levels[usize::from(held.of_framework)];
                of.highest = of.highest.saturating_add(held.bytes);
                for (sum, more) in of.calls.iter_mut().zip(held.calls) {
                    *sum = sum.saturating_add(more);
                }
            }
            let key = Key::new(held.device, held.of_framework, held.stack);
            tracks.find(key, held.bytes, *number, tiers);
        });
        match walked {
            Walked::More => self.step = Step::Walk(cursor),
            // What was found is not added to any bin.
            Walked::Void => self.step = Step::Idle,
            Walked::Done => {
                sample.until_ns = now_ns;
                let levels = sample.devices.iter_mut().flat_map(|of| &mut of.levels);
                levels.for_each(|of| of.lowest = of.highest);
                tiers.iter_mut().for_each(|tier| tier.sampled(sample));
                (sample.devices.clear(), sample.phases.clear());
                self.step = Step::Add(0);
            }
        }
    }

    fn add(&mut self, mut index: usize) {
        for _ in 0..SLOTS {
            if index >= self.tracks.capacity() {
                self.tiers.iter_mut().for_each(|tier| tier.end_sample(self.most_rows));
                self.step = Step::Idle;
                return;
            }
            let stays = self.tracks.add(index, self.number, &mut self.tiers, self.most_rows);
            index += usize::from(stays);
        }
        self.step = Step::Add(index);
    }

    /// The copy was too long: bins tell fewer stacks apart from now on.
    pub fn shrink(&mut self) {
        if self.most_rows > LEAST_ROWS && self.is_idle() {
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
