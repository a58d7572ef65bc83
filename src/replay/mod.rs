//! Replays the events of one trace in file order: the state of memory at any moment.
//!
//! Memory used is bounded by the live set. Where events are missing (punched out of a bounded
//! trace, or damaged), the state is taken from the next checkpoint:
//!
//! ```text
//!  Whole --gap--> Lost --CheckpointBegin--> Resuming --CheckpointEnd--> Resumed --gap--> Lost ..
//! ```
//!
//! Two levels: driver memory ([`State::live`], [`State::devices`]), and the blocks that a
//! framework's cache cuts out of it. Blocks are in no sum of driver memory. What there is of them:
//!
//! * [`LiveSet::blocks`]: live blocks, by address; [`LiveSet::iter`] leaves them out;
//! * [`DeviceState::cache`], a [`CacheSums`]: allocated, reserved, their peaks, out-of-memory,
//!   refusals that were absorbed, kept at every event;
//! * [`State::segments`], for a moment: each segment with its blocks and holes;
//! * [`State::cache`]: blocks outside of known memory, what was asked for, blocks that wait;
//! * [`State::space`]: what is mapped, reserved and asleep at which address (`mapping.rs`);
//! * [`Observer`]: `on_block_alloc`, `on_block_free`, `on_block_change`, `on_segment`, `on_cache_oom`.

mod blocks;
pub mod cache;
mod checkpoint;
pub mod device;
mod driver_own;
mod freed;
pub mod live;
mod mapping;
pub mod observer;
mod places;
mod residency;
pub mod state;
mod trace;

#[cfg(test)]
mod block_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod sleep_model;
#[cfg(test)]
mod sleep_tests;
#[cfg(test)]
mod tests;

pub use cache::{
    Backing, BlockAt, CacheOomAt, CachePeak, CacheState, CacheSums, ReportedTotals, SegmentAt,
};
pub use device::{BytesByKind, DeviceState, KindSums, Peak, SampleAt};
pub use driver_own::{BytesByCause, DriverOwn, Originator};
pub use live::{Key, Live, LiveSet};
pub use mapping::{AddressSpace, Asleep, Mapping, Reservation, Woken};
pub use observer::{AllocCause, FreeCause, Observer};
pub use state::{Certainty, ContextState, PoolSums, RecorderCost, RefusalAt, State, Stop};
pub use trace::{Progress, ReplayResult, Until};

use rustc_hash::FxHashSet;
use vramtrace_format::{
    Alloc, ContextId, DeviceId, Event, Kind, PoolId, Refused, RefusedBy, Space, Stamped, StopReason,
};

use crate::trace::{Definitions, Site};
use freed::RecentlyFreed;
use live::sample_weight;
use mapping::FreedReservations;
use state::HostSums;

/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: i32 = 2;

#[derive(Clone, Debug, Default)]
pub struct Replay {
    state: State,
    freed: RecentlyFreed,
    freed_reservations: FreedReservations,
    /// Pools and graphs that were read back since the running checkpoint began: newer than what
    /// its slices list.
    read_back_pools: FxHashSet<PoolId>,
    read_back_graphs: FxHashSet<DeviceId>,
    /// The running checkpoint has listed something that the driver holds for itself.
    driver_own_listed: bool,
    /// Highest live bytes seen since history was lost: they may hold what was freed unseen, so
    /// they count only if no checkpoint comes.
    unsure_peaks: Vec<(DeviceId, Peak)>,
    /// The recorder could not punch: from some place on there are checkpoints and totals only,
    /// so that each checkpoint replaces the state.
    checkpoints_only: bool,
}

