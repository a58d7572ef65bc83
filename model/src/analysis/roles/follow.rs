//! Follows every allocation of a trace to its free, and reports its role then.
//!
//! There are two passes. The first one collects facts about the program ([`Learned`]), the second one
//! decides. Undecided allocations are live, or were freed since the last allocation; so memory is
//! bounded by the live set.

use std::borrow::Borrow;

use vramtrace_format::{DeviceId, Header, Kind, StackId, Stamped, ThreadId};

use super::class::{StackClass, StackClasses, StepPart};
use super::life::{End, Learned, Life, StackAndSize, TrainingProgress};
use super::{LiveRoles, Role, rules};
use crate::replay::{
    AllocCause, ByDevice, DeviceState, FreeCause, Key, Live, Mapping, Observer, Slots, Until,
};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};

/// One allocation with its role: a block of PyTorch's cache, or driver memory that is no segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allocation {
    pub key: Key,
    pub live: Live,
    /// File offset of the event of its allocation. 0: a checkpoint lists it.
    pub made_offset: u64,
    /// `None`: it is live at the end of the trace, or its free is missing.
    pub freed: Option<FreedAt>,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedAt {
    pub time_ns: u64,
    pub offset: u64,
}

/// Finds the roles of one trace's allocations.
#[derive(Clone, Debug)]
pub struct RoleFinder {
    classes: StackClasses,
    learned: Learned,
    /// Empty where events are missing: a checkpoint lists allocations again.
    at_peaks: ByDevice<AtPeak>,
}

impl RoleFinder {
    /// Reads the trace once. `symbols` must name all of its stacks.
    pub fn new(trace: &Trace, definitions: &Definitions, symbols: &Symbols) -> RoleFinder {
        let mut learner = RoleLearner::new(definitions, symbols);
        trace.replay(definitions, &mut learner.observer());
        learner.finish()
    }

    /// Reads the trace once more and calls `found` for every allocation at its free, then for those that
    /// are live at the end, in no order.
    pub fn follow(
        &self,
        trace: &Trace,
        definitions: &Definitions,
        found: &mut dyn FnMut(&Allocation),
    ) {
        let mut follower =
            Follower::new(&self.classes, |life: &Life, of: &Waiting, freed: Option<FreedAt>| {
                found(&self.decide(life, of, freed));
            });
        trace.replay(definitions, &mut follower);
        follower.end_all();
    }

    /// An observer to which another observer forwards its events.
    pub fn observer(&self) -> RoleObserver<'_> {
        let followed = Followed { finder: self, list: Vec::new() };
        RoleObserver { follower: Follower::new(&self.classes, followed) }
    }

    /// The roles at the peak of a device, from the lives that the first pass kept. `None`: the peak is not at this place, or
    /// events are missing.
    pub(super) fn at_peak(&self, device: DeviceId, peak: Until) -> Option<LiveRoles> {
        let Until::Offset(offset) = peak else { return None };
        let at_peak = self.at_peaks.get(&device).filter(|of| of.offset == offset)?;
        let role = |of: &EndedAllocation| {
            ((of.key, of.time_ns), rules::role(&of.life, of.site, &self.learned))
        };
        Some(LiveRoles(at_peak.ended.iter().map(role).collect()))
    }

    fn decide(&self, life: &Life, of: &Waiting, freed: Option<FreedAt>) -> Allocation {
        let role = rules::role(life, of.site(), &self.learned);
        let Waiting { key, live, made_offset, .. } = *of;
        Allocation { key, live, made_offset, freed, role }
    }
}

/// Collects what the roles follow from, as an observer of a whole trace.
#[derive(Clone, Debug, Default)]
pub struct RoleLearner {
    follower: Follower<StackClasses, Notes>,
}

impl RoleLearner {
    /// `symbols` must name all stacks of the trace.
    pub fn new(definitions: &Definitions, symbols: &Symbols) -> RoleLearner {
        let classes = StackClasses::new(definitions, symbols);
        RoleLearner { follower: Follower::new(classes, Notes::default()) }
    }

    pub fn observer(&mut self) -> &mut impl Observer {
        &mut self.follower
    }

    /// Adds the stacks that a growing trace got since the last call.
    pub fn add_new_stacks(&mut self, definitions: &Definitions, header: &Header) {
        let classes = &mut self.follower.classes;
        let new = definitions.stacks().ids().filter(|stack| !classes.has(*stack));
        let new: Vec<StackId> = new.collect();
        if !new.is_empty() {
            let symbols = Symbols::of(definitions, header, new.iter().copied());
            classes.add(definitions, &symbols, &new);
        }
    }

