//! Allocations and frees of one event: the live set and the sums of its device.

use vramtrace_format::{Alloc, ContextId, DeviceId, Kind, PoolId, Space, Stamped, sampling};

use super::state::HostSums;
use super::{AllocCause, Certainty, FreeCause, Key, Live, Observer, Replay, add};
use crate::trace::Definitions;

impl Replay {
    pub(super) fn alloc(
        &mut self,
        definitions: &Definitions,
        at: &Stamped,
        alloc: &Alloc,
        rate: u64,
        observer: &mut impl Observer,
    ) {
        let key = Key { space: alloc.space, number: alloc.key };
        let mut live = self.live_of(definitions, at, at.time_ns, alloc, rate);
        // One access to the map: an earlier allocation with the same key is rare, and is put back.
        if let Some(mut earlier) = self.state.live.insert(key, &mut live) {
            if earlier.same_birth(at.time_ns) && self.state.certainty != Certainty::Whole {
                // The checkpoint listed this allocation before its event.
                self.state.live.insert(key, &mut Live { thread: at.thread, ..earlier });
                return;
            }
            if earlier.kind == Kind::Imported && live.kind == Kind::Imported {
                let references = earlier.references.saturating_add(1);
                self.state.live.insert(key, &mut Live { references, ..earlier });
                self.count_call(&live);
                return;
            }
            // Where events are missing, its free may be among them.
            self.state.inconsistencies.replaced += u64::from(self.state.live_is_known());
            self.state.live.insert(key, &mut earlier);
            self.end(at, key, FreeCause::Replaced, observer);
            self.state.live.insert(key, &mut live);
        }
        self.count_call(&live);
        self.count_allocation(at, key, &live, AllocCause::Allocated, observer);
    }

    /// Counts one allocating call.
    pub(super) fn count_call(&mut self, live: &Live) {
        let number = live.weigh(1);
        match live.kind {
            Kind::HostPinned => add(&mut self.state.host_pinned.allocations, number),
            Kind::HostRegistered => add(&mut self.state.host_registered.allocations, number),
            Kind::Block => add(&mut self.device(live.device).cache.allocations, number),
            kind => {
                let device = self.device(live.device);
                add(&mut device.allocations, if kind == Kind::Imported { 0 } else { number });
                add(&mut device.kinds[kind as usize].allocations, number);
            }
        }
    }

    pub(super) fn live_of(
        &mut self,
        definitions: &Definitions,
        at: &Stamped,
        time_ns: u64,
        alloc: &Alloc,
        rate: u64,
    ) -> Live {
        let site = definitions.site(alloc.site);
        self.state.inconsistencies.unknown_sites += u64::from(site.is_none());
        let natural = match alloc.space {
            Space::Device => Kind::Device,
            Space::Vmm => Kind::Vmm,
            Space::Array => Kind::Array,
            Space::Host => Kind::HostPinned,
            Space::Block => Kind::Block,
        };
        Live {
            size: alloc.size,
            time_ns,
            site: alloc.site,
            stack: alloc.stack,
            thread: at.thread,
            context: site.map_or(ContextId(0), |site| site.context),
            pool: site.map_or(PoolId(0), |site| site.pool),
            // A damaged file may name a site of another kind: blocks and memory never share a key.
            kind: match site.and_then(|site| site.kind) {
                Some(kind) if (kind == Kind::Block) == (natural == Kind::Block) => kind,
                _ => natural,
            },
            device: site.map_or(DeviceId::UNKNOWN, |site| site.device),
            references: 1,
            slot: 0,
            weight: sampling::weight(alloc.size, rate),
        }
    }

    /// Adds an allocation to the live set and to the sums.
    pub(super) fn begin(
        &mut self,
        at: &Stamped,
        key: Key,
        mut live: Live,
        how: AllocCause,
        observer: &mut impl Observer,
    ) {
        self.state.live.insert(key, &mut live);
        self.count_allocation(at, key, &live, how, observer);
    }

