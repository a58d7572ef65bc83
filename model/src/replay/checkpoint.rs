//! Takes the state from a checkpoint if events are missing.
//!
//! A checkpoint is written in slices while the program goes on: its entries are the live set at its
//! beginning, in between stand the events since. A free first writes the entry if it is missing, so
//! every free of something that was live at the beginning follows its entry. An allocation whose call
//! returned before the beginning and whose record came after it is listed twice, and is recognised by
//! key and time.

use vramtrace_format::{Alloc, Counters, DeviceId, Event, Kind, Purpose, ThreadId};

use super::device::DeviceState;
use super::live::{Key, Live};
use super::observer::{AllocCause, Observer};
use super::state::Certainty;
use super::{Apply, add};
use crate::trace::SiteInfo;

impl<O: Observer> Apply<'_, O> {
    /// Applies a record of a state. That of a checkpoint is not needed where the history is complete. A summary repeats
    /// figures of earlier events: `Trace::summary` reads it.
    pub(super) fn state_record(&mut self) {
        if let Some(history) = self.aside.history.take(&self.at.event) {
            self.state.history = Some(history);
        }
        if let Event::StateBegin { id, what: Purpose::Checkpoint, .. } = self.at.event
            && (self.aside.checkpoints_only || !self.state.live_is_known())
        {
            return self.resume(id);
        }
        let Certainty::Resuming { checkpoint } = self.state.certainty else { return };
        match self.at.event {
            Event::StateEvent(listed) if listed.state == checkpoint => {
                self.listed(listed.time_ns, &listed.event());
            }
            Event::StateTotals { id, site, allocations, frees, .. } if id == checkpoint => {
                let site = self.definitions.site(site);
                let Some(SiteInfo { kind: Some(kind), device, .. }) = site else { return };
                match self.state.host(kind) {
                    Some(host) => add(&mut host.allocations, allocations),
                    None if kind == Kind::Block => {
                        let cache = &mut self.device(device).cache;
                        add(&mut cache.allocations, allocations);
                        add(&mut cache.frees, frees);
                    }
                    None => {
                        add(&mut self.device(device).kinds[kind as usize].allocations, allocations);
                    }
                }
            }
            Event::StateEnd { id, .. } if id == checkpoint => {
                self.state.certainty = Certainty::Resumed;
                // Where samples are recorded, the framework's last figure is what is known of the bytes in blocks.
                for DeviceState { cache, .. } in self.state.devices.values_mut() {
                    if let Some(reported) = cache.reported_by_torch.filter(|_| cache.sampled) {
                        cache.allocated = reported.allocated;
                    }
                }
                self.observer.on_resume(self.at, self.state);
            }
            _ => {}
        }
    }

    /// Applies an event that is still so, if no newer one came since the begin.
    fn listed(&mut self, time_ns: u64, event: &Event) {
        let (state, aside) = (&self.state, &mut self.aside);
        let is_newer_known = match *event {
            Event::Alloc(alloc) => return self.checkpoint_alloc(time_ns, &alloc, 0),
            Event::SampledAlloc { rate, alloc } => {
                return self.checkpoint_alloc(time_ns, &alloc, rate);
            }
            Event::Counters(counters) => return self.take_totals(&counters),
            Event::Took(took) => {
                // They follow each other without other events, and include all changes before them.
                if !std::mem::replace(&mut aside.driver_own_listed, true) {
                    self.state.devices.values_mut().for_each(|device| device.driver_own.forget());
                }
                self.device(took.device).driver_own.apply(&took);
                return self.notify_device_change(took.device);
            }
            Event::Map { address, .. } => state.space.at(address).is_some(),
            Event::AddressReserve { asleep, address, .. } => {
                asleep != state.space.reservation_at(address).is_some()
            }
            Event::PoolState { pool, .. } => aside.read_back_pools.contains(&pool),
            Event::GraphState { device, .. } => aside.read_back_graphs.contains(&device),
            Event::ContextCreated { context, .. } => state.contexts.contains_key(&context),
            _ => true,
        };
        if !is_newer_known {
            self.event(time_ns, event);
        }
    }

    /// Resets the state at the beginning of a checkpoint.
    fn resume(&mut self, checkpoint: u8) {
        self.state.certainty = Certainty::Resuming { checkpoint };
        self.state.history_from_ns = self.at.time_ns;
        self.state.history_after_off = self.aside.gap_by_switch;
        self.state.forget_live();
        self.aside.read_back_pools.clear();
        self.aside.read_back_graphs.clear();
        self.aside.driver_own_listed = false;
        // The checkpoint lists the totals up to here.
        for device in self.state.devices.values_mut() {
            device.allocations = 0;
            device.frees = 0;
            device.refused_by_cap = 0;
            device.refused_by_driver = 0;
            device.cache.allocations = 0;
            device.cache.frees = 0;
            device.warned = 0;
            device.kinds.iter_mut().for_each(|sums| sums.allocations = 0);
        }
        self.state.host_pinned.allocations = 0;
        self.state.host_registered.allocations = 0;
        self.observer.on_history_gap(self.at);
    }

    fn checkpoint_alloc(&mut self, time_ns: u64, alloc: &Alloc, rate: u64) {
        let key = Key { space: alloc.space, number: alloc.key };
        let live = self.live_of(time_ns, alloc, rate);
        match self.state.live.get(key) {
            // Its call was recorded after the checkpoint began, though the checkpoint's totals
            // count it already: count it once.
            Some(known) if known.same_birth(time_ns) => {
                self.count_call(&live, u64::saturating_sub);
            }
            // A newer one at the same address.
            Some(_) => {}
            None => {
                let live = Live { thread: ThreadId(0), ..live };
                self.begin(key, live, AllocCause::Checkpoint);
            }
        }
    }

    fn take_totals(&mut self, counters: &Counters) {
        let device = self.device(DeviceId(counters.device));
        device.note_recorded_peak(counters);
        add(&mut device.allocations, counters.allocations);
        add(&mut device.frees, counters.frees);
        // As of this event, not of the checkpoint's beginning: refusals since then are in them.
        device.refused_by_cap = counters.refused_by_cap;
        device.refused_by_driver = counters.refused_by_driver;
        device.warned = counters.warned;
    }
}