impl Replay {
    pub fn new() -> Replay {
        Replay::default()
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn into_state(self) -> State {
        self.state
    }

    /// Events before the next one are missing.
    pub fn gap(&mut self) {
        if self.state.live_is_known() && self.state.events > 0 {
            self.state.known_until_ns = Some(self.state.time_ns);
        }
        self.state.certainty = Certainty::Lost;
        self.state.events_at_gap = self.state.events;
        self.unsure_peaks.clear();
    }

    /// After the last event: fills from the recorder's own totals what missing events took away.
    pub fn finish(&mut self) {
        if self.state.certainty == Certainty::Whole {
            return;
        }
        for device in self.state.devices.values_mut() {
            if let Some(counters) = device.counters {
                device.note_recorded_peak(&counters);
                device.allocations = device.allocations.max(counters.allocations);
                device.frees = device.frees.max(counters.frees);
                device.refused_by_cap = device.refused_by_cap.max(counters.refused_by_cap);
                device.refused_by_driver = device.refused_by_driver.max(counters.refused_by_driver);
                device.warned = device.warned.max(counters.warned);
            }
        }
        for (id, peak) in std::mem::take(&mut self.unsure_peaks) {
            let device = self.state.devices.entry(id).or_default();
            if peak.bytes > device.peak.bytes {
                device.peak = peak;
            }
        }
    }

    /// Takes one event. `definitions` must hold those that it refers to.
    pub fn apply(&mut self, definitions: &Definitions, at: &Stamped, observer: &mut impl Observer) {
        self.state.events += 1;
        self.state.time_ns = self.state.time_ns.max(at.time_ns);
        match at.event {
            Event::CacheState { device, allocated, reserved } => {
                self.cache_state(
                    device,
                    ReportedTotals { time_ns: at.time_ns, allocated, reserved },
                );
            }
            Event::CacheOom { device, size, allocated, reserved, stack } => {
                self.on_cache_oom(at, device, size, (allocated, reserved), stack, observer);
            }
            Event::BlockChange { address, change } => {
                self.change_block(at, address, change, observer);
            }
            Event::Shared { address, stack, .. } => {
                let segment = self.state.cache.segment_of(address);
                observer.on_share(at, address, stack, segment);
            }
            Event::Alloc(alloc) => self.alloc(definitions, at, &alloc, 0, observer),
            Event::SampledAlloc { rate, alloc } => {
                self.alloc(definitions, at, &alloc, rate, observer);
            }
            Event::Free { key, space, .. } => {
                let key = Key { space, number: key };
                match self.end(at, key, FreeCause::Freed, observer) {
                    Some(live) => self.freed.push(key, live),
                    None => self.unknown_free(),
                }
            }
            Event::FreeFailed { key, space, .. } => {
                self.free_failed(at, Key { space, number: key }, observer);
            }
            Event::Refused(refused) => self.refuse(definitions, at, refused, observer),
            Event::Map { address, size, offset, object, stack } => {
                self.map(at, Mapping::new(address, size, offset, object), stack, observer);
            }
            Event::Unmap { address, size, stack } => {
                self.unmap(at, address, size, stack, observer);
            }
            Event::AddressReserve { address, size, site, stack, restored } => {
                self.reserve_addresses(at, (address, size), (site, stack), restored, observer);
            }
            Event::AddressFree { address, .. } => self.free_addresses(at, address, observer),
            Event::PoolState { pool, reserved, used } => {
                self.read_back_pools.insert(pool);
                self.pool(definitions, at, pool, reserved, used, observer);
            }
            Event::GraphState { device, reserved, used } => {
                self.read_back_graphs.insert(device);
                self.graph(at, device, reserved, used, observer);
            }
            Event::ContextCreated { context, device, stack } => {
                let created =
                    ContextState { device, created_ns: at.time_ns, stack, limit_bytes: 0 };
                self.add_context(context, created);
            }
            Event::ContextDestroyed { context } => self.end_context(at, context, observer),
            Event::Sample(sample) => {
                self.device(sample.device).note_sample(sample, at.time_ns);
                self.tell_changed(at, sample.device, observer);
            }
            Event::Cap { device, bytes } => {
                self.device(device).cap_bytes = bytes;
                self.tell_changed(at, device, observer);
            }
            Event::Counters(counters) => {
                self.device(DeviceId(counters.device)).counters = Some(counters);
            }
            Event::Stopped { reason, errno } => {
                self.state.stopped = Some(Stop { time_ns: at.time_ns, reason, errno });
                if reason == StopReason::CannotPunch {
                    self.checkpoints_only = true;
                    self.gap();
                }
            }
            Event::Ended => self.state.ended_ns = Some(at.time_ns),
            Event::Drift { .. } => self.state.inconsistencies.by_recorder += 1,
            Event::PassedThrough { api } => {
                self.state.passed_through.insert(api);
            }
            Event::CheckpointBegin { .. }
            | Event::CheckpointAlloc { .. }
            | Event::CheckpointMap { .. }
            | Event::CheckpointReserve { .. }
            | Event::CheckpointPool { .. }
            | Event::CheckpointGraph { .. }
            | Event::CheckpointContext { .. }
            | Event::CheckpointTotals { .. }
            | Event::CheckpointCounters { .. }
            | Event::CheckpointTook { .. }
            | Event::CheckpointSampled { .. }
            | Event::CheckpointEnd { .. } => self.checkpoint(definitions, at, observer),
            Event::CapPolicy { device, only_warns, soft } => {
                let device = self.device(device);
                (device.cap_only_warns, device.soft_limit) = (only_warns, soft);
            }
            Event::GroupCap { device, bytes } => self.device(device).group_cap_bytes = bytes,
            Event::SoftLimit { device, over, .. } => {
                self.device(device).soft_crossings += u64::from(over);
            }
            Event::Limit { context, grown, .. } => {
                if let Some(context) = self.state.contexts.get_mut(&context) {
                    add(&mut context.limit_bytes, grown);
                    let device = context.device;
                    add(&mut self.device(device).limit_bytes, grown);
                }
            }
            Event::Took(took) => {
                self.device(took.device).driver_own.apply(&took);
                self.tell_changed(at, took.device, observer);
            }
            Event::Mark { name, mark } => observer.on_mark(at, name, mark),
            Event::PostMortem(found) => observer.on_post_mortem(at, &found),
            Event::Neighbour { device, pid, bytes } => {
                observer.on_neighbour(at, device, pid, bytes)
            }
            Event::RecorderCost { calls, ns, one_of, bytes, stacks } => {
                let cost = RecorderCost { calls, ns, one_of, bytes, stacks };
                self.state.recorder_cost = Some(cost);
            }
            // They repeat what the events before them say; see `Trace::summary`.
            Event::SummaryBegin { .. }
            | Event::SummaryDevice(_)
            | Event::SummaryKind { .. }
            | Event::SummaryHolder(_)
            | Event::SummaryEnd { .. } => {}
            Event::ErrorAfterRefusal { api, result } => {
                observer.on_error_after_refusal(at, api, result);
            }
            Event::ExitStatus { status } => observer.on_exit_status(at, status),
            Event::Anchor => {}
        }
    }

    fn device(&mut self, id: DeviceId) -> &mut DeviceState {
        self.state.devices.entry(id).or_default()
    }

    /// After a device's sums changed: its peak, and the observer.
    fn tell_changed(&mut self, at: &Stamped, id: DeviceId, observer: &mut impl Observer) {
        let lost = self.state.certainty == Certainty::Lost;
        let device = self.state.devices.entry(id).or_default();
        if !lost {
            device.note_peak(at.time_ns, at.offset);
            device.cache.note_peaks(at.time_ns, at.offset);
        } else if device.live_bytes > device.peak.bytes {
            let sure = device.peak;
            device.note_peak(at.time_ns, at.offset);
            let unsure = std::mem::replace(&mut device.peak, sure);
            match self.unsure_peaks.iter_mut().find(|(device, _)| *device == id) {
                Some((_, peak)) if peak.bytes >= unsure.bytes => {}
                Some((_, peak)) => *peak = unsure,
                None => self.unsure_peaks.push((id, unsure)),
            }
        }
        observer.on_device_change(at, id, &self.state.devices[&id]);
    }

    fn alloc(
        &mut self,
        definitions: &Definitions,
        at: &Stamped,
        alloc: &Alloc,
        rate: u64,
        observer: &mut impl Observer,
    ) {
        let key = Key { space: alloc.space, number: alloc.key };
        let live = self.live_of(definitions, at, at.time_ns, alloc, rate);
        // One probe of the map: an earlier one at the same key is rare and is put back.
        if let Some(earlier) = self.state.live.insert(key, live) {
            if earlier.same_birth(at.time_ns) && self.state.certainty != Certainty::Whole {
                // The checkpoint named it already; its call is recorded only now.
                self.state.live.insert(key, Live { thread: at.thread, ..earlier });
                return;
            }
            if earlier.kind == Kind::Imported && live.kind == Kind::Imported {
                let references = earlier.references.saturating_add(1);
                self.state.live.insert(key, Live { references, ..earlier });
                self.count_call(&live);
                return;
            }
            // Where events are missing, its free may be among them.
            self.state.inconsistencies.replaced += u64::from(self.state.live_is_known());
            self.state.live.insert(key, earlier);
            self.end(at, key, FreeCause::Replaced, observer);
            self.state.live.insert(key, live);
        }
        self.count_call(&live);
        self.book(at, key, live, AllocCause::Allocated, observer);
    }

    /// One allocating call, in the totals.
    fn count_call(&mut self, live: &Live) {
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

    fn live_of(
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
            // Blocks and memory never take each other's place, whatever a file says.
            kind: match site.and_then(|site| site.kind) {
                Some(kind) if (kind == Kind::Block) == (natural == Kind::Block) => kind,
                _ => natural,
            },
            device: site.map_or(DeviceId::UNKNOWN, |site| site.device),
            references: 1,
            weight: sample_weight(alloc.size, rate),
        }
    }

    /// Puts an allocation into the live set and the sums.
    fn begin(
        &mut self,
        at: &Stamped,
        key: Key,
        live: Live,
        how: AllocCause,
        observer: &mut impl Observer,
    ) {
        self.state.live.insert(key, live);
        self.book(at, key, live, how, observer);
    }

    /// The sums of an allocation that is in the live set.
    fn book(
        &mut self,
        at: &Stamped,
        key: Key,
        live: Live,
        how: AllocCause,
        observer: &mut impl Observer,
    ) {
        if let Some(host) = self.host(live.kind) {
            host.add(live.weigh(live.size));
            observer.on_alloc(at, key, &live, how);
            return;
        }
        if live.kind == Kind::Block {
            self.book_block(at, key, live, how, observer);
            return;
        }
        if how == AllocCause::Allocated {
            self.state.cache.refusals.served(at.thread);
        }
        self.device(live.device).add_live(key, &live);
        observer.on_alloc(at, key, &live, how);
        self.memory_came(at, key, &live, observer);
        self.tell_changed(at, live.device, observer);
    }

    /// Takes an allocation out, or one of its references. `None`: it is not live.
    fn end(
        &mut self,
        at: &Stamped,
        key: Key,
        how: FreeCause,
        observer: &mut impl Observer,
    ) -> Option<Live> {
        let (live, gone) = self.state.live.release(key, how != FreeCause::Freed)?;
        if !gone {
            return Some(live);
        }
        if let Some(host) = self.host(live.kind) {
            host.remove(live.weigh(live.size));
            observer.on_free(at, key, &live, how);
            return Some(live);
        }
        if live.kind == Kind::Block {
            self.unbook_block(at, key, live, how, observer);
            return Some(live);
        }
        if key.space == Space::Device {
            let end = key.number.saturating_add(live.size);
            let blocks_end = match how {
                FreeCause::WithContext => FreeCause::WithContext,
                _ => FreeCause::WithMemory,
            };
            self.allocation_went(at, key.number, end, blocks_end, observer);
        }
        if key.space == Space::Vmm {
            self.state.space.forget_object(key.number);
        }
        let device = self.device(live.device);
        device.remove_live(key, &live);
        add(&mut device.frees, if live.kind == Kind::Imported { 0 } else { live.weigh(1) });
        observer.on_free(at, key, &live, how);
        self.tell_changed(at, live.device, observer);
        Some(live)
    }

    fn host(&mut self, kind: Kind) -> Option<&mut HostSums> {
        match kind {
            Kind::HostPinned => Some(&mut self.state.host_pinned),
            Kind::HostRegistered => Some(&mut self.state.host_registered),
            _ => None,
        }
    }

    fn unknown_free(&mut self) {
        // Before a checkpoint's place, what was freed may never have been recorded.
        if self.state.certainty == Certainty::Whole {
            self.state.inconsistencies.unknown_frees += 1;
        }
    }

    fn unknown_restore(&mut self) {
        if self.state.certainty == Certainty::Whole {
            self.state.inconsistencies.unknown_restores += 1;
        }
    }

    fn free_failed(&mut self, at: &Stamped, key: Key, observer: &mut impl Observer) {
        match self.freed.find(key) {
            Some(live) if self.state.live.get(key).is_none() => {
                if !live.kind.is_host() && live.kind != Kind::Imported {
                    let device = self.device(live.device);
                    device.frees = device.frees.saturating_sub(live.weigh(1));
                }
                self.begin(at, key, live, AllocCause::FreeFailed, observer);
            }
            // One reference of several was announced as dropped; or a checkpoint that began in
            // between put it back already.
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

    fn refuse(
        &mut self,
        definitions: &Definitions,
        at: &Stamped,
        refused: Refused,
        observer: &mut impl Observer,
    ) {
        let site: Option<Site> = definitions.site(refused.site);
        let device = site.map_or(DeviceId::UNKNOWN, |site| site.device);
        let sums = self.device(device);
        match refused.by {
            // Other results are failures, kept beside, not refusals of memory.
            RefusedBy::Driver if refused.result != OUT_OF_MEMORY => {}
            RefusedBy::Driver => add(&mut sums.refused_by_driver, 1),
            RefusedBy::Cap | RefusedBy::BadCap | RefusedBy::Group => {
                add(&mut sums.refused_by_cap, 1)
            }
            RefusedBy::Warned => add(&mut sums.warned, 1),
        }
        let got_nothing = match refused.by {
            RefusedBy::Driver => refused.result == OUT_OF_MEMORY,
            RefusedBy::Cap | RefusedBy::BadCap | RefusedBy::Group => true,
            RefusedBy::Warned => false,
        };
        if got_nothing {
            self.state.cache.refusals.refused(at.thread, device);
        }
        self.state.keep_refusal(RefusalAt {
            time_ns: at.time_ns,
            thread: at.thread,
            device,
            kind: site.and_then(|site| site.kind),
            refused,
        });
        observer.on_refusal(at, &refused, site.as_ref());
        self.tell_changed(at, device, observer);
    }
}

/// A file may claim any number.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}
