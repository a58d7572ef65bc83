//! Observes a replay to compute the figures that the process's own summary would have held.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::summary::{AtPeak, Change, is_held, largest_first};
use vramtrace_format::{DeviceId, Refused, StackId, Stamped, SummaryHolder, SummaryMoment};

use super::steps::Steps;
use crate::analysis::oom::OomObserver;
use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping, Observer,
};
use crate::trace::Site;

/// Bytes and allocations of each stack, now and at its device's peak.
#[derive(Default)]
pub(super) struct HeldAtPeak {
    stacks: FxHashMap<(DeviceId, StackId, bool), AtPeak>,
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

    fn on_history_gap(&mut self, at: &Stamped) {
        self.held.forget();
        self.ooms.on_history_gap(at);
    }
}
