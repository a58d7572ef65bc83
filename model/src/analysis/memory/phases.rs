//! Phases that the program marked with NVTX ranges: allocations, frees and peak of each.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use vramtrace_format::{DeviceId, Mark, Stamped, ThreadId};

use crate::facts;
use crate::replay::{AllocCause, DeviceState, FreeCause, Key, Live, Observer, Until};
use crate::trace::{Definitions, Trace};

/// One phase: all ranges with the same name, nested in ranges with the same names.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Phase {
    /// Names of the ranges, outermost first: `epoch`, `forward`.
    pub path: Vec<String>,
    /// Number of ranges.
    pub times: u64,
    /// Sum of the ranges' durations.
    #[serde(rename = "seconds", with = "facts::Seconds")]
    pub duration_ns: u64,
    /// Begin of the first range, since the start of the trace.
    #[serde(rename = "first_s", with = "facts::Seconds")]
    pub first_ns: u64,
    #[serde(serialize_with = "facts::devices")]
    #[cfg_attr(feature = "schemas", schemars(with = "Vec<facts::OfDevice<InPhase>>"))]
    pub devices: BTreeMap<DeviceId, InPhase>,
}

/// The memory of one device in a phase, in bytes. A range of a thread (push and pop) counts the calls of
/// that thread; a range that any thread may end (start and end) counts those of all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct InPhase {
    /// The highest live bytes of the device during the phase, of all threads.
    pub peak_bytes: u64,
    /// The same without what is free in a framework's cache: phases under one plateau of the cache differ by it.
    pub peak_allocated_bytes: u64,
    pub allocated_bytes: u64,
    pub freed_bytes: u64,
    /// Bytes that were allocated in a range and live at its end.
    pub stayed_bytes: u64,
}

impl InPhase {
    fn reached(&mut self, (live, allocated): (u64, u64)) {
        self.peak_bytes = self.peak_bytes.max(live);
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(allocated);
    }
}

#[derive(Debug)]
struct OpenRange {
    phase: usize,
    name: u32,
    /// `None`: a range of no thread.
    thread: Option<ThreadId>,
    began_ns: u64,
    kept: BTreeMap<DeviceId, u64>,
}

/// The phases of a trace.
#[derive(Debug, Default)]
pub struct Phases {
    /// In the order of their first begin; nested phases follow the enclosing one. Empty: the program marked no range.
    pub phases: Vec<Phase>,
    /// Ranges that are counted up to a moment before their end, because [`MAX_OPEN_RANGES`] others were open.
    pub cut: u64,
}

/// Ranges that are nested deeper are ignored.
const DEEPEST: usize = 64;
/// Maximum number of open ranges of threads, and as many of no thread: each event is counted in all of them. Where more are
/// open, as in a program that does not end its ranges, the oldest one is closed.
pub const MAX_OPEN_RANGES: usize = 256;

#[derive(Debug)]
struct PhaseObserver<'d> {
    definitions: &'d Definitions,
    phases: Vec<Phase>,
    /// Indexes of phases, by the enclosing phase and the name.
    known: FxHashMap<(Option<usize>, u32), usize>,
    open: Vec<OpenRange>,
    cut: u64,
    ignored: IgnoredRanges,
    /// Live bytes, and those without what is free in a cache.
    live: BTreeMap<DeviceId, (u64, u64)>,
    /// Segments of frameworks: their blocks are counted instead.
    segments: FxHashSet<Key>,
}

/// All phases of a trace.
pub fn phases(trace: &Trace, definitions: &Definitions) -> Phases {
    let mut observer = PhaseObserver::new(definitions);
    let reading = trace.replay_until(definitions, Until::End, &mut observer, &mut |_, _| {});
    while let Some(open) = observer.open.pop() {
        observer.close(open, reading.state.time_ns);
    }
    let (mut phases, cut) = (observer.phases, observer.cut);
    // Nested phases follow the enclosing one.
    let firsts: BTreeMap<Vec<String>, u64> =
        phases.iter().map(|phase| (phase.path.clone(), phase.first_ns)).collect();
    phases.sort_by_cached_key(|phase| {
        let place = |depth: usize| {
            let path = &phase.path[..depth];
            (firsts.get(path).copied().unwrap_or(0), path[depth - 1].clone())
        };
        (1..=phase.path.len()).map(place).collect::<Vec<_>>()
    });
    Phases { phases, cut }
}

