//! Replays the events of one trace in file order. Output: the state of memory at any moment. Sizes are
//! bytes; times are ns since the start of the trace.
//!
//! The memory that a replay takes is bounded by the live set. Where events are missing (erased from a
//! bounded trace, or damaged), the state is read from the next checkpoint:
//!
//! ```text
//!  Whole --gap--> Lost --checkpoint begins--> Resuming --it ends--> Resumed --gap--> Lost ..
//! ```
//!
//! There are two levels: driver memory ([`State::live`], [`State::devices`]), and the blocks of a
//! framework's cache, which are parts of it. No sum of driver memory includes blocks. Blocks are in:
//!
//! * [`LiveSet::blocks`]: live blocks, by address; [`LiveSet::iter`] leaves them out;
//! * [`DeviceState::cache`], a [`CacheSums`]: allocated, reserved, their peaks, out-of-memory,
//!   up to date at every event;
//! * [`State::segments`]: each segment with its blocks and holes, computed on request;
//! * [`State::cache`]: blocks outside of known memory, and blocks whose memory is not known yet;
//! * [`State::space`]: mapped, reserved and unmapped address ranges (`mapping.rs`);
//! * [`Observer`]: `on_block_alloc`, `on_block_free`, `on_block_change`, `on_segment`, `on_cache_oom`.

mod allocations;
mod blocks;
mod by_device;
pub mod cache;
mod checkpoint;
pub mod device;
mod driver_own;
mod exec_graphs;
mod freed;
mod growing;
pub mod history;
pub mod in_use;
mod kept;
pub mod live;
mod mapping;
pub mod observer;
mod places;
mod residency;
mod slots;
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

pub use by_device::ByDevice;
pub use cache::{
    Backing, BlockAt, CacheOomAt, CachePeak, CacheState, CacheSums, ReportedTotals, SegmentAt,
};
pub use device::{BytesByKind, DeviceState, KindSums, Peak, SampleAt, held_by_others};
pub use driver_own::{BytesByCause, DriverOwn, Originator};
pub use exec_graphs::{ExecGraph, ExecGraphs};
pub use growing::{Follower, GrowingReplay};
pub use history::History;
pub use in_use::{CacheInUse, InUse, InUseFacts};
pub use kept::Kept;
pub use live::{Key, Live, LiveSet};
pub(crate) use mapping::signed;
pub use mapping::{AddressSpace, Asleep, Mapping, Reservation, Woken};
pub use observer::{AllocCause, FreeCause, Observer};
pub use slots::Slots;
pub use state::{Certainty, ContextState, OffSpan, PoolSums, RecorderCost, RefusalAt};
pub use state::{Sampling, State, Stop};
pub use trace::{Progress, ReplayResult, Until, Visitor};
pub use vramtrace_format::GraphChange;

use rustc_hash::FxHashSet;
use vramtrace_format::{
    BlockChange, ContextId, DeviceId, Event, PoolId, Refused, RefusedBy, Stamped, StopReason,
    SwitchedBy,
};

use crate::trace::{Definitions, SiteInfo};
use freed::RecentlyFreed;
use mapping::Owner;
use state::OFF_SPANS_KEPT;

/// CUDA_ERROR_OUT_OF_MEMORY.
pub const OUT_OF_MEMORY: i32 = 2;

/// A replay under way.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    state: State,
    aside: Aside,
}

/// What a replay keeps beside the state.
#[derive(Clone, Debug, Default)]
struct Aside {
    freed: RecentlyFreed,
    /// Pools and graphs with an event since the current checkpoint began: newer than its records.
    read_back_pools: FxHashSet<PoolId>,
    read_back_graphs: FxHashSet<DeviceId>,
    /// The current checkpoint has listed memory that the driver holds for itself.
    driver_own_listed: bool,
    /// The recorder could not erase old events: only checkpoints and totals follow, and each checkpoint
    /// replaces the state.
    checkpoints_only: bool,
    /// The latest events are missing because the recording was switched off.
    gap_by_switch: bool,
    history: history::Reading,
}

