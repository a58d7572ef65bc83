//! One trace as a timeline: follows its replay, and gives a format ([`Sink`]) what is to be drawn.

use std::collections::BTreeMap;
use std::io;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, DriverCause, Kind, Mark, Refused, Space, Stamped, ThreadId};

use super::TracedProcess;
use super::lanes::{LaneGroup, LanePlanner, Lanes, group};
use super::owners::Owners;
use super::requester::{ByStack, who_of};
use super::roles::KnownRoles;
use super::sampled::SampledTime;
use super::sink::{
    Counter, Edge, Element, Exported, ExportedPhase, Refusal, Sink, Slice, SliceEnd, TimeWindow,
};
use crate::analysis::roles::Role;
use crate::replay::{
    AllocCause, DeviceState, FreeCause, Key, Live, Observer, Progress, State, Until,
};
use crate::symbols::Symbols;
use crate::trace::{Definitions, SiteInfo};

/// The id of a phase's name, and its thread. `None`: a range that any thread may end.
type Phase = (u32, Option<ThreadId>);

/// Draws one process. An [`Observer`] of its replay.
pub(super) struct Timeline<'a, 't, S: Sink> {
    process: TracedProcess<'t>,
    definitions: &'t Definitions,
    window: TimeWindow,
    sink: &'a mut S,
    exported: Exported,
    open: FxHashMap<Key, Slice>,
    lanes: BTreeMap<LaneGroup, Lanes>,
    roles: KnownRoles,
    /// Of what is live: its role, device, and of a block the bytes without memory below it.
    role_of: FxHashMap<Key, (Role, DeviceId, u64)>,
    /// Bytes by role, at [`Role::index`].
    sums: FxHashMap<DeviceId, [u64; Role::ALL.len()]>,
    owners: Owners,
    /// Who asked for memory.
    pub(super) who: ByStack,
    counters: FxHashMap<(Option<DeviceId>, Counter), u64>,
    /// The open ones, in the order in which they began.
    phases: Vec<Phase>,
    /// Of the time whose events were erased.
    sampled: SampledTime,
    /// Time of the latest event, ns since the start of the trace.
    event_ns: u64,
    /// The recording is switched off.
    off: bool,
    /// The wanted part has begun: what comes is drawn at once.
    drawing: bool,
    /// Latest time drawn.
    now_ns: u64,
    /// The first failure; nothing is drawn after it.
    failed: Option<io::Error>,
}

impl<'a, 't, S: Sink> Timeline<'a, 't, S> {
    pub(super) fn new(
        process: TracedProcess<'t>,
        definitions: &'t Definitions,
        window: &TimeWindow,
        sink: &'a mut S,
    ) -> Self {
        let trace = process.trace;
        let symbols = Symbols::of_all(definitions, trace.header());
        let blocks = definitions.sites().any(|site| site.kind == Some(Kind::Block));
        let roles = match blocks && !window.driver_only {
            true => KnownRoles::of(trace, definitions, &symbols),
            false => KnownRoles::default(),
        };
        let lanes = S::LANES.map(|most| {
            let mut planner = LanePlanner::default();
            trace.replay(definitions, &mut planner);
            planner.finish(most)
        });
        Timeline {
            now_ns: process.start_ns,
            owners: Owners::of(trace, definitions),
            who: who_of(definitions, trace, &symbols),
            lanes: lanes.unwrap_or_default(),
            roles,
            role_of: FxHashMap::default(),
            sums: FxHashMap::default(),
            sampled: SampledTime::of(trace, definitions, !window.driver_only),
            process,
            definitions,
            window: *window,
            sink,
            exported: Exported::default(),
            open: FxHashMap::default(),
            counters: FxHashMap::default(),
            phases: Vec::new(),
            event_ns: 0,
            off: false,
            drawing: window.from_ns.is_none(),
            failed: None,
        }
    }