impl<'d> PhaseObserver<'d> {
    fn new(definitions: &'d Definitions) -> PhaseObserver<'d> {
        PhaseObserver {
            definitions,
            phases: Vec::new(),
            known: FxHashMap::default(),
            open: Vec::new(),
            cut: 0,
            ignored: IgnoredRanges::default(),
            live: BTreeMap::new(),
            segments: FxHashSet::default(),
        }
    }

    fn begin(&mut self, at: &Stamped, name: u32, thread: Option<ThreadId>) {
        let around = self.open.iter().rev().find(|open| open.thread == thread);
        let around = around.filter(|_| thread.is_some()).map(|open| open.phase);
        let path = around.map_or(&[][..], |around| &self.phases[around].path);
        if path.len() >= DEEPEST || self.ignored.has(thread, name) {
            self.ignored.begin(thread, name);
            return;
        }
        let text = self.definitions.text(name).unwrap_or("(no name)").to_string();
        let path: Vec<String> = path.iter().cloned().chain([text]).collect();
        let phase = *self.known.entry((around, name)).or_insert_with(|| {
            self.phases.push(Phase {
                path,
                times: 0,
                duration_ns: 0,
                first_ns: at.time_ns,
                devices: BTreeMap::new(),
            });
            self.phases.len() - 1
        });
        self.phases[phase].times += 1;
        for (device, held) in &self.live {
            self.phases[phase].devices.entry(*device).or_default().reached(*held);
        }
        let began_ns = at.time_ns;
        self.make_room(at, thread.is_some());
        self.open.push(OpenRange { phase, name, thread, began_ns, kept: BTreeMap::new() });
    }

    /// Of the ranges of threads, or of no thread. The ends of ranges with one name come for the younger ones first, so
    /// that of a closed one comes last, and ends nothing.
    fn make_room(&mut self, at: &Stamped, of_threads: bool) {
        let mut same =
            (0..self.open.len()).filter(|at| self.open[*at].thread.is_some() == of_threads);
        if let Some(oldest) = same.next()
            && same.count() + 1 >= MAX_OPEN_RANGES
        {
            let open = self.open.remove(oldest);
            self.close(open, at.time_ns);
            self.cut += 1;
        }
    }

    fn end(&mut self, at: &Stamped, which: impl Fn(&OpenRange) -> bool) {
        if let Some(index) = self.open.iter().rposition(which) {
            let open = self.open.remove(index);
            self.close(open, at.time_ns);
        }
    }

    fn close(&mut self, open: OpenRange, now_ns: u64) {
        let phase = &mut self.phases[open.phase];
        let duration_ns = now_ns.saturating_sub(open.began_ns);
        phase.duration_ns = phase.duration_ns.saturating_add(duration_ns);
        for (device, bytes) in open.kept {
            let sums = phase.devices.entry(device).or_default();
            sums.stayed_bytes = sums.stayed_bytes.saturating_add(bytes);
        }
    }

    fn count_alloc(&mut self, at: &Stamped, live: &Live, how: AllocCause) {
        // The other causes add memory that was allocated before.
        if how != AllocCause::Allocated || !live.is_device_memory() {
            return;
        }
        let bytes = live.share();
        for open in self.open.iter_mut().filter(|open| is_of(open, at.thread)) {
            let sums = self.phases[open.phase].devices.entry(live.device).or_default();
            sums.allocated_bytes = sums.allocated_bytes.saturating_add(bytes);
            let kept = open.kept.entry(live.device).or_default();
            *kept = kept.saturating_add(bytes);
        }
    }

    fn count_free(&mut self, at: &Stamped, live: &Live) {
        if !live.is_device_memory() {
            return;
        }
        let bytes = live.share();
        for open in &mut self.open {
            if is_of(open, at.thread) {
                let sums = self.phases[open.phase].devices.entry(live.device).or_default();
                sums.freed_bytes = sums.freed_bytes.saturating_add(bytes);
            }
            // Memory that was allocated in this range, freed by any thread.
            if is_of(open, live.thread)
                && live.time_ns >= open.began_ns
                && let Some(kept) = open.kept.get_mut(&live.device)
            {
                *kept = kept.saturating_sub(bytes);
            }
        }
    }
}

fn is_of(open: &OpenRange, thread: ThreadId) -> bool {
    open.thread.is_none_or(|of| of == thread)
}

impl Observer for PhaseObserver<'_> {
    fn on_alloc(&mut self, at: &Stamped, _key: Key, live: &Live, how: AllocCause) {
        self.count_alloc(at, live, how);
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if !self.segments.remove(&key) {
            self.count_free(at, live);
        }
    }

    fn on_segment(&mut self, _at: &Stamped, key: Key, live: &Live) {
        if !self.segments.insert(key) {
            return;
        }
        // Takes back what `count_alloc` added in the ranges that are open.
        for open in self.open.iter_mut().filter(|open| is_of(open, live.thread)) {
            if live.time_ns < open.began_ns {
                continue;
            }
            let sums = self.phases[open.phase].devices.entry(live.device).or_default();
            sums.allocated_bytes = sums.allocated_bytes.saturating_sub(live.share());
            if let Some(kept) = open.kept.get_mut(&live.device) {
                *kept = kept.saturating_sub(live.share());
            }
        }
    }