/// One event on its way into the state.
struct Apply<'r, O> {
    state: &'r mut State,
    aside: &'r mut Aside,
    definitions: &'r Definitions,
    at: &'r Stamped,
    observer: &'r mut O,
}

impl Replay {
    /// The state before the first event.
    pub fn new() -> Replay {
        Replay::default()
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn into_state(self) -> State {
        self.state
    }

    /// Notes that events before the next one are missing.
    pub fn gap(&mut self) {
        self.aside.gap(&mut self.state);
    }

    /// After the last event: where events are missing, takes peaks and counts from the recorder's totals.
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
    }

    /// Applies one event. `definitions` must contain all ids that it refers to.
    pub fn apply(&mut self, definitions: &Definitions, at: &Stamped, observer: &mut impl Observer) {
        let Replay { state, aside } = self;
        state.events += 1;
        state.time_ns = state.time_ns.max(at.time_ns);
        Apply { state, aside, definitions, at, observer }.event(at.time_ns, &at.event);
    }
}

impl Aside {
    fn gap(&mut self, state: &mut State) {
        if state.live_is_known() && state.events > 0 {
            state.known_until_ns = Some(state.time_ns);
        }
        self.gap_by_switch = false;
        self.history = history::Reading::default();
        state.certainty = Certainty::Lost;
        state.events_at_gap = state.events;
    }
}