    pub(super) fn write(mut self, progress: Progress) -> io::Result<Exported> {
        self.sink.process(&self.process)?;
        let until = match self.window.to_ns.map(|to| to.checked_sub(self.process.start_ns)) {
            None => Until::End,
            Some(Some(to)) => Until::Time(to),
            // The wanted part ends before this process began.
            Some(None) => return Ok(self.exported),
        };
        let (trace, definitions) = (self.process.trace, self.definitions);
        let reading = trace.replay_until(definitions, until, &mut self, progress);
        if self.drawing {
            let last = self.process.start_ns.saturating_add(reading.state.time_ns);
            self.now_ns = self.now_ns.max(last);
            self.close_all(SliceEnd::Live);
            for phase in std::mem::take(&mut self.phases).into_iter().rev() {
                self.draw_phase(Edge::End, phase);
            }
            self.draw_off(Edge::End);
        }
        self.failed.map_or(Ok(self.exported), Err)
    }

    /// Moves the clock; true when this moment is to be drawn. Stamps may run back a little.
    fn advance(&mut self, at: &Stamped) -> bool {
        for part in self.sampled.between(self.event_ns, at.time_ns) {
            self.move_clock(self.process.start_ns.saturating_add(part.from_ns));
            for (what, bytes) in part.values {
                self.count(Some(part.device), what, bytes);
            }
        }
        self.event_ns = self.event_ns.max(at.time_ns);
        self.move_clock(self.process.start_ns.saturating_add(at.time_ns));
        self.drawing
    }

    fn move_clock(&mut self, now: u64) {
        if let Some(from) = self.window.from_ns
            && !self.drawing
            && now >= from
        {
            self.now_ns = from.max(self.process.start_ns);
            self.start_drawing();
        }
        self.now_ns = self.now_ns.max(now);
    }

    /// The wanted part begins: with what is live and what the counters show.
    fn start_drawing(&mut self) {
        self.drawing = true;
        let mut counters: Vec<_> = std::mem::take(&mut self.counters).into_iter().collect();
        counters.sort_unstable_by_key(|(of, _)| *of);
        for ((device, what), bytes) in counters {
            self.count(device, what, bytes);
        }
        let mut open: Vec<Key> = self.open.keys().copied().collect();
        open.sort_unstable_by_key(|key| (self.open[key].allocated_ns, *key));
        open.into_iter().for_each(|key| self.begin(key));
        for phase in self.phases.clone() {
            self.draw_phase(Edge::Begin, phase);
        }
        self.draw_off(Edge::Begin);
    }

    /// While the recording is switched off, a range says so.
    fn draw_off(&mut self, what: Edge) {
        if self.off {
            let name = "recording off";
            self.draw(Element::Phase(ExportedPhase { what, name, id: u32::MAX, tid: None }));
        }
    }

    fn draw_phase(&mut self, what: Edge, (id, of): Phase) {
        let name = self.definitions.text(id).unwrap_or("(no name)");
        let tid = of.map(|thread| self.tid(thread));
        self.draw(Element::Phase(ExportedPhase { what, name, id, tid }));
    }

    fn draw(&mut self, element: Element) {
        if self.failed.is_none() {
            self.failed = self.sink.write(self.now_ns, &element).err();
        }
    }

    /// Gives an open slice its lane and draws its begin.
    fn begin(&mut self, key: Key) {
        let Some(mut slice) = self.open.remove(&key) else { return };
        self.exported.allocations += 1;
        let of = group(&slice.live);
        slice.begin_ns = self.now_ns;
        match self.lanes.entry(of).or_default().take(slice.live.size) {
            Some(lane) => {
                slice.lane = lane;
                self.draw(Element::Begin(&slice));
            }
            None => {
                slice.lane = SMALL;
                self.count_small(of, |bytes| bytes.saturating_add(slice.live.size));
            }
        }
        self.open.insert(key, slice);
    }

