//! The process state that the trace writer reads: totals, limits, checkpoints.

use crate::driver::depth::SAMPLED_ONE_OF;
use crate::hooks::process::state::Process;
use crate::model::block_sampling::BlockSampling;
use crate::model::contexts::Context;
use crate::model::history::Phases;
use crate::model::ledger::Ledger;
use crate::trace_writer::maintenance::{Cost, ProcessView};
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::address_space::{Asleep, Mapping, Owner, Reservation};
use vramtrace_format::{Counters, DeviceId, Event, Kind, LiveDevice, SiteId, StateHolder};

impl ProcessView for Process {
    fn limits(&self, device: DeviceId, emit: &mut dyn FnMut(&Event)) {
        if !self.cap.is_set() {
            return;
        }
        let (bytes, group) = (self.cap.limit(device), self.cap.group_limit(device));
        let (soft, only_warns) = (self.cap.soft_limit(device), self.cap.only_warns());
        emit(&Event::Cap { device, bytes, group, soft, only_warns });
    }

    fn devices(&self) -> Vec<DeviceId> {
        let with_context = |device: &DeviceId| self.contexts.any_on(*device);
        let with_a_context = self.devices.all().map(|device| device.id).filter(with_context);
        #[allow(clippy::disallowed_methods)] // one for each device at most
        let mut devices: Vec<DeviceId> = self.ledger.devices().chain(with_a_context).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    fn counters(&self, device: DeviceId) -> Counters {
        let counters = self.ledger.counters(device);
        Counters { counted: self.cap.counted(device), ..counters }
    }

    fn live_device(&self, counters: &Counters) -> LiveDevice {
        let device = DeviceId(counters.device);
        let of = |kind| self.ledger.live_of(device, kind);
        let known = self.devices.known(device);
        LiveDevice {
            ordinal: counters.device,
            live: counters.live,
            peak: counters.peak,
            reserved: of(Kind::Pool) + of(Kind::Graph),
            counted: counters.counted,
            cap: self.cap.limit(device),
            live_allocations: counters.live_allocations,
            allocations: counters.allocations,
            frees: counters.frees,
            refused_by_cap: counters.refused_by_cap,
            refused_by_driver: counters.refused_by_driver,
            events: counters.allocations
                + counters.frees
                + counters.refused_by_cap
                + counters.refused_by_driver,
            warned: counters.warned,
            total_bytes: known.map_or(0, |known| known.total_bytes),
            uuid: known.map_or([0; 16], |known| known.uuid),
            only_warns: self.cap.only_warns(),
            free_cache: self
                .torch_totals
                .of(device)
                .map_or(0, |cache| cache.reserved.saturating_sub(cache.allocated)),
            resident: counters.live,
            paused: self.vmm.lock().space.asleep_on(device),
        }
    }

    fn cost(&self) -> Cost {
        let (calls, ns) = self.cost.sampled();
        Cost { calls, ns, one_of: SAMPLED_ONE_OF as u64, stacks: self.capture.stacks() }
    }

    fn others(&self, end: bool, emit: &mut dyn FnMut(&Event)) {
        if end {
            self.torch_totals.events().for_each(|event| emit(&event));
            let samples = self.block_sampling.iter().flat_map(BlockSampling::events);
            samples.for_each(|event| emit(&event));
        } else {
            let rate = self.block_sampling.as_ref().map(BlockSampling::rate);
            rate.iter().for_each(emit);
            self.torch_totals.ask();
            self.block_sampling.iter().for_each(BlockSampling::ask);
        }
    }

    /// After memory was unmapped and mapped again the ledger's sums lack its owners, and those of samples are no sums of
    /// blocks: then no summary is written, and the reader replays the trace.
    fn can_sum_up(&self) -> bool {
        self.block_sampling.is_none() && !self.vmm.lock().space.ever_slept
    }

    fn driver_holders(&self) -> Option<Vec<StateHolder>> {
        let mut all = Vec::new();
        for device in self.devices() {
            let epoch = self.ledger.epoch(device);
            self.nvml.sum_up(&self.contexts, device, epoch, &mut all).ok()?;
        }
        Some(all)
    }

    fn cache_ooms(&self) -> u32 {
        self.oom.cache_ooms()
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn phases(&self) -> &Phases {
        &self.phases
    }

    fn checkpoint_frame(&self, emit: &mut dyn FnMut(u64, &Event)) {
        self.contexts.for_each(|&Context { id: context, device, time_ns, stack, .. }| {
            emit(time_ns, &Event::ContextCreated { context, device, stack });
        });
        let emit = &mut |event: &Event| emit(0, event);
        let vmm = self.vmm.lock();
        // Reservations first, since the mappings that follow lie in them.
        for &Reservation { address, size, site, stack, .. } in vmm.space.reservations() {
            let (asleep, device) = (false, DeviceId::UNKNOWN);
            emit(&Event::AddressReserve { asleep, device, address, size, site, stack });
        }
        for &Asleep { address, size, owner: Owner { stack, device }, .. } in vmm.space.asleep() {
            let (asleep, site) = (true, SiteId(0));
            emit(&Event::AddressReserve { asleep, device, address, size, site, stack });
        }
        for &Mapping { address, size, offset, object, woken } in vmm.space.mappings() {
            let woken = woken.map(|woken| (woken.owner.stack, woken.by));
            let (owner, stack) = woken.unwrap_or_default();
            emit(&Event::Map { address, size, offset, object, owner, stack });
        }
        drop(vmm);
        self.pools.checkpoint(emit);
        for device in self.ledger.devices() {
            let memory = self.graphs.memory(device);
            let (reserved, used) =
                (self.ledger.live_of(device, Kind::Graph), memory.used.load(Relaxed));
            if reserved != 0 || used != 0 {
                emit(&Event::GraphState { device, reserved, used });
            }
        }
        self.nvml.each_taken(|took| emit(&Event::Took(took)));
    }
}
