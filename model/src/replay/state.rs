//! The state of one process's memory at one place in its trace.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{
    ContextId, DeviceId, Kind, PoolId, Refused, StackId, StopReason, SwitchedBy, ThreadId,
};

use super::by_device::ByDevice;
use super::cache::CacheState;
use super::device::{DeviceState, changed};
use super::exec_graphs::ExecGraphs;
use super::history::History;
use super::live::LiveSet;
use super::mapping::AddressSpace;
use crate::facts;

/// The number of first refusals and of last refusals whose details are kept.
pub const REFUSALS_KEPT: usize = 16;

/// A live context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContextState {
    pub device: DeviceId,
    pub created_ns: u64,
    pub stack: StackId,
}

/// A memory pool, by the driver's figures. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolSums {
    pub device: DeviceId,
    pub reserved: u64,
    pub used: u64,
    /// Another process created the pool: its bytes count there.
    pub imported: bool,
}

/// A refused request, with the place of its event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RefusalAt {
    pub time_ns: u64,
    pub thread: ThreadId,
    pub device: DeviceId,
    pub kind: Option<Kind>,
    pub refused: Refused,
}

/// Sums of one kind of host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct HostSums {
    pub live_bytes: u64,
    pub peak_bytes: u64,
    pub live_allocations: u64,
    pub allocations: u64,
}

impl HostSums {
    /// An allocation comes, or goes.
    pub(super) fn change(&mut self, size: u64, comes: bool) {
        self.live_bytes = changed(self.live_bytes, size, comes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.live_allocations = changed(self.live_allocations, 1, comes);
    }
}

/// The end of the recording before the end of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    pub time_ns: u64,
    pub reason: StopReason,
    pub errno: i32,
}

/// A time in which the recording was switched off: events are missing, the cap went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct OffSpan {
    #[serde(rename = "from_s", with = "facts::Seconds")]
    pub from_ns: u64,
    /// Null: to the end of the trace.
    #[serde(rename = "until_s", with = "facts::SecondsOrNull")]
    pub until_ns: Option<u64>,
    /// `record`: by `vramtrace record`; `host_file`: by the file of the host or of the user; `unwritable`: no thread could
    /// write the trace.
    #[serde(serialize_with = "facts::switched_by")]
    #[cfg_attr(feature = "schemas", schemars(with = "String"))]
    pub by: SwitchedBy,
    /// The recording went on because the process ended.
    #[serde(skip)]
    pub until_end: bool,
}

/// The number of spans that are kept.
pub const OFF_SPANS_KEPT: usize = 1024;

/// The recorder's cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct RecorderCost {
    /// Time in the recorder's part of all calls, without the driver's part. It is estimated from
    /// `timed_calls`, which took `timed_s`: one call in `timed_one_of` is timed. Null where none was.
    #[serde(rename = "in_calls_s", with = "facts::SecondsOrNull")]
    pub in_calls_ns: Option<u64>,
    pub timed_calls: u64,
    #[serde(rename = "timed_s", with = "facts::Seconds")]
    pub timed_ns: u64,
    pub timed_one_of: u64,
    /// Bytes of records.
    pub written_bytes: u64,
    /// Distinct stacks.
    pub stacks: u64,
}

/// Samples of a framework's blocks were recorded, not all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Sampling {
    /// Bytes of blocks for each sample on average: at the moment of the figures, at the start, and at most. 0: not known.
    pub rate_bytes: u64,
    pub least_rate_bytes: u64,
    pub highest_rate_bytes: u64,
    /// The recorder's share of the time of the program's threads when it was last measured (0: it was not yet), and the
    /// bound above which it takes fewer samples. In millionths.
    #[serde(serialize_with = "facts::share")]
    #[cfg_attr(feature = "schemas", schemars(with = "f64"))]
    pub cost_share: u32,
    #[serde(serialize_with = "facts::share")]
    #[cfg_attr(feature = "schemas", schemars(with = "f64"))]
    pub bound_share: u32,
}

/// Contradictions in the trace. All zero in a sound one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Inconsistencies {
    /// Allocations at the address of a live one, which counts as freed.
    pub replaced: u64,
    /// Frees of memory that was not live.
    pub unknown_frees: u64,
    /// Refused frees of memory that was not freed just before.
    pub unknown_restores: u64,
    /// Allocations whose site is not defined: they count on the unknown device.
    pub unknown_sites: u64,
    /// Blocks that were live when their memory was freed.
    pub blocks_without_memory: u64,
    /// Inconsistencies that the recorder itself reported.
    // The key is as old as the schema.
    #[serde(rename = "told")]
    pub by_recorder: u64,
}

/// Whether the live set is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Certainty {
    /// No event since the start is missing.
    #[default]
    Whole,
    /// Events are missing, and no checkpoint followed.
    Lost,
    /// A checkpoint is being read: the live set is incomplete.
    Resuming { checkpoint: u8 },
    /// No event is missing since a checkpoint.
    Resumed,
}

