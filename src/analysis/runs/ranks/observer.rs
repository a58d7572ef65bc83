//! Observes a replay to compute the figures that the process's own summary would have held.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::summary::{AtPeak, Change, is_held, largest_driver_first, largest_first};
use vramtrace_format::{
    Cause, DeviceId, Refused, StackId, Stamped, SummaryDriver, SummaryHolder, SummaryMoment, Took,
};

use super::steps::Steps;
use crate::analysis::oom::OomObserver;
use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping, Observer,
    Originator, State,
};
use crate::trace::Site;

/// Bytes and allocations of each stack, now and at its device's peak.
#[derive(Default)]
pub(super) struct HeldAtPeak {
    stacks: FxHashMap<(DeviceId, StackId, bool), AtPeak>,
    driver: FxHashMap<(DeviceId, Originator), AtPeak>,
    peaks: FxHashMap<DeviceId, PeakSoFar>,
}

#[derive(Clone, Copy, Default)]
struct PeakSoFar {
    bytes: u64,
    epoch: u32,
    /// No block was allocated since.
    awaits_block: bool,
}

impl HeldAtPeak {
    fn change(&mut self, live: &Live, of_framework: bool, came: bool) {
        if !is_held(live.kind) {
            return;
        }
        let peak = self.peaks.entry(live.device).or_default();
        let joins_peak = came && of_framework && std::mem::take(&mut peak.awaits_block);
        let (bytes, number) = (live.share(), live.weigh(1));
        let change = Change { bytes, number, came, epoch: peak.epoch, joins_peak };
        self.stacks.entry((live.device, live.stack, of_framework)).or_default().apply(change);
    }

    /// The driver took memory for itself, or gave it back (`bytes` below 0).
    fn took(&mut self, device: DeviceId, maker: Originator, bytes: i64) {
        let epoch = self.peaks.entry(device).or_default().epoch;
        let (came, bytes) = (bytes > 0, bytes.unsigned_abs());
        let change = Change { bytes, number: 0, came, epoch, joins_peak: false };
        self.driver.entry((device, maker)).or_default().apply(change);
    }

    fn reach(&mut self, device: DeviceId, bytes: u64) {
        let peak = self.peaks.entry(device).or_default();
        if bytes > peak.bytes {
            *peak = PeakSoFar { bytes, epoch: peak.epoch.wrapping_add(1), awaits_block: true };
        }
    }

    fn forget(&mut self) {
        for ((device, _, _), held) in &mut self.stacks {
            held.forget(self.peaks.get(device).map_or(0, |peak| peak.epoch));
        }
        for ((device, _), held) in &mut self.driver {
            held.forget(self.peaks.get(device).map_or(0, |peak| peak.epoch));
        }
    }

    /// What the driver took for itself on a device, at the peak and at the end, by cause and stack, largest first.
    pub(super) fn driver(&self, device: DeviceId) -> Vec<SummaryDriver> {
        let epoch = self.peaks.get(&device).map_or(0, |peak| peak.epoch);
        let mut all = Vec::new();
        for moment in [SummaryMoment::Peak, SummaryMoment::End] {
            let mut sums: FxHashMap<(Cause, StackId), [u64; 2]> = FxHashMap::default();
            for ((_, maker), held) in self.driver.iter().filter(|((of, _), _)| *of == device) {
                let [bytes, _] = held.at(moment, epoch);
                if bytes > 0 {
                    let [sum, count] = sums.entry((maker.cause, maker.stack)).or_default();
                    (*sum, *count) = (sum.saturating_add(bytes), *count + 1);
                }
            }
            let sums = sums.into_iter();
            let mut here: Vec<SummaryDriver> = sums
                .map(|((cause, stack), [bytes, count])| SummaryDriver {
                    device,
                    moment,
                    cause,
                    stack,
                    bytes,
                    count,
                })
                .collect();
            largest_driver_first(&mut here);
            all.append(&mut here);
        }
        all
    }

    /// The holders of a device, at the peak and at the end, at both levels, largest first.
    pub(super) fn holders(&self, device: DeviceId) -> Vec<SummaryHolder> {
        let epoch = self.peaks.get(&device).map_or(0, |peak| peak.epoch);
        let mut all = Vec::new();
        for moment in [SummaryMoment::Peak, SummaryMoment::End] {
            for framework in [false, true] {
                let here = self
                    .stacks
                    .iter()
                    .filter(|((of, _, level), _)| *of == device && *level == framework);
                let holder = |((_, stack, _), held): (&(DeviceId, StackId, bool), &AtPeak)| {
                    let [bytes, count] = held.at(moment, epoch);
                    let (stack, of_framework) = (*stack, framework);
                    SummaryHolder { device, moment, of_framework, stack, bytes, count }
                };
                let mut holders: Vec<SummaryHolder> = here.map(holder).collect();
                largest_first(&mut holders);
                all.append(&mut holders);
            }
        }
        all
    }
}

pub(super) struct RankObserver {
    pub held: HeldAtPeak,
    pub ooms: OomObserver,
    pub steps: BTreeMap<DeviceId, Steps>,
    /// Memory was unmapped, and its owner kept the addresses.
    pub slept: bool,
    most_steps: Option<usize>,
}

impl RankObserver {
    pub(super) fn new(most_steps: Option<usize>) -> RankObserver {
        RankObserver {
            held: HeldAtPeak::default(),
            ooms: OomObserver::default(),
            steps: BTreeMap::new(),
            slept: false,
            most_steps,
        }
    }
}

impl Observer for RankObserver {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.held.change(live, false, true);
        self.ooms.on_alloc(at, key, live, how);
    }

    fn on_free(&mut self, _: &Stamped, _: Key, live: &Live, _: FreeCause) {
        self.held.change(live, false, false);
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        self.held.change(live, true, true);
        self.ooms.on_block_alloc(at, address, live, how);
    }

    fn on_block_free(&mut self, _: &Stamped, _: u64, live: &Live, _: FreeCause) {
        self.held.change(live, true, false);
    }

    fn on_sleep(&mut self, _: &Stamped, _: &Asleep, _: StackId) {
        self.slept = true;
    }

    fn on_wake(&mut self, _: &Stamped, _: &Mapping, _: Option<&Live>) {
        self.slept = true;
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        self.held.reach(device, state.peak.bytes);
        if let Some(most) = self.most_steps {
            let steps = self.steps.entry(device).or_insert_with(|| Steps::new(most));
            steps.push(at.time_ns, state.live_bytes);
        }
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&Site>) {
        self.ooms.on_refusal(at, refused, site);
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        self.ooms.on_cache_oom(at, device, oom);
    }

    fn on_took(&mut self, _: &Stamped, took: &Took) {
        self.held.took(took.device, Originator::of(took), took.delta);
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.held.forget();
        self.ooms.on_history_gap(at);
    }

    fn on_resume(&mut self, _: &Stamped, state: &State) {
        for (device, sums) in &state.devices {
            for (maker, bytes) in sums.driver_own.makers() {
                self.held.took(*device, maker, i64::try_from(bytes).unwrap_or(i64::MAX));
            }
        }
    }
}