    /// Calls `found` for every live allocation, with its role if the trace ended here.
    pub fn live(&self, found: &mut dyn FnMut(&Allocation)) {
        let mut now = self.clone();
        now.follower.end_all();
        let finder = now.finish();
        for of in self.follower.live.values() {
            let life = of.life(self.follower.progress, End::NotSeen);
            found(&finder.decide(&life, of, None));
        }
    }

    pub fn finish(mut self) -> RoleFinder {
        self.follower.end_all();
        let Follower { classes, progress, sink, .. } = self.follower;
        let Notes { mut learned, mut at_peaks, events_are_missing, .. } = sink;
        learned.finish(progress);
        if events_are_missing {
            at_peaks = ByDevice::default();
        }
        RoleFinder { classes, learned, at_peaks }
    }
}

/// An allocation whose life has ended. `time_ns`: of its allocation.
#[derive(Clone, Copy, Debug)]
struct EndedAllocation {
    key: Key,
    time_ns: u64,
    site: StackAndSize,
    life: Life,
}

/// What a device had at its highest peak so far. Memory is bounded by what is live there.
#[derive(Clone, Debug, Default)]
struct AtPeak {
    /// File offset of the event.
    offset: u64,
    /// What was allocated up to it and ended after it. Its last entry of a key and a time is the one that was live then.
    ended: Vec<EndedAllocation>,
}

/// The facts about allocations whose life has ended.
#[derive(Clone, Debug, Default)]
struct Notes {
    learned: Learned,
    /// The first pass decides without the facts that it collects.
    none: Learned,
    at_peaks: ByDevice<AtPeak>,
    events_are_missing: bool,
}

impl Sink for Notes {
    fn ended(&mut self, life: &Life, of: &Waiting, _freed: Option<FreedAt>) {
        let site = of.site();
        self.learned.note(life, site, rules::role(life, site, &self.none));
        for at_peak in self.at_peaks.values_mut().filter(|peak| of.made_offset <= peak.offset) {
            let (key, time_ns) = (of.key, of.live.time_ns);
            at_peak.ended.push(EndedAllocation { key, time_ns, site, life: *life });
        }
    }

    /// Each new peak begins anew.
    fn device_changed(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        if state.peak.offset == Some(at.offset) {
            let of = self.at_peaks.of(device);
            of.offset = at.offset;
            of.ended.clear();
        }
    }

    fn events_are_missing(&mut self) {
        self.events_are_missing = true;
        self.at_peaks = ByDevice::default();
    }
}

/// Finds roles for another observer, which forwards its events and takes the results.
pub struct RoleObserver<'f> {
    follower: Follower<&'f StackClasses, Followed<'f>>,
}

impl RoleObserver<'_> {
    pub fn observer(&mut self) -> &mut impl Observer {
        &mut self.follower
    }

    /// Exchanges the allocations whose role became known since the last call for an empty list.
    pub fn take(&mut self, known: &mut Vec<Allocation>) {
        debug_assert!(known.is_empty());
        std::mem::swap(known, &mut self.follower.sink.list);
    }

    /// The trace has ended: the roles of all live allocations become known.
    pub fn end(&mut self) {
        self.follower.end_all();
    }
}

/// Receives each allocation at the end of its life.
trait Sink {
    fn ended(&mut self, life: &Life, of: &Waiting, freed: Option<FreedAt>);

    fn device_changed(&mut self, _at: &Stamped, _device: DeviceId, _state: &DeviceState) {}

    fn events_are_missing(&mut self) {}
}

impl<F: FnMut(&Life, &Waiting, Option<FreedAt>)> Sink for F {
    fn ended(&mut self, life: &Life, of: &Waiting, freed: Option<FreedAt>) {
        self(life, of, freed);
    }
}

struct Followed<'f> {
    finder: &'f RoleFinder,
    list: Vec<Allocation>,
}

impl Sink for Followed<'_> {
    fn ended(&mut self, life: &Life, of: &Waiting, freed: Option<FreedAt>) {
        self.list.push(self.finder.decide(life, of, freed));
    }
}

/// An allocation that is live.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    key: Key,
    live: Live,
    made_offset: u64,
    class: StackClass,
    older: bool,
    born: TrainingProgress,
}

/// An allocation that was freed since the last allocation.
#[derive(Clone, Copy, Debug)]
struct Freed {
    of: Waiting,
    at: FreedAt,
    /// The thread that allocated it freed it.
    same_thread: bool,
}