    /// Adds an allocation of the live set to the sums.
    pub(super) fn count_allocation(
        &mut self,
        at: &Stamped,
        key: Key,
        live: &Live,
        how: AllocCause,
        observer: &mut impl Observer,
    ) {
        if let Some(host) = self.host(live.kind) {
            host.add(live.weigh(live.size));
            observer.on_alloc(at, key, live, how);
            return;
        }
        if live.kind == Kind::Block {
            self.count_block(at, key, live, how, observer);
            return;
        }
        if how == AllocCause::Allocated {
            self.state.cache.refusals.served(at.thread);
        }
        self.device(live.device).add_live(key, live);
        observer.on_alloc(at, key, live, how);
        self.memory_added(at, key, live, observer);
        self.notify_device_change(at, live.device, observer);
    }

    /// Removes an allocation from the live set and the sums, or one of its references. False: it is not live.
    pub(super) fn end(
        &mut self,
        at: &Stamped,
        key: Key,
        how: FreeCause,
        observer: &mut impl Observer,
    ) -> bool {
        let Some((live, gone)) = self.state.live.release(key, how != FreeCause::Freed) else {
            return false;
        };
        let mut live = *live;
        if gone {
            self.ended(at, key, &live, how, observer);
        } else {
            live.references = 1;
        }
        if how == FreeCause::Freed {
            self.freed.push(key, &live);
        }
        true
    }

    /// Removes an allocation, which left the live set, from the sums.
    fn ended(
        &mut self,
        at: &Stamped,
        key: Key,
        live: &Live,
        how: FreeCause,
        observer: &mut impl Observer,
    ) {
        if let Some(host) = self.host(live.kind) {
            host.remove(live.weigh(live.size));
            observer.on_free(at, key, live, how);
            return;
        }
        if live.kind == Kind::Block {
            self.uncount_block(at, key, live, how, observer);
            return;
        }
        if key.space == Space::Device {
            let end = key.number.saturating_add(live.size);
            let blocks_end = match how {
                FreeCause::WithContext => FreeCause::WithContext,
                _ => FreeCause::WithMemory,
            };
            self.allocation_removed(at, key.number, end, blocks_end, observer);
        }
        if key.space == Space::Vmm {
            self.state.space.forget_object(key.number);
        }
        let device = self.device(live.device);
        device.remove_live(key, live);
        add(&mut device.frees, if live.kind == Kind::Imported { 0 } else { live.weigh(1) });
        observer.on_free(at, key, live, how);
        self.notify_device_change(at, live.device, observer);
    }

    pub(super) fn host(&mut self, kind: Kind) -> Option<&mut HostSums> {
        match kind {
            Kind::HostPinned => Some(&mut self.state.host_pinned),
            Kind::HostRegistered => Some(&mut self.state.host_registered),
            _ => None,
        }
    }

    pub(super) fn unknown_free(&mut self) {
        // Where events are missing, the allocation may be among them.
        if self.state.certainty == Certainty::Whole {
            self.state.inconsistencies.unknown_frees += 1;
        }
    }

    pub(super) fn unknown_restore(&mut self) {
        if self.state.certainty == Certainty::Whole {
            self.state.inconsistencies.unknown_restores += 1;
        }
    }

    pub(super) fn free_failed(&mut self, at: &Stamped, key: Key, observer: &mut impl Observer) {
        match self.freed.find(key) {
            Some(live) if self.state.live.get(key).is_none() => {
                if !live.kind.is_host() && live.kind != Kind::Imported {
                    let device = self.device(live.device);
                    device.frees = device.frees.saturating_sub(live.weigh(1));
                }
                self.begin(at, key, live, AllocCause::FreeFailed, observer);
            }
            // The free had removed one of several references, or a checkpoint listed the allocation
            // again.
            Some(_) => {
                if let Some(live) = self.state.live.get_mut(key)
                    && live.kind == Kind::Imported
                {
                    live.references = live.references.saturating_add(1);
                }
            }
            None => self.unknown_restore(),
        }
    }
}
