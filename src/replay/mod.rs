//! Replays the events of one trace in file order. Output: the state of memory at any moment. Sizes are
//! bytes; times are ns since the start of the trace.
//!
//! The memory that a replay takes is bounded by the live set. Where events are missing (erased from a
//! bounded trace, or damaged), the state is read from the next checkpoint:
//!
//! ```text
//!  Whole --gap--> Lost --CheckpointBegin--> Resuming --CheckpointEnd--> Resumed --gap--> Lost ..
//! ```
//!
//! There are two levels: driver memory ([`State::live`], [`State::devices`]), and the blocks of a
//! framework's cache, which are parts of it. No sum of driver memory includes blocks. Blocks are in:
//!
//! * [`LiveSet::blocks`]: live blocks, by address; [`LiveSet::iter`] leaves them out;
//! * [`DeviceState::cache`], a [`CacheSums`]: allocated, reserved, their peaks, out-of-memory,
//!   refusals after which the cache served the request; up to date at every event;
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
pub use exec_graphs::{ExecGraph, ExecGraphs, GraphChange};
pub use growing::{Follower, GrowingReplay};
pub use history::History;
pub use in_use::{CacheInUse, InUse};
pub use kept::Kept;
pub use live::{Key, Live, LiveSet};
pub use mapping::{AddressSpace, Asleep, Mapping, Reservation, Woken};
pub use observer::{AllocCause, FreeCause, Observer};
pub use slots::Slots;
pub use state::{Certainty, ContextState, OffSpan, PoolSums, RecorderCost, RefusalAt};
pub use state::{Sampling, State, Stop};
pub use trace::{Progress, ReplayResult, Until, Visitor};

use rustc_hash::FxHashSet;
use vramtrace_format::{
    BlockChange, ContextId, DeviceId, Event, PoolId, Refused, RefusedBy, Stamped, StopReason,
    SwitchedBy,
};

use crate::trace::{Definitions, Site};
use freed::RecentlyFreed;
use mapping::FreedReservations;
use state::OFF_SPANS_KEPT;

/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: i32 = 2;