    fn count_small(&mut self, of: LaneGroup, change: impl FnOnce(u64) -> u64) {
        let bytes = &mut self.lanes.entry(of).or_default().small;
        *bytes = change(*bytes);
        let (bytes, what) = (*bytes, if of.1 { Counter::SmallBlocks } else { Counter::Small });
        self.count(of.0, what, bytes);
    }

    fn close(&mut self, slice: Slice, how: SliceEnd) {
        let of = group(&slice.live);
        match slice.lane {
            // Its begin was not drawn.
            0 => {}
            SMALL => self.count_small(of, |bytes| bytes.saturating_sub(slice.live.size)),
            lane => {
                self.draw(Element::End(&slice, how));
                self.lanes.entry(of).or_default().give_back(lane);
            }
        }
    }

    fn open(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        let drawing = self.advance(at);
        let role = self.roles.get(at, key, live, how);
        if let Some(role) = role {
            self.role_of.insert(key, (role, live.device, 0));
            self.add_to_role(role, live.device, role_bytes(live));
        }
        let woken = self.owners.get(key, live);
        let owner = woken.map_or(live.stack, |woken| woken.owner);
        let who = |stack| self.who.get(&(stack, live.kind == Kind::Block)).cloned();
        let slice = Slice {
            device: group(live).0,
            lane: 0,
            key,
            live: *live,
            api: self.definitions.site_api_name(live.site),
            stream: self.definitions.site(live.site).map_or(0, |site| site.stream),
            tid: self.tid(live.thread),
            allocated_ns: self.process.start_ns.saturating_add(live.time_ns),
            begin_ns: 0,
            owner,
            woken_by: woken.map(|woken| woken.by),
            who: who(owner),
            brought_back_by: woken.and_then(|woken| who(woken.by)),
            role,
        };
        self.open.insert(key, slice);
        if drawing {
            self.begin(key);
        }
    }

    fn shut(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        self.advance(at);
        if let Some((role, device, paused)) = self.role_of.remove(&key) {
            let bytes = role_bytes(live).saturating_sub_unsigned(paused).max(0);
            self.add_to_role(role, device, -bytes);
        }
        if let Some(slice) = self.open.remove(&key) {
            self.close(slice, SliceEnd::Free(how));
        }
    }

    fn close_all(&mut self, how: SliceEnd) {
        let mut open: Vec<Slice> = std::mem::take(&mut self.open).into_values().collect();
        open.sort_unstable_by_key(|slice| (slice.allocated_ns, slice.key));
        open.into_iter().for_each(|slice| self.close(slice, how));
    }

    fn count(&mut self, device: Option<DeviceId>, what: Counter, bytes: u64) {
        let before = self.counters.insert((device, what), bytes);
        // What was always 0 needs no line.
        if self.drawing && before != Some(bytes) && (before.is_some() || bytes > 0) {
            self.exported.counters += 1;
            self.draw(Element::Counter(device, what, bytes));
        }
    }

    fn add_to_role(&mut self, role: Role, device: DeviceId, bytes: i64) {
        let sum = &mut self.sums.entry(device).or_default()[role.index()];
        *sum = sum.saturating_add_signed(bytes);
    }

    fn tid(&self, thread: ThreadId) -> u32 {
        self.definitions.thread(thread).map_or(0, |thread| thread.tid)
    }
}