impl<O: Observer> Apply<'_, O> {
    /// `time_ns`: when it happened.
    fn event(&mut self, time_ns: u64, event: &Event) {
        match *event {
            Event::CacheState { device, allocated, reserved } => {
                let reported = ReportedTotals { time_ns: self.at.time_ns, allocated, reserved };
                self.cache_state(device, reported);
            }
            Event::CacheOom { device, size, allocated, reserved, stack } => {
                let (time_ns, offset, thread) = (self.at.time_ns, self.at.offset, self.at.thread);
                let oom = CacheOomAt { time_ns, offset, thread, size, allocated, reserved, stack };
                let sums = &mut self.device(device).cache;
                sums.ooms = sums.ooms.saturating_add(1);
                sums.last_oom = Some(oom);
                sums.went_on = false;
                self.observer.on_cache_oom(self.at, device, &oom);
                self.notify_device_change(device);
            }
            Event::BlockChange { address, change } => self.change_block(address, change),
            Event::Shared { address, stack, .. } => {
                let segment = self.state.cache.segment_of(address);
                self.observer.on_share(self.at, address, stack, segment);
            }
            Event::Alloc(alloc) => {
                self.alloc(&alloc, 0);
                if let Some(bytes) = alloc.requested {
                    self.change_block(alloc.key, BlockChange::Requested(bytes));
                }
            }
            Event::Sampling { rate, least, cost, bound } => {
                let before = self.state.sampling.unwrap_or_default();
                self.state.sampling = Some(Sampling {
                    rate_bytes: rate,
                    least_rate_bytes: least,
                    highest_rate_bytes: before.highest_rate_bytes.max(rate),
                    cost_share: cost,
                    bound_share: bound,
                });
            }
            Event::BlockCounts { device, live, allocations, peak } => {
                self.state.sampling.get_or_insert_default();
                let sums = &mut self.device(device).cache;
                sums.sampled = true;
                (sums.blocks, sums.allocations) = (live, allocations);
                sums.frees = allocations.saturating_sub(live);
                sums.peak_allocated.bytes = sums.peak_allocated.bytes.max(peak);
            }
            Event::SampledAlloc { rate, alloc } => {
                self.state.sampling.get_or_insert_default();
                self.alloc(&alloc, rate);
            }
            Event::Free { key, space, .. } => {
                // Where events are missing, the allocation may be among them.
                if !self.end(Key { space, number: key }, FreeCause::Freed)
                    && self.state.certainty == Certainty::Whole
                {
                    self.state.inconsistencies.unknown_frees += 1;
                }
            }
            Event::FreeFailed { key, space } => self.free_failed(Key { space, number: key }),
            Event::Refused(refused) => self.refuse(refused),
            Event::Map { address, size, offset, object, owner, stack } => {
                self.map(Mapping::new(address, size, offset, object), owner, stack);
            }
            Event::Unmap { address, size, stack } => self.unmap(address, size, stack),
            Event::AddressReserve { asleep: true, device, address, size, stack, .. } => {
                self.add_asleep((address, size), Owner { stack, device });
            }
            Event::AddressReserve { address, size, site, stack, .. } => {
                self.reserve_addresses((address, size), (site, stack));
            }
            Event::AddressFree { address, .. } => self.free_addresses(address),
            Event::PoolState { pool, reserved, used } => {
                self.aside.read_back_pools.insert(pool);
                self.pool(pool, reserved, used);
            }
            Event::GraphState { device, reserved, used } => {
                self.aside.read_back_graphs.insert(device);
                self.graph(device, reserved, used);
            }
            Event::ContextCreated { context, device, stack } => {
                let created = ContextState { device, created_ns: time_ns, stack };
                if self.state.contexts.insert(context, created).is_none() {
                    let sums = self.device(device);
                    sums.contexts += 1;
                    sums.contexts_seen += 1;
                    self.observer.on_contexts(self.at, device, self.state);
                }
            }
            Event::ContextDestroyed { context } => self.end_context(context),
            Event::Sample(sample) => {
                let time_ns = self.at.time_ns;
                self.device(sample.device).note_sample(sample, time_ns);
                self.observer.on_contexts(self.at, sample.device, self.state);
                self.notify_device_change(sample.device);
            }
            Event::Cap { device, bytes, group, soft, only_warns } => {
                let limits = self.device(device);
                (limits.cap_bytes, limits.group_cap_bytes) = (bytes, group);
                (limits.soft_limit, limits.cap_only_warns) = (soft, only_warns);
                self.notify_device_change(device);
            }
            Event::Counters(counters) => {
                self.device(DeviceId(counters.device)).counters = Some(counters);
            }
            Event::Stopped { reason, errno } => {
                self.state.stopped = Some(Stop { time_ns: self.at.time_ns, reason, errno });
                if reason == StopReason::CannotPunch {
                    self.aside.checkpoints_only = true;
                    self.aside.gap(self.state);
                }
            }
            Event::Recording { on, by } => self.switched(on, by),
            Event::Ended => self.state.ended_ns = Some(self.at.time_ns),
            Event::Drift { .. } => self.state.inconsistencies.by_recorder += 1,
            Event::PassedThrough { api } => {
                self.state.passed_through.insert(api);
            }
            Event::SoftLimit { device, over } => {
                self.device(device).soft_crossings += u64::from(over);
            }
            // What it made the driver take follows.
            Event::Limit { .. } => {}
            Event::Took(took) => {
                self.device(took.device).driver_own.apply(&took);
                self.observer.on_took(self.at, &took);
                self.notify_device_change(took.device);
            }
            Event::GraphMade { exec, nodes, site, stack } => {
                let made = self.definitions.site(site);
                let device = made.map_or(DeviceId::UNKNOWN, |site| site.device);
                let context = made.map_or(ContextId(0), |site| site.context);
                let graph = ExecGraph { number: 0, device, context, site, stack, nodes };
                let (graph, replaced) = self.state.exec_graphs.add(exec, graph);
                if let Some(replaced) = replaced {
                    self.observer.on_graph(self.at, &replaced, GraphChange::Ended);
                }
                self.observer.on_graph(self.at, &graph, GraphChange::Made);
            }
            Event::GraphUsed { exec, change } => {
                let graphs = &mut self.state.exec_graphs;
                let is_end = change == GraphChange::Ended;
                if let Some(graph) = if is_end { graphs.remove(exec) } else { graphs.get(exec) } {
                    self.observer.on_graph(self.at, &graph, change);
                }
            }
            Event::Mark { name, mark } => self.observer.on_mark(self.at, name, mark),
            Event::PostMortem(found) => self.observer.on_post_mortem(self.at, &found),
            Event::Neighbour { device, pid, bytes } => {
                self.observer.on_neighbour(self.at, device, pid, bytes)
            }
            Event::RecorderCost { calls, ns, one_of, bytes, stacks } => {
                self.state.recorder_cost = Some(RecorderCost {
                    in_calls_ns: (calls > 0).then(|| ns.saturating_mul(one_of)),
                    timed_calls: calls,
                    timed_ns: ns,
                    timed_one_of: one_of,
                    written_bytes: bytes,
                    stacks,
                });
            }
            Event::Aftermath { api: Some(api), result } => {
                self.observer.on_error_after_refusal(self.at, api as u16, result);
            }
            Event::Aftermath { api: None, result } => {
                self.state.exit_status = Some(result);
                self.observer.on_exit_status(self.at, result);
            }
            _ => self.state_record(),
        }
    }

    /// The recording was switched off or on.
    fn switched(&mut self, on: bool, by: SwitchedBy) {
        let time_ns = self.at.time_ns;
        let spans = &mut self.state.off;
        let is_full = spans.len() == OFF_SPANS_KEPT;
        match (on, spans.last_mut()) {
            (true, Some(last)) => {
                last.until_ns.get_or_insert(time_ns);
                last.until_end |= by == SwitchedBy::End;
            }
            // Switched off again without a record of the switch on, which was erased.
            (false, Some(last)) if last.until_ns.is_none() => {}
            (false, _) if !is_full => {
                spans.push(OffSpan { from_ns: time_ns, until_ns: None, by, until_end: false });
            }
            _ => {}
        }
        if !on {
            self.aside.gap(self.state);
            self.aside.gap_by_switch = true;
        }
        self.observer.on_recording(self.at, on);
    }

    fn device(&mut self, id: DeviceId) -> &mut DeviceState {
        self.state.devices.of(id)
    }

    /// Updates the peak of a device whose sums changed, and calls the observer.
    fn notify_device_change(&mut self, id: DeviceId) {
        let lost = self.state.certainty == Certainty::Lost;
        let device = self.state.devices.of(id);
        // Memory whose free is missing may be among what is live.
        if !lost {
            device.note_peak(self.at.time_ns, self.at.offset);
            device.cache.note_peaks(self.at.time_ns, self.at.offset);
        }
        self.observer.on_device_change(self.at, id, device);
    }

    fn refuse(&mut self, refused: Refused) {
        let site: Option<SiteInfo> = self.definitions.site(refused.site);
        let device = site.map_or(DeviceId::UNKNOWN, |site| site.device);
        let sums = self.device(device);
        match refused.by {
            // Other results are failed calls, not refusals of memory.
            RefusedBy::Driver if refused.result != OUT_OF_MEMORY => {}
            RefusedBy::Driver => add(&mut sums.refused_by_driver, 1),
            RefusedBy::Cap | RefusedBy::BadCap | RefusedBy::Group => {
                add(&mut sums.refused_by_cap, 1)
            }
            RefusedBy::Warned => add(&mut sums.warned, 1),
        }
        self.state.keep_refusal(RefusalAt {
            time_ns: self.at.time_ns,
            thread: self.at.thread,
            device,
            kind: site.and_then(|site| site.kind),
            refused,
        });
        self.observer.on_refusal(self.at, &refused, site.as_ref());
        self.notify_device_change(device);
    }
}

/// Whether the request failed for lack of memory: not a warning, and no other error of the driver.
pub fn is_out_of_memory(refused: &Refused) -> bool {
    match refused.by {
        RefusedBy::Driver => refused.result == OUT_OF_MEMORY,
        RefusedBy::Cap | RefusedBy::BadCap | RefusedBy::Group => true,
        RefusedBy::Warned => false,
    }
}

/// Adds without overflow: a damaged file may hold any number.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}
