//! Allocations and frees of one event: the live set and the sums of its device.

use vramtrace_format::{Alloc, ContextId, DeviceId, Kind, PoolId, Space, sampling};

use super::{AllocCause, Apply, Certainty, FreeCause, Key, Live, Observer, add};

impl<O: Observer> Apply<'_, O> {
    pub(super) fn alloc(&mut self, alloc: &Alloc, rate: u64) {
        let key = Key { space: alloc.space, number: alloc.key };
        let mut live = self.live_of(self.at.time_ns, alloc, rate);
        // One access to the map: an earlier allocation with the same key is rare, and is put back.
        if let Some(mut earlier) = self.state.live.insert(key, &mut live) {
            if earlier.same_birth(self.at.time_ns) && self.state.certainty != Certainty::Whole {
                // The checkpoint listed this allocation before its event.
                self.state.live.insert(key, &mut Live { thread: self.at.thread, ..earlier });
                return;
            }
            if earlier.kind == Kind::Imported && live.kind == Kind::Imported {
                let references = earlier.references.saturating_add(1);
                self.state.live.insert(key, &mut Live { references, ..earlier });
                self.count_call(&live, u64::saturating_add);
                return;
            }
            // Where events are missing, its free may be among them.
            self.state.inconsistencies.replaced += u64::from(self.state.live_is_known());
            self.state.live.insert(key, &mut earlier);
            self.end(key, FreeCause::Replaced);
            self.state.live.insert(key, &mut live);
        }
        self.count_call(&live, u64::saturating_add);
        self.count_allocation(key, &live, AllocCause::Allocated);
        // A pool may grow before its allocation is recorded: the peak has both.
        if live.kind == Kind::Pool {
            let (time_ns, offset) = (self.at.time_ns, self.at.offset);
            let device = self.device(live.device);
            if std::mem::take(&mut device.peak_is_of_pool) {
                device.move_peak(time_ns, offset);
            }
        }
    }

    /// Counts one allocating call, or by `u64::saturating_sub` none that was counted twice.
    pub(super) fn count_call(&mut self, live: &Live, change: impl Fn(u64, u64) -> u64) {
        let number = live.weigh(1);
        let count = |sum: &mut u64| *sum = change(*sum, number);
        match self.state.host(live.kind) {
            Some(host) => count(&mut host.allocations),
            None if live.kind == Kind::Block => {
                count(&mut self.device(live.device).cache.allocations);
            }
            None => {
                let device = self.device(live.device);
                if live.kind != Kind::Imported {
                    count(&mut device.allocations);
                }
                count(&mut device.kinds[live.kind as usize].allocations);
            }
        }
    }

    pub(super) fn live_of(&mut self, time_ns: u64, alloc: &Alloc, rate: u64) -> Live {
        let site = self.definitions.site(alloc.site);
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
            thread: self.at.thread,
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
    pub(super) fn begin(&mut self, key: Key, mut live: Live, how: AllocCause) {
        self.state.live.insert(key, &mut live);
        self.count_allocation(key, &live, how);
    }

    /// Adds an allocation of the live set to the sums.
    pub(super) fn count_allocation(&mut self, key: Key, live: &Live, how: AllocCause) {
        if let Some(host) = self.state.host(live.kind) {
            host.change(live.weigh(live.size), true);
            self.observer.on_alloc(self.at, key, live, how);
            return;
        }
        if live.kind == Kind::Block {
            self.count_block(key, live, how);
            return;
        }
        self.device(live.device).change_live(key, live, true);
        self.observer.on_alloc(self.at, key, live, how);
        if key.space == Space::Device {
            let waiting = self.state.cache.came(key, live);
            self.place_again(&waiting);
        }
        self.notify_device_change(live.device);
    }

    /// Removes an allocation from the live set and the sums, or one of its references. False: it is not live.
    pub(super) fn end(&mut self, key: Key, how: FreeCause) -> bool {
        let Some((live, gone)) = self.state.live.release(key, how != FreeCause::Freed) else {
            return false;
        };
        let mut live = *live;
        if gone {
            self.ended(key, &live, how);
        } else {
            live.references = 1;
        }
        if how == FreeCause::Freed {
            self.aside.freed.push(key, &live);
        }
        true
    }

    /// Removes an allocation, which left the live set, from the sums.
    fn ended(&mut self, key: Key, live: &Live, how: FreeCause) {
        if let Some(host) = self.state.host(live.kind) {
            host.change(live.weigh(live.size), false);
            self.observer.on_free(self.at, key, live, how);
            return;
        }
        if live.kind == Kind::Block {
            self.uncount_block(key, live, how);
            return;
        }
        if key.space == Space::Device {
            let end = key.number.saturating_add(live.size);
            let blocks_end = match how {
                FreeCause::WithContext => FreeCause::WithContext,
                _ => FreeCause::WithMemory,
            };
            let gone = self.state.cache.ranges.remove(key.number);
            if gone.blocks {
                self.end_blocks(key.number, end, blocks_end);
            }
            self.apply_changes(gone.change);
        }
        if key.space == Space::Vmm {
            self.state.space.forget_object(key.number);
        }
        let device = self.device(live.device);
        device.change_live(key, live, false);
        add(&mut device.frees, if live.kind == Kind::Imported { 0 } else { live.weigh(1) });
        self.observer.on_free(self.at, key, live, how);
        self.notify_device_change(live.device);
    }

    pub(super) fn free_failed(&mut self, key: Key) {
        match self.aside.freed.find(key) {
            Some(live) if self.state.live.get(key).is_none() => {
                if !live.kind.is_host() && live.kind != Kind::Imported {
                    let device = self.device(live.device);
                    device.frees = device.frees.saturating_sub(live.weigh(1));
                }
                self.begin(key, live, AllocCause::FreeFailed);
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
            None if self.state.certainty == Certainty::Whole => {
                self.state.inconsistencies.unknown_restores += 1;
            }
            None => {}
        }
    }
}
