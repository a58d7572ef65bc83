//! One trace as a timeline: follows its replay, and gives a format ([`Sink`]) what is to be drawn.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use rustc_hash::FxHashMap;
use vramtrace_format::{Cause, DeviceId, Kind, Mark, Refused, SiteId, Stamped, ThreadId};

use super::counter::Counter;
use super::lanes::{Group, LanePlanner, Lanes, group};
use super::owners::Owners;
use super::phases::{Edge, ExportedPhase, Open};
use super::processes::TracedProcess;
use super::requester::{ByStack, who_of};
use super::roles::KnownRoles;
use super::sampled::SampledTime;
use super::sink::{Exported, Refusal, RoleSums, Sink, Slice, SliceEnd, Window};
use crate::analysis::roles::Role;
use crate::replay::{
    AllocCause, DeviceState, FreeCause, Key, Live, Observer, Progress, State, Until,
};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Site};

/// Draws one process. An [`Observer`] of its replay.
pub(super) struct Timeline<'a, 't, S: Sink> {
    process: TracedProcess<'t>,
    definitions: &'t Definitions,
    window: Window,
    sink: &'a mut S,
    exported: &'a mut Exported,
    open: FxHashMap<Key, Slice>,
    lanes: BTreeMap<Group, Lanes>,
    roles: KnownRoles,
    /// Of what is live: its role, device, and of a block the bytes without memory below it.
    role_of: FxHashMap<Key, (Role, DeviceId, u64)>,
    owners: Owners,
    /// As they are, and as they were drawn last.
    sums: BTreeMap<DeviceId, (RoleSums, Option<RoleSums>)>,
    apis: FxHashMap<SiteId, Rc<str>>,
    who: ByStack,
    counters: FxHashMap<(Option<DeviceId>, Counter), u64>,
    host_pinned: u64,
    phases: Open,
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
        window: &Window,
        sink: &'a mut S,
        exported: &'a mut Exported,
    ) -> Self {
        let trace = process.trace;
        let symbols = Symbols::of_all(definitions, trace.header());
        let blocks = definitions.sites().any(|site| site.kind == Some(Kind::Block));
        let roles = match blocks && !window.driver_only {
            true => KnownRoles::of(trace, definitions, &symbols),
            false => KnownRoles::default(),
        };
        let lanes = sink.lanes().map(|most| {
            let mut planner = LanePlanner::new(window.min_size);
            trace.replay(definitions, &mut planner);
            planner.finish(most)
        });
        Timeline {
            now_ns: process.start_ns,
            owners: Owners::of(trace, definitions),
            who: who_of(definitions, trace, &symbols, sink.whole_stacks()),
            lanes: lanes.unwrap_or_default(),
            roles,
            role_of: FxHashMap::default(),
            sums: BTreeMap::new(),
            sampled: SampledTime::of(trace, definitions, !window.driver_only),
            process,
            definitions,
            window: *window,
            sink,
            exported,
            open: FxHashMap::default(),
            apis: FxHashMap::default(),
            counters: FxHashMap::default(),
            host_pinned: 0,
            phases: Open::default(),
            event_ns: 0,
            off: false,
            drawing: window.from_ns.is_none(),
            failed: None,
        }
    }

    pub(super) fn write(mut self, progress: Progress) -> io::Result<()> {
        let definitions = self.definitions;
        self.sink.process(&self.process, definitions)?;
        let until = match self.window.to_ns.map(|to| to.checked_sub(self.process.start_ns)) {
            None => Until::End,
            Some(Some(to)) => Until::Time(to),
            // The wanted part ends before this process began.
            Some(None) => return Ok(()),
        };
        let trace = self.process.trace;
        let reading = trace.replay_until(definitions, until, &mut self, progress);
        if self.drawing {
            let last = self.process.start_ns.saturating_add(reading.state.time_ns);
            self.close_all(self.now_ns.max(last), SliceEnd::Live);
            self.now_ns = self.now_ns.max(last);
            for (name, of) in self.phases.take() {
                self.draw_phase(Edge::End, name, of);
            }
            self.draw_off(Edge::End);
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// Moves the clock; true when this moment is to be drawn. Stamps may run back a little.
    fn advance(&mut self, at: &Stamped) -> bool {
        for part in self.sampled.between(self.event_ns, at.time_ns) {
            self.move_clock(part.at_ns(self.process.start_ns));
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
        let now = self.now_ns;
        let mut counters: Vec<_> = std::mem::take(&mut self.counters).into_iter().collect();
        counters.sort_unstable_by_key(|(of, _)| *of);
        for ((device, what), bytes) in counters {
            self.count(device, what, bytes);
        }
        let mut open: Vec<Key> = self.open.keys().copied().collect();
        open.sort_unstable_by_key(|key| (self.open[key].allocated_ns, *key));
        for key in open {
            self.begin(now, key);
        }
        for (name, of) in self.phases.ranges().to_vec() {
            self.draw_phase(Edge::Begin, name, of);
        }
        self.draw_off(Edge::Begin);
    }

    /// While the recording is switched off, a range says so.
    fn draw_off(&mut self, what: Edge) {
        if self.off {
            let phase = ExportedPhase { what, name: "recording off", id: u32::MAX, tid: None };
            let now = self.now_ns;
            self.draw(|sink| sink.phase(now, &phase));
        }
    }

    fn draw_phase(&mut self, what: Edge, id: u32, of: Option<ThreadId>) {
        let name = self.definitions.text(id).unwrap_or("(no name)");
        let phase = ExportedPhase { what, name, id, tid: of.map(|thread| self.tid(thread)) };
        let now = self.now_ns;
        self.draw(|sink| sink.phase(now, &phase));
    }

    fn draw(&mut self, draw: impl FnOnce(&mut S) -> io::Result<()>) {
        if self.failed.is_none() {
            self.failed = draw(self.sink).err();
        }
    }

    /// Gives an open slice its lane and draws its begin.
    fn begin(&mut self, at_ns: u64, key: Key) {
        let Some(mut slice) = self.open.remove(&key) else { return };
        self.exported.allocations += 1;
        let of = group(&slice.live, slice.is_block());
        match self.lanes.entry(of).or_default().take(slice.live.size) {
            Some(lane) => {
                slice.lane = lane;
                self.draw(|sink| sink.begin(at_ns, &slice));
            }
            None => {
                slice.lane = SMALL;
                self.count_small(of, |bytes| bytes.saturating_add(slice.live.size));
            }
        }
        self.open.insert(key, slice);
    }

    fn count_small(&mut self, of: Group, change: impl FnOnce(u64) -> u64) {
        let bytes = &mut self.lanes.entry(of).or_default().small;
        *bytes = change(*bytes);
        let (bytes, what) = (*bytes, if of.1 { Counter::SmallBlocks } else { Counter::Small });
        self.count(of.0, what, bytes);
    }

    fn close(&mut self, at_ns: u64, slice: Slice, how: SliceEnd) {
        // Without a lane its begin was not drawn.
        if slice.lane == 0 {
            return;
        }
        let of = group(&slice.live, slice.is_block());
        if slice.lane == SMALL {
            return self.count_small(of, |bytes| bytes.saturating_sub(slice.live.size));
        }
        self.draw(|sink| sink.end(at_ns, &slice, how));
        self.lanes.entry(of).or_default().give_back(slice.lane);
    }

    fn open(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause, drawing: bool) {
        let role = self.roles.get(at, key, live, how);
        if let Some(role) = role {
            self.role_of.insert(key, (role, live.device, 0));
            self.add_to_role(role, live.device, role_bytes(live));
        }
        if live.size < self.window.min_size {
            return;
        }
        let woken = self.owners.get(key, live);
        let block = live.kind == Kind::Block;
        let api = self.api(live.site);
        let who = |stack| self.who.get(&(stack, block)).cloned();
        let slice = Slice {
            device: (!live.kind.is_host()).then_some(live.device),
            lane: 0,
            key,
            live: *live,
            api,
            stream: self.definitions.site(live.site).map_or(0, |site| site.stream),
            tid: self.tid(live.thread),
            allocated_ns: self.process.start_ns.saturating_add(live.time_ns),
            who: who(woken.map_or(live.stack, |woken| woken.owner)),
            brought_back_by: woken.and_then(|woken| who(woken.by)),
            role,
        };
        self.open.insert(key, slice);
        if drawing {
            self.begin(self.now_ns, key);
        }
    }

    fn shut(&mut self, key: Key, live: &Live, how: FreeCause) {
        if let Some((role, device, paused)) = self.role_of.remove(&key) {
            let bytes = role_bytes(live).saturating_sub_unsigned(paused).max(0);
            self.add_to_role(role, device, -bytes);
        }
        if let Some(slice) = self.open.remove(&key) {
            self.close(self.now_ns, slice, how.into());
        }
    }

    fn close_all(&mut self, at_ns: u64, how: SliceEnd) {
        let mut open: Vec<Slice> = std::mem::take(&mut self.open).into_values().collect();
        open.sort_unstable_by_key(|slice| (slice.allocated_ns, slice.key));
        for slice in open {
            self.close(at_ns, slice, how);
        }
    }

    fn count(&mut self, device: Option<DeviceId>, what: Counter, bytes: u64) {
        let before = self.counters.insert((device, what), bytes);
        // What was always 0 needs no line.
        if self.drawing && before != Some(bytes) && (before.is_some() || bytes > 0) {
            self.exported.counters += 1;
            let now = self.now_ns;
            self.draw(|sink| sink.counter(now, device, what, bytes));
        }
    }

    fn draw_roles(&mut self, id: DeviceId, state: &DeviceState) {
        let Some((sums, drawn)) = self.sums.get_mut(&id) else { return };
        sums[Role::FreeCache.index()] = state.cache.free_resident();
        let (sums, now) = (*sums, self.now_ns);
        if self.drawing && drawn.replace(sums) != Some(sums) {
            self.draw(|sink| sink.roles(now, id, &sums));
        }
    }

    fn add_to_role(&mut self, role: Role, device: DeviceId, bytes: i64) {
        let sum = &mut self.sums.entry(device).or_default().0[role.index()];
        *sum = sum.saturating_add_signed(bytes);
    }

    fn api(&mut self, site: SiteId) -> Rc<str> {
        let name = || Rc::from(self.definitions.site_api_name(site));
        Rc::clone(self.apis.entry(site).or_insert_with(name))
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
        let drawing = self.advance(at);
        if live.kind == Kind::HostPinned {
            self.host_pinned = self.host_pinned.saturating_add(live.size);
            self.count(None, Counter::Kind(live.kind), self.host_pinned);
        }
        self.open(at, key, live, how, drawing);
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        self.advance(at);
        if live.kind == Kind::HostPinned {
            self.host_pinned = self.host_pinned.saturating_sub(live.size);
            self.count(None, Counter::Kind(live.kind), self.host_pinned);
        }
        self.shut(key, live, how);
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        if !self.window.driver_only {
            let drawing = self.advance(at);
            self.open(at, Key::block(address), live, how, drawing);
        }
    }

    fn on_block_free(&mut self, at: &Stamped, address: u64, live: &Live, how: FreeCause) {
        if !self.window.driver_only {
            self.advance(at);
            self.shut(Key::block(address), live, how);
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
        if let Some((what, name, of)) = self.phases.mark(at.thread, name, mark)
            && drawing
        {
            self.draw_phase(what, name, of);
        }
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&Site>) {
        if !self.advance(at) {
            return;
        }
        let refusal = Refusal {
            device: site.map_or(DeviceId::UNKNOWN, |site| site.device),
            kind: site.and_then(|site| site.kind),
            api: self.api(refused.site),
            tid: self.tid(at.thread),
            refused: *refused,
        };
        self.exported.refusals += 1;
        let now = self.now_ns;
        self.draw(|sink| sink.refusal(now, &refusal));
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        self.advance(at);
        let (id, device) = (device, Some(device));
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
        self.draw_roles(id, state);
        if let Some(bytes) = state.process_bytes() {
            self.count(device, Counter::Process, bytes);
        }
        if state.driver_own.has_causes() {
            for cause in Cause::ALL {
                self.count(device, Counter::DriverOwn(cause), state.driver_own.of(cause));
            }
        }
        if let Some(bytes) = state.cap_bytes {
            self.count(device, Counter::Cap, bytes);
        }
    }

    fn on_applied(&mut self, at: &Stamped, state: &State) {
        if !state.space.ever_slept() {
            return;
        }
        self.advance(at);
        for device in state.devices.keys() {
            self.count(Some(*device), Counter::Paused, state.space.asleep_on(*device));
        }
    }

    fn on_recording(&mut self, at: &Stamped, on: bool) {
        let drawing = self.advance(at);
        if on == self.off && drawing {
            if !on {
                self.close_all(self.now_ns, SliceEnd::Lost);
            }
            // Drawn while it is off.
            self.off = true;
            self.draw_off(if on { Edge::End } else { Edge::Begin });
        }
        self.off = !on;
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.advance(at);
        self.host_pinned = 0;
        self.role_of.clear();
        self.sums.values_mut().for_each(|(sums, _)| *sums = RoleSums::default());
        self.close_all(self.now_ns, SliceEnd::Lost);
    }
}