/// A block has no share of physical memory: the segment below it has.
fn role_bytes(live: &Live) -> i64 {
    let bytes = if live.kind == Kind::Block { live.size } else { live.share() };
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// In place of a lane: in a counter.
const SMALL: u32 = u32::MAX;

impl<S: Sink> Observer for Timeline<'_, '_, S> {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        if !self.window.driver_only || key.space != Space::Block {
            self.open(at, key, live, how);
        }
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        if !self.window.driver_only || key.space != Space::Block {
            self.shut(at, key, live, how);
        }
    }

    fn on_block_paused(&mut self, at: &Stamped, _device: DeviceId, address: u64, bytes: i64) {
        let key = Key::block(address);
        // What has no role is in no sum.
        let Some((role, device, paused)) = self.role_of.get_mut(&key) else { return };
        *paused = paused.saturating_add_signed(bytes);
        let (role, device) = (*role, *device);
        self.advance(at);
        self.add_to_role(role, device, bytes.saturating_neg());
    }

    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        let drawing = self.advance(at);
        let of = matches!(mark, Mark::Push | Mark::Pop | Mark::Moment).then_some(at.thread);
        let (what, phase) = match mark {
            Mark::Push | Mark::Start => {
                self.phases.push((name, of));
                (Edge::Begin, (name, of))
            }
            Mark::Moment => (Edge::Moment, (name, of)),
            Mark::Pop | Mark::End => {
                let ends = |phase: &Phase| phase.1 == of && (mark == Mark::Pop || phase.0 == name);
                // Its begin may not be in the trace.
                let Some(index) = self.phases.iter().rposition(ends) else { return };
                (Edge::End, self.phases.remove(index))
            }
        };
        if drawing {
            self.draw_phase(what, phase);
        }
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&SiteInfo>) {
        if !self.advance(at) {
            return;
        }
        self.exported.refusals += 1;
        self.draw(Element::Refusal(&Refusal {
            device: site.map_or(DeviceId::UNKNOWN, |site| site.device),
            kind: site.and_then(|site| site.kind),
            api: self.definitions.site_api_name(refused.site),
            tid: self.tid(at.thread),
            refused: *refused,
        }));
    }

    fn on_device_change(&mut self, at: &Stamped, id: DeviceId, state: &DeviceState) {
        self.advance(at);
        let device = Some(id);
        self.count(device, Counter::Live, state.live_bytes);
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_physical()) {
            self.count(device, Counter::Kind(kind), state.kind(kind).live_bytes);
        }
        self.count(device, Counter::PoolUsed, state.pool_used);
        self.count(device, Counter::GraphUsed, state.graph_used);
        if !self.window.driver_only {
            self.count(device, Counter::Allocated, state.cache.allocated);
            self.count(device, Counter::Reserved, state.cache.reserved);
            self.count(device, Counter::AllocatedPaused, state.cache.paused);
            self.count(device, Counter::ReservedPaused, state.cache.reserved_paused);
        }
        if let Some(sums) = self.sums.get_mut(&id) {
            sums[Role::FreeCache.index()] = state.cache.free_resident();
            let sums = *sums;
            for role in Role::ALL {
                self.count(device, Counter::Role(role), sums[role.index()]);
            }
        }
        if let Some(bytes) = state.in_use().in_nvidia_smi() {
            self.count(device, Counter::Process, bytes);
        }
        if state.driver_own.has_causes {
            for cause in DriverCause::ALL {
                self.count(device, Counter::DriverOwn(cause), state.driver_own.of(cause));
            }
        }
        if let Some(bytes) = state.cap_bytes {
            self.count(device, Counter::Cap, bytes);
        }
    }

    fn on_applied(&mut self, at: &Stamped, state: &State) {
        self.advance(at);
        self.count(None, Counter::Kind(Kind::HostPinned), state.host_pinned.live_bytes);
        if state.space.ever_slept {
            for device in state.devices.keys() {
                self.count(Some(*device), Counter::Paused, state.space.asleep_on(*device));
            }
        }
    }

    fn on_recording(&mut self, at: &Stamped, on: bool) {
        let drawing = self.advance(at);
        if on == self.off && drawing {
            if !on {
                self.close_all(SliceEnd::Lost);
            }
            // Drawn while it is off.
            self.off = true;
            self.draw_off(if on { Edge::End } else { Edge::Begin });
        }
        self.off = !on;
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.advance(at);
        self.role_of.clear();
        self.sums.values_mut().for_each(|sums| *sums = Default::default());
        self.close_all(SliceEnd::Lost);
    }
}