impl Waiting {
    fn life(&self, ended: TrainingProgress, end: End) -> Life {
        let Waiting { class, older, born, .. } = *self;
        Life { class, born, older, ended, end }
    }

    fn site(&self) -> StackAndSize {
        StackAndSize { stack: self.live.stack, bytes: self.live.size }
    }
}

#[derive(Clone, Debug, Default)]
struct Follower<C, F> {
    classes: C,
    progress: TrainingProgress,
    live: Slots<Waiting>,
    /// Freed since the last allocation: the next one gives the phase.
    freed: Vec<Freed>,
    sink: F,
}

impl<C: Borrow<StackClasses>, F: Sink> Follower<C, F> {
    fn new(classes: C, sink: F) -> Follower<C, F> {
        let progress = TrainingProgress::default();
        Follower { classes, progress, live: Slots::default(), freed: Vec::new(), sink }
    }

    fn allocated(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        if !live.is_device_memory() {
            return;
        }
        // The driver refused the free: the allocation is live again.
        if how == AllocCause::FreeFailed {
            let back = self.freed.iter().rposition(|freed| freed.of.key == key);
            if let Some(back) = back {
                let of = self.freed.swap_remove(back).of;
                let again = Live { slot: live.slot, ..of.live };
                self.live.insert(live, Waiting { live: again, ..of });
                return;
            }
        }
        let class = match live.kind {
            Kind::Graph => StackClass::Is(Role::GraphMemory),
            _ if live.stack == StackId(0) => StackClass::Unknown,
            _ => self.classes.borrow().get(live.stack),
        };
        let older = how == AllocCause::Checkpoint;
        if !older {
            let ended = self.progress;
            self.progress.step(class);
            self.end_freed(ended, Some(class.phase().unwrap_or(self.progress.phase)));
        }
        let waiting = Waiting {
            key,
            live: *live,
            made_offset: if older { 0 } else { at.offset },
            class,
            older,
            born: self.progress,
        };
        self.live.insert(live, waiting);
    }

    fn freed(&mut self, at: &Stamped, live: &Live, how: FreeCause) {
        let Some(place) = self.live.place(live) else { return };
        let Some(of) = place else { return };
        let same_thread = of.live.thread == at.thread || of.live.thread == ThreadId(0);
        let at = FreedAt { time_ns: at.time_ns, offset: at.offset };
        match how {
            FreeCause::Freed => self.freed.push(Freed { of: *of, at, same_thread }),
            // These ends tell nothing about the purpose of the memory.
            FreeCause::WithContext | FreeCause::Replaced | FreeCause::WithMemory => {
                self.sink.ended(&of.life(self.progress, End::NotSeen), of, Some(at));
            }
        }
        *place = None;
    }

    /// Reports the frees since the last allocation. `ended`: the progress at them, which allocations alone change. `next`: the
    /// phase of the next allocation, if there is one.
    fn end_freed(&mut self, ended: TrainingProgress, next: Option<StepPart>) {
        for Freed { of, at, same_thread } in &self.freed {
            let end = End::Freed { same_thread: *same_thread, next };
            self.sink.ended(&of.life(ended, end), of, Some(*at));
        }
        self.freed.clear();
    }

    /// Reports all allocations: the trace ends here, or events are missing.
    fn end_all(&mut self) {
        self.end_freed(self.progress, None);
        for of in self.live.take_all() {
            self.sink.ended(&of.life(self.progress, End::NotSeen), &of, None);
        }
    }
}

impl<C: Borrow<StackClasses>, F: Sink> Observer for Follower<C, F> {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.allocated(at, key, live, how);
    }

    fn on_free(&mut self, at: &Stamped, _key: Key, live: &Live, how: FreeCause) {
        self.freed(at, live, how);
    }

    /// The blocks of a segment have roles, the segment has none.
    fn on_segment(&mut self, _at: &Stamped, _key: Key, live: &Live) {
        self.live.remove(live);
    }

    /// The role follows from the stack that allocated the memory first, not from the call that mapped it
    /// again.
    fn on_wake(&mut self, _at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        let of = object.and_then(|object| self.live.get_mut(object));
        let (Some(woken), Some(of)) = (mapping.woken, of) else { return };
        let stack = woken.owner.stack;
        if stack != of.live.stack {
            of.live.stack = stack;
            of.class = match stack {
                StackId(0) => StackClass::Unknown,
                stack => self.classes.borrow().get(stack),
            };
        }
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        self.sink.device_changed(at, device, state);
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        self.end_all();
        self.sink.events_are_missing();
    }
}