/// A replay under way.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    state: State,
    freed: RecentlyFreed,
    freed_reservations: FreedReservations,
    /// Pools and graphs with an event since the current checkpoint began: newer than its records.
    read_back_pools: FxHashSet<PoolId>,
    read_back_graphs: FxHashSet<DeviceId>,
    /// The current checkpoint has listed memory that the driver holds for itself.
    driver_own_listed: bool,
    /// Highest live bytes since events are missing. They may include memory whose free is missing, so
    /// they count only if no checkpoint follows.
    unsure_peaks: Vec<(DeviceId, Peak)>,
    /// The recorder could not erase old events: only checkpoints and totals follow, and each checkpoint
    /// replaces the state.
    checkpoints_only: bool,
    /// The latest events are missing because the recording was switched off.
    gap_by_switch: bool,
    history: history::Reading,
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
        if self.state.live_is_known() && self.state.events > 0 {
            self.state.known_until_ns = Some(self.state.time_ns);
        }
        self.gap_by_switch = false;
        self.state.certainty = Certainty::Lost;
        self.state.events_at_gap = self.state.events;
        self.unsure_peaks.clear();
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
        for (id, peak) in std::mem::take(&mut self.unsure_peaks) {
            let device = self.state.devices.of(id);
            if peak.bytes > device.peak.bytes {
                device.peak = peak;
            }
        }
    }

    /// Applies one event. `definitions` must contain all ids that it refers to.
    pub fn apply(&mut self, definitions: &Definitions, at: &Stamped, observer: &mut impl Observer) {
        self.state.events += 1;
        self.state.time_ns = self.state.time_ns.max(at.time_ns);
        match at.event {
            Event::CacheState { device, allocated, reserved } => {
                let reported = ReportedTotals { time_ns: at.time_ns, allocated, reserved };
                self.cache_state(at, device, reported, observer);
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
            Event::Alloc(alloc) => {
                self.alloc(definitions, at, &alloc, 0, observer);
                if let Some(bytes) = alloc.requested {
                    self.change_block(at, alloc.key, BlockChange::Requested(bytes), observer);
                }
            }
            Event::Sampling { rate, least, cost, bound } => {
                let sampling = self.state.sampling.get_or_insert_default();
                sampling.note(rate, least, (cost, bound));
            }
            Event::BlockCounts { device, live, allocations, peak } => {
                self.state.sampling.get_or_insert_default();
                self.device(device).cache.take_counts(live, allocations, peak);
            }
            Event::SampledAlloc { rate, alloc } => {
                self.state.sampling.get_or_insert_default();
                self.alloc(definitions, at, &alloc, rate, observer);
            }
            Event::Free { key, space, .. } => {
                let key = Key { space, number: key };
                if !self.end(at, key, FreeCause::Freed, observer) {
                    self.unknown_free();
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
                self.notify_device_change(at, sample.device, observer);
            }
            Event::Cap { device, bytes } => {
                self.device(device).cap_bytes = bytes;
                self.notify_device_change(at, device, observer);
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
            Event::Recording { on, by } => self.switched(at, on, by, observer),
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
                observer.on_took(at, &took);
                self.notify_device_change(at, took.device, observer);
            }
            Event::GraphMade { exec, nodes, site, stack } => {
                let made = definitions.site(site);
                let device = made.map_or(DeviceId::UNKNOWN, |site| site.device);
                let context = made.map_or(ContextId(0), |site| site.context);
                let graph = ExecGraph { number: 0, device, context, site, stack, nodes };
                let (graph, replaced) = self.state.exec_graphs.add(exec, graph);
                if let Some(replaced) = replaced {
                    observer.on_graph(at, &replaced, GraphChange::Ended);
                }
                observer.on_graph(at, &graph, GraphChange::Made);
            }
            Event::GraphUsed { exec, again } => {
                if let Some(graph) = self.state.exec_graphs.get(exec) {
                    let change =
                        if again { GraphChange::LaunchedAgain } else { GraphChange::Launched };
                    observer.on_graph(at, &graph, change);
                }
            }
            Event::GraphEnded { exec } => {
                if let Some(graph) = self.state.exec_graphs.remove(exec) {
                    observer.on_graph(at, &graph, GraphChange::Ended);
                }
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
            Event::HistoryBegin { .. }
            | Event::HistoryBin(_)
            | Event::HistoryDevice(_)
            | Event::HistoryLevel(_)
            | Event::HistoryKind { .. }
            | Event::HistoryHolder(_)
            | Event::HistoryPeakHolder(_)
            | Event::HistoryPhase(_)
            | Event::HistoryEnd { .. } => {
                if let Some(history) = self.history.take(&at.event) {
                    self.state.history = Some(history);
                }
            }
            // A summary repeats figures of earlier events; `Trace::summary` reads it.
            Event::SummaryBegin { .. }
            | Event::SummaryDevice { .. }
            | Event::SummaryKind { .. }
            | Event::SummaryHolder(_)
            | Event::SummaryDriver(_)
            | Event::SummaryEnd { .. } => {}
            Event::ErrorAfterRefusal { api, result } => {
                observer.on_error_after_refusal(at, api, result);
            }
            Event::ExitStatus { status } => observer.on_exit_status(at, status),
            Event::Anchor => {}
        }
    }

    /// The recording was switched off or on.
    fn switched(&mut self, at: &Stamped, on: bool, by: SwitchedBy, observer: &mut impl Observer) {
        let time_ns = at.time_ns;
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
            self.gap();
            self.gap_by_switch = true;
        }
        observer.on_recording(at, on);
    }

    fn device(&mut self, id: DeviceId) -> &mut DeviceState {
        self.state.devices.of(id)
    }

    /// Updates the peak of a device whose sums changed, and calls the observer.
    fn notify_device_change(&mut self, at: &Stamped, id: DeviceId, observer: &mut impl Observer) {
        let lost = self.state.certainty == Certainty::Lost;
        let device = self.state.devices.of(id);
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
        observer.on_device_change(at, id, device);
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
            // Other results are failed calls, not refusals of memory.
            RefusedBy::Driver if refused.result != OUT_OF_MEMORY => {}
            RefusedBy::Driver => add(&mut sums.refused_by_driver, 1),
            RefusedBy::Cap | RefusedBy::BadCap | RefusedBy::Group => {
                add(&mut sums.refused_by_cap, 1)
            }
            RefusedBy::Warned => add(&mut sums.warned, 1),
        }
        if is_out_of_memory(&refused) {
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
        self.notify_device_change(at, device, observer);
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