    fn on_device_change(&mut self, _at: &Stamped, device: DeviceId, state: &DeviceState) {
        let held = (state.live_bytes, state.allocated_bytes());
        self.live.insert(device, held);
        for open in &self.open {
            self.phases[open.phase].devices.entry(device).or_default().reached(held);
        }
    }

    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        match mark {
            Mark::Push => self.begin(at, name, Some(at.thread)),
            Mark::Pop if self.ignored.end(Some(at.thread), name) => {}
            Mark::Pop => self.end(at, |open| open.thread == Some(at.thread)),
            Mark::Start => self.begin(at, name, None),
            Mark::End if self.ignored.end(None, name) => {}
            Mark::End => self.end(at, |open| open.thread.is_none() && open.name == name),
            Mark::Moment => {}
        }
    }

    /// The ends of the open ranges may be among the missing events.
    fn on_history_gap(&mut self, at: &Stamped) {
        while let Some(open) = self.open.pop() {
            self.close(open, at.time_ns);
        }
        self.ignored = IgnoredRanges::default();
        self.live.clear();
        self.segments.clear();
    }
}

/// Counts the open ranges that are ignored, so that their ends do not end other ranges.
#[derive(Debug, Default)]
pub struct IgnoredRanges {
    /// Ranges of a thread end in the reverse order of their begins, others by name: the key is a thread and
    /// 0, or no thread and the name.
    open: FxHashMap<(Option<ThreadId>, u32), u64>,
}

impl IgnoredRanges {
    /// A range begins that is ignored. `thread`: `None` for a range that any thread may end.
    pub fn begin(&mut self, thread: Option<ThreadId>, name: u32) {
        *self.open.entry(key(thread, name)).or_default() += 1;
    }

    /// Whether the next end of this thread, or of this name, is that of an ignored range. A range that begins
    /// now is to be ignored too, as its end comes first.
    pub fn has(&self, thread: Option<ThreadId>, name: u32) -> bool {
        self.open.get(&key(thread, name)).is_some_and(|open| *open > 0)
    }

    /// A range ends. Returns whether it was an ignored one.
    pub fn end(&mut self, thread: Option<ThreadId>, name: u32) -> bool {
        let open = self.open.get_mut(&key(thread, name)).filter(|open| **open > 0);
        open.is_some_and(|open| {
            *open -= 1;
            true
        })
    }
}

fn key(thread: Option<ThreadId>, name: u32) -> (Option<ThreadId>, u32) {
    (thread, if thread.is_some() { 0 } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::Event;

    #[test]
    fn the_end_of_an_ignored_range_ends_no_other() {
        let definitions = Definitions::default();
        let mut observer = PhaseObserver::new(&definitions);
        let depth = DEEPEST as u64;
        let mut mark = |time_ns, mark| {
            let event = Event::Mark { name: 1, mark };
            let at = Stamped { offset: time_ns, time_ns, thread: ThreadId(7), event };
            observer.on_mark(&at, 1, mark);
        };
        for at in 0..depth + 2 {
            mark(at, Mark::Push);
        }
        for at in 0..depth + 2 {
            mark(1000 + at, Mark::Pop);
        }
        assert_eq!(observer.phases.len(), DEEPEST);
        assert!(observer.open.is_empty());
        // The innermost range ends third, the outermost last.
        assert_eq!(observer.phases[DEEPEST - 1].duration_ns, 1002 - (depth - 1));
        assert_eq!(observer.phases[0].duration_ns, 1001 + depth);
    }

    #[test]
    fn ranges_that_are_never_ended_cost_a_bounded_number_of_steps() {
        let definitions = Definitions::default();
        let mut observer = PhaseObserver::new(&definitions);
        let mut steps = 0;
        let ranges = 20_000;
        for number in 0..ranges {
            let time_ns = u64::from(number);
            // A range of each kind; and one with a name of its own that ends.
            for (name, mark, thread) in [
                (number, Mark::Start, 1),
                (1, Mark::Push, number),
                (ranges + number, Mark::Start, 2),
                (ranges + number, Mark::End, 3),
            ] {
                let event = Event::Mark { name, mark };
                let thread = ThreadId(thread as u16);
                observer.on_mark(&Stamped { offset: 0, time_ns, thread, event }, name, mark);
                steps += observer.open.len();
            }
        }
        assert!(
            steps <= 4 * ranges as usize * 2 * MAX_OPEN_RANGES,
            "{steps} open ranges at all events"
        );
        let ended =
            observer.phases.iter().filter(|phase| phase.times == 1 && phase.duration_ns == 0);
        assert!(ended.count() >= ranges as usize, "ranges that are ended are counted to their end");
        assert_eq!(observer.cut as usize, 2 * (ranges as usize - MAX_OPEN_RANGES) + 1);
    }
}