/// The state of a process's memory after an event.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub certainty: Certainty,
    /// Events before this are missing from the file (0: none are).
    pub history_from_ns: u64,
    /// They are missing because the recording was switched off, not because they were erased.
    pub history_after_off: bool,
    /// The last time before the latest missing events at which the live set was known.
    pub known_until_ns: Option<u64>,
    /// `events` at the latest missing events.
    pub(super) events_at_gap: u64,
    /// Time of the latest event.
    pub time_ns: u64,
    pub events: u64,
    pub live: LiveSet,
    /// Those whose instantiation is in the file.
    pub(super) exec_graphs: ExecGraphs,
    pub devices: ByDevice<DeviceState>,
    pub pools: FxHashMap<PoolId, PoolSums>,
    pub contexts: BTreeMap<ContextId, ContextState>,
    /// Where physical objects are mapped, and which addresses are reserved.
    pub space: AddressSpace,
    /// A framework's cache. Its blocks are in `live`.
    pub cache: CacheState,
    pub host_pinned: HostSums,
    pub host_registered: HostSums,
    pub first_refusals: Vec<RefusalAt>,
    pub last_refusals: VecDeque<RefusalAt>,
    pub recorder_cost: Option<RecorderCost>,
    /// `None`: all blocks are recorded.
    pub sampling: Option<Sampling>,
    /// Samples of the time since the start, also of that whose events are missing.
    pub history: Option<Arc<History>>,
    pub stopped: Option<Stop>,
    /// When the recording was switched off, in order: the first [`OFF_SPANS_KEPT`] times.
    pub off: Vec<OffSpan>,
    /// When the process's exit handlers ran.
    pub ended_ns: Option<u64>,
    /// With which it ended, where that was recorded: one other than 0, after a refusal, and at an `_exit`, which runs no handlers.
    pub exit_status: Option<i32>,
    /// Ids of the functions that the process called and the recorder only counts.
    pub passed_through: BTreeSet<u16>,
    pub inconsistencies: Inconsistencies,
}

impl State {
    /// Whether the live set is known after the last event.
    pub fn live_is_known(&self) -> bool {
        matches!(self.certainty, Certainty::Whole | Certainty::Resumed)
    }

    /// Whether the events right before this moment are missing.
    pub fn is_in_gap(&self) -> bool {
        self.certainty == Certainty::Lost && self.events == self.events_at_gap
    }

    /// Refused requests, all devices.
    pub fn refusals(&self) -> u64 {
        self.devices.values().map(DeviceState::refused).fold(0, u64::saturating_add)
    }

    pub(super) fn keep_refusal(&mut self, refusal: RefusalAt) {
        if self.first_refusals.len() < REFUSALS_KEPT {
            self.first_refusals.push(refusal);
        }
        if self.last_refusals.len() == REFUSALS_KEPT {
            self.last_refusals.pop_front();
        }
        self.last_refusals.push_back(refusal);
    }

    /// Number of live allocations, blocks, graphs and ranges of addresses: the memory of a state grows with it.
    pub fn entries(&self) -> usize {
        self.live.entries() + self.exec_graphs.len() + self.space.ranges()
    }

    pub(super) fn host(&mut self, kind: Kind) -> Option<&mut HostSums> {
        match kind {
            Kind::HostPinned => Some(&mut self.host_pinned),
            Kind::HostRegistered => Some(&mut self.host_registered),
            _ => None,
        }
    }

    /// The sums of devices and of the host after all that is live was added anew: those of this state, if they are right.
    pub fn added_up(&self) -> State {
        let mut again = State {
            devices: self.devices.clone(),
            host_pinned: self.host_pinned,
            host_registered: self.host_registered,
            ..State::default()
        };
        again.forget_live();
        for (key, live) in self.live.iter() {
            match again.host(live.kind) {
                Some(host) => host.change(live.weigh(live.size), true),
                None => again.devices.of(live.device).change_live(key, live, true),
            }
        }
        for (_, block) in self.live.blocks() {
            let cache = &mut again.devices.of(block.device).cache;
            cache.add_block(block.weigh(block.size), block.weigh(1), false);
        }
        for pool in self.pools.values().filter(|pool| !pool.imported) {
            let device = again.devices.of(pool.device);
            device.reserve(Kind::Pool, 0, pool.reserved);
            device.pool_used = device.pool_used.saturating_add(pool.used);
        }
        for (id, device) in &self.devices {
            let graphs = again.devices.of(*id);
            graphs.reserve(Kind::Graph, 0, device.graph_reserved);
            graphs.graph_used = device.graph_used;
            graphs.reserve(Kind::Block, 0, device.kind(Kind::Block).live_bytes);
        }
        for context in self.contexts.values() {
            again.devices.of(context.device).contexts += 1;
        }
        again
    }

    /// Each live context with its bytes: the recorder measures each, and records their sum.
    pub fn contexts(&self) -> impl Iterator<Item = (ContextId, &ContextState, u64)> {
        self.contexts.iter().map(|(id, context)| {
            let sums = self.devices.get(&context.device);
            let bytes = sums.map_or(0, |sums| sums.context_bytes / u64::from(sums.contexts.max(1)));
            (*id, context, bytes)
        })
    }

    /// Clears what is live; history stays.
    pub(super) fn forget_live(&mut self) {
        self.live.clear();
        self.exec_graphs.forget();
        self.pools.clear();
        self.contexts.clear();
        self.space.clear();
        self.cache.clear();
        self.devices.values_mut().for_each(DeviceState::forget_live);
        for host in [&mut self.host_pinned, &mut self.host_registered] {
            host.live_bytes = 0;
            host.live_allocations = 0;
        }
    }
}
