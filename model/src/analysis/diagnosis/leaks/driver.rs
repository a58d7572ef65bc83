//! What the driver holds for itself: bytes by cause and stack, the executable graphs of each stack, and the bytes of a device
//! that have no name; and the verdicts on it. Memory is bounded by the number of stacks and of live executable graphs.
//!
//! A server that captures its graphs once, a cache that fills, and a compiler that loads code for each new shape grow
//! too, and stop. So a graph counts as leaked only if it looks used up: it was launched at once, a graph with as many
//! nodes was instantiated after it by the same stack, and it was never launched again. All other causes must grow at a
//! steady pace, in many steps, with nothing given back.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, DriverCause, StackId, Stamped, Took};

use super::observer::{GrowthObserver, TIME_SHIFT};
use super::series::{Series, shift_for};
use super::trend::trend;
use super::verdict::{DriverMemory, Leak, LeakReason, headroom};
use crate::analysis::Level;
use crate::replay::{DeviceState, ExecGraph, GraphChange, State};
use crate::trace::Definitions;

/// The bytes of one cause and stack, or those of a device that have no name.
#[derive(Clone, Debug)]
pub struct DriverHistory {
    pub bytes: u64,
    /// Times that the driver took memory, and that it gave some back.
    pub taken: u64,
    pub given: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    /// The last time that the driver took memory.
    pub last_taken_ns: u64,
    /// The highest number of bytes, and the executable graphs of the stack at that moment.
    pub most: u64,
    pub graphs_at_most: u64,
    /// Bytes over time, ns since `first_ns`.
    pub time: Series,
}

impl DriverHistory {
    fn new(first_ns: u64, bytes: u64) -> DriverHistory {
        DriverHistory {
            bytes,
            taken: 0,
            given: 0,
            first_ns,
            last_ns: first_ns,
            last_taken_ns: first_ns,
            most: bytes,
            graphs_at_most: 0,
            time: Series::new(TIME_SHIFT, bytes),
        }
    }

    /// `graphs`: the executable graphs of the stack that are kept.
    fn set(&mut self, time_ns: u64, bytes: u64, graphs: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.last_ns = time_ns;
        if bytes > before {
            self.taken += 1;
            self.last_taken_ns = time_ns;
        }
        self.given += u64::from(bytes < before);
        if bytes >= self.most {
            // The driver may take more while graphs are destroyed, and give back only later.
            (self.most, self.graphs_at_most) = (bytes, graphs.max(self.graphs_at_most));
        }
        self.time.change(time_ns.saturating_sub(self.first_ns), before, bytes);
    }
}

/// What is counted of the executable graphs of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCounts {
    pub kept: u64,
    /// Different numbers of nodes of those that are kept.
    pub sizes: u64,
    /// First launched before the second next graph of the stack was instantiated.
    pub launched_at_once: u64,
    /// Launched after a later graph with as many nodes was instantiated.
    pub launched_again: u64,
}

#[derive(Clone, Copy, Debug)]
struct KeptGraph {
    /// The graphs of its stack that were instantiated up to it.
    index: u64,
    launched_at_once: bool,
    launched_again: bool,
}

/// The executable graphs of one stack.
#[derive(Clone, Debug)]
pub struct GraphHistory {
    pub made: u64,
    pub first_ns: u64,
    pub last_made_ns: u64,
    pub counts: GraphCounts,
    /// The counts when the first graph after the last instantiation was destroyed, and when.
    held: Option<(u64, GraphCounts)>,
    /// Kept graphs over time, ns since `first_ns`.
    pub time: Series,
    live: FxHashMap<u64, KeptGraph>,
    by_nodes: FxHashMap<u32, u64>,
}

impl GraphHistory {
    /// The counts at the end of the program's work: before the graphs that were destroyed then, if the work went on
    /// for less than `rest_ns` after the first of them. The time is that of the first of them, or the end.
    pub fn before_end(&self, end_ns: u64, rest_ns: u64) -> (u64, GraphCounts) {
        match self.held {
            Some((first_ns, counts)) if end_ns.saturating_sub(first_ns) <= rest_ns => {
                (first_ns.min(end_ns), counts)
            }
            _ => (end_ns, self.counts),
        }
    }

    /// From the first to the last instantiation.
    pub fn span_ns(&self) -> u64 {
        self.last_made_ns.saturating_sub(self.first_ns)
    }

    fn change(&mut self, time_ns: u64, before: u64) {
        let at = time_ns.saturating_sub(self.first_ns);
        self.time.change(at, before, self.counts.kept);
    }

    fn made(&mut self, at: &Stamped, graph: &ExecGraph) {
        let before = self.counts.kept;
        self.held = None;
        self.made += 1;
        self.last_made_ns = at.time_ns;
        self.counts.kept += 1;
        let same = self.by_nodes.entry(graph.nodes).or_default();
        self.counts.sizes += u64::from(*same == 0);
        *same += 1;
        let kept = KeptGraph { index: self.made, launched_at_once: false, launched_again: false };
        self.live.insert(graph.number, kept);
        self.change(at.time_ns, before);
    }

    fn launched(&mut self, graph: &ExecGraph, again: bool) {
        let Some(kept) = self.live.get_mut(&graph.number) else { return };
        if again {
            self.counts.launched_again += u64::from(!kept.launched_again);
            kept.launched_again = true;
        } else if self.made - kept.index < 2 {
            self.counts.launched_at_once += u64::from(!kept.launched_at_once);
            kept.launched_at_once = true;
        }
    }

    fn ended(&mut self, at: &Stamped, graph: &ExecGraph) {
        let Some(gone) = self.live.remove(&graph.number) else { return };
        self.held.get_or_insert((at.time_ns, self.counts));
        let before = self.counts.kept;
        let counts = &mut self.counts;
        counts.kept -= 1;
        counts.launched_at_once -= u64::from(gone.launched_at_once);
        counts.launched_again -= u64::from(gone.launched_again);
        if let Some(same) = self.by_nodes.get_mut(&graph.nodes) {
            *same -= 1;
            if *same == 0 {
                self.by_nodes.remove(&graph.nodes);
                self.counts.sizes -= 1;
            }
        }
        self.change(at.time_ns, before);
    }
}

#[derive(Clone, Debug, Default)]
pub struct DriverHeld {
    pub from_ns: Option<u64>,
    /// By cause; without one, the bytes in NVML's figure that have no name, at each sample.
    pub holders: BTreeMap<(DeviceId, Option<DriverCause>, StackId), DriverHistory>,
    pub graphs: BTreeMap<(DeviceId, StackId), GraphHistory>,
    /// The time of the last sample of each device that was counted.
    sampled: BTreeMap<DeviceId, u64>,
}

impl DriverHeld {
    pub fn took(&mut self, at: &Stamped, took: &Took) {
        self.from_ns.get_or_insert(at.time_ns);
        let graphs = match took.cause {
            DriverCause::Graphs => self.graphs.get(&(took.device, took.stack)),
            _ => None,
        };
        let kept = graphs.map_or(0, |graphs| graphs.counts.kept);
        let key = (took.device, Some(took.cause), took.stack);
        let history = self.holders.entry(key).or_insert_with(|| DriverHistory::new(at.time_ns, 0));
        history.set(at.time_ns, history.bytes.saturating_add_signed(took.delta), kept);
    }

    /// The contexts of each stack, together.
    pub fn contexts(&mut self, at: &Stamped, device: DeviceId, state: &State) {
        let mut sums: BTreeMap<StackId, u64> = BTreeMap::new();
        for (_, of, bytes) in state.contexts().filter(|(_, of, _)| of.device == device) {
            *sums.entry(of.stack).or_default() += bytes;
        }
        self.from_ns.get_or_insert(at.time_ns);
        for (stack, bytes) in sums {
            let history = self.holders.entry((device, Some(DriverCause::Context), stack));
            let history = history.or_insert_with(|| DriverHistory::new(at.time_ns, 0));
            history.set(at.time_ns, bytes, 0);
        }
    }

    pub fn graph(&mut self, at: &Stamped, graph: &ExecGraph, change: GraphChange) {
        self.from_ns.get_or_insert(at.time_ns);
        let history =
            self.graphs.entry((graph.device, graph.stack)).or_insert_with(|| GraphHistory {
                made: 0,
                first_ns: at.time_ns,
                last_made_ns: at.time_ns,
                counts: GraphCounts::default(),
                held: None,
                time: Series::new(TIME_SHIFT, 0),
                live: FxHashMap::default(),
                by_nodes: FxHashMap::default(),
            });
        match change {
            GraphChange::Made => history.made(at, graph),
            GraphChange::Launched => history.launched(graph, false),
            GraphChange::LaunchedAgain => history.launched(graph, true),
            GraphChange::Ended => history.ended(at, graph),
        }
    }

    /// The state after an event: what a new sample of NVML does not explain.
    pub fn sampled(&mut self, device: DeviceId, state: &DeviceState) {
        let Some(sample) = state.sample else { return };
        if self.sampled.insert(device, sample.time_ns) == Some(sample.time_ns) {
            return;
        }
        let Some(rest) = sample.unattributed() else { return };
        let named = sample.driver_own.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let bytes = rest.saturating_sub_unsigned(named).max(0) as u64;
        let history = self.holders.entry((device, None, StackId(0)));
        let history = history.or_insert_with(|| DriverHistory::new(sample.time_ns, bytes));
        history.set(sample.time_ns, bytes, 0);
    }

    /// Events are missing before this state.
    pub fn resume(&mut self, at: &Stamped, state: &State) {
        for (device, sums) in &state.devices {
            for (maker, bytes) in sums.driver_own.makers() {
                let delta = i64::try_from(bytes).unwrap_or(i64::MAX);
                let (cause, site, stack, name) = (maker.cause, maker.site, maker.stack, maker.name);
                self.took(at, &Took { device: *device, cause, delta, site, stack, name });
            }
        }
    }
}

/// Fewer kept graphs of one number of nodes are a cache that is cold. (Of a cache of 200 shapes in random order, one is
/// launched again before 40 are made, in 98 of 100 runs.)
const MIN_SAME: u64 = 40;
/// Graphs with ever other numbers of nodes, or steps of another cause: a compiler has fewer shapes.
const MIN_NEW: u64 = 256;
/// Contexts of one line that are kept.
const MIN_CONTEXTS: u64 = 16;
/// Maximum part of the kept graphs that were launched again: one of so many. Below [`MIN_SAME`] times this, none.
const AGAIN_OF: u64 = 50;
/// So many of 10 were launched at once.
const AT_ONCE_OF_10: u64 = 9;
/// Shorter bursts are a start, whatever they hold.
const MIN_SPAN_NS: u64 = 2_000_000_000;
/// Time after the last event of work that counts as the process's end: as a part of the time before it, or no longer than
/// an interpreter needs for its end. (On an H100 a program of PyTorch with 60 graphs needs 1.1 s.)
const TEARDOWN: f64 = 0.15;
const TEARDOWN_NS: u64 = 2_000_000_000;
/// Growth of graphs has stopped if none was instantiated for one part in so many of the time in which they were.
const STOPPED_PART: u64 = 4;
/// Of fewer kept graphs it is not said that their bytes are not known.
const MENTIONED: u64 = 8;
/// Bytes without a name: the least growth, rises and observed time of a verdict.
const UNNAMED_BYTES: u64 = 16 << 20;
const UNNAMED_RISES: usize = 12;
const UNNAMED_SPAN_NS: u64 = 30_000_000_000;

struct Subject<'a> {
    held: &'a DriverHeld,
    state: &'a State,
    definitions: &'a Definitions,
    /// The last event that is no part of the process's end.
    end_ns: u64,
}

/// The leaks, and whether graphs are kept whose bytes are not known.
pub(super) fn judge(
    observer: &GrowthObserver,
    state: &State,
    definitions: &Definitions,
    running: bool,
) -> (Vec<Leak>, bool) {
    let held = &observer.driver;
    let allocated = observer.places.values().map(|place| place.last_alloc_ns);
    let made = held.graphs.values().map(|graphs| graphs.last_made_ns);
    // What a context takes is measured later.
    let is_work = |cause: Option<DriverCause>| cause.is_some_and(|it| it != DriverCause::Context);
    let took = held.holders.iter().filter(|((_, cause, _), _)| is_work(*cause));
    let took = took.map(|(_, history)| history.last_taken_ns);
    let last = allocated.chain(made).chain(took).max().unwrap_or(0).min(state.time_ns);
    let from = held.from_ns.unwrap_or(0).min(last);
    let rest = state.time_ns - last;
    let is_short = rest <= TEARDOWN_NS || rest as f64 <= TEARDOWN * (last - from) as f64;
    let is_end = !running && is_short;
    let end_ns = if is_end { last } else { state.time_ns };
    let subject = Subject { held, state, definitions, end_ns };
    let kept = |graphs: &GraphHistory| graphs.before_end(end_ns, u64::MAX).1.kept;
    let mut samples = state.devices.values().filter_map(|device| device.sample);
    let has_figure = samples.any(|at| at.sample.process_bytes.is_some());
    let is_unknown = !has_figure && held.graphs.values().any(|graphs| kept(graphs) >= MENTIONED);
    let graphs = held.graphs.iter().filter_map(|(at, graphs)| subject.graphs(*at, graphs));
    let others = held.holders.iter().filter_map(|(at, history)| subject.others(*at, history));
    (graphs.chain(others).collect(), is_unknown)
}

impl Subject<'_> {
    fn graphs(&self, (device, stack): (DeviceId, StackId), graphs: &GraphHistory) -> Option<Leak> {
        let bytes = self.held.holders.get(&(device, Some(DriverCause::Graphs), stack))?;
        let span_ns = graphs.span_ns();
        let rest_ns = span_ns / STOPPED_PART;
        let (until_ns, counts) = graphs.before_end(self.end_ns, rest_ns);
        let mut kept = shape(&graphs.time, span_ns);
        // The last bin may have the first graphs that were destroyed at the end.
        if graphs.counts != counts {
            kept.pop();
        }
        let same = counts.kept - counts.sizes.min(counts.kept);
        let again = match counts.kept < 2 * MIN_SAME {
            true => counts.launched_again > 0,
            false => counts.launched_again > counts.kept / AGAIN_OF,
        };
        let at_once = counts.launched_at_once * 10 >= counts.kept.saturating_sub(1) * AT_ONCE_OF_10;
        let enough = same + 1 >= MIN_SAME || counts.kept > MIN_NEW;
        let stopped = until_ns.saturating_sub(graphs.last_made_ns) > rest_ns;
        if stopped || again || !at_once || !enough || span_ns < MIN_SPAN_NS || !is_steady(kept) {
            return None;
        }
        let freed = graphs.counts.kept * 2 < counts.kept;
        let each = bytes.most / bytes.graphs_at_most.max(1);
        let seconds = span_ns as f64 / 1e9;
        let rate = each as f64 * counts.kept.saturating_sub(1) as f64 / seconds.max(1e-9);
        let leak = Leak {
            // The context's end destroys all of them in any case.
            bytes: if freed { bytes.most } else { bytes.bytes },
            count: counts.kept,
            rate: Some(rate),
            driver: Some(DriverMemory { cause: Some(DriverCause::Graphs), each: Some(each) }),
            allocations: graphs.made,
            frees: graphs.made - graphs.counts.kept,
            confidence: 1.0 - 4.0 / counts.kept.max(5) as f64,
            because: LeakReason::GraphsKept { same, again: counts.launched_again },
            shape: shape(&bytes.time, bytes.last_ns.saturating_sub(bytes.first_ns)),
            ..Leak::of(Level::Driver, device, stack)
        };
        Some(leak.with_room(headroom(self.state, self.definitions, device)))
    }

    /// Streams, code, contexts, graphs of several lines, and bytes in NVML's figure that no call and no allocation explains: a
    /// steady pace in many steps.
    fn others(
        &self,
        (device, cause, stack): (DeviceId, Option<DriverCause>, StackId),
        history: &DriverHistory,
    ) -> Option<Leak> {
        let end_ns = if cause.is_some() { self.end_ns } else { history.last_ns };
        let length = end_ns.saturating_sub(history.first_ns);
        let shape = shape(&history.time, length);
        let contexts = self.state.contexts();
        let times = match cause {
            Some(DriverCause::Context) => contexts
                .filter(|(_, of, _)| (of.device, of.stack) == (device, stack))
                .count() as u64,
            _ => history.taken,
        };
        let confidence = match cause {
            Some(DriverCause::Graphs) if self.held.graphs.contains_key(&(device, stack)) => {
                return None;
            }
            Some(DriverCause::Graphs | DriverCause::Streams | DriverCause::Modules) => {
                let is_long = length >= MIN_SPAN_NS;
                (history.taken > MIN_NEW && history.given == 0 && is_long).then_some(0.9)
            }
            // A process has one on each card that it uses.
            Some(DriverCause::Context) => (times >= MIN_CONTEXTS).then_some(0.9),
            Some(_) => None,
            None => {
                let trend = trend(&shape, history.bytes).filter(|trend| {
                    trend.rises.len() >= UNNAMED_RISES && trend.risen >= UNNAMED_BYTES
                });
                let trend = trend.filter(|_| length >= UNNAMED_SPAN_NS);
                trend.map(|trend| trend.tau * trend.straight.sqrt())
            }
        };
        let confidence = confidence.filter(|_| is_steady(shape.clone()))?;
        let seconds = history.last_ns.saturating_sub(history.first_ns) as f64 / 1e9;
        let grown = history.bytes.saturating_sub(*shape.first()?);
        let leak = Leak {
            bytes: history.bytes,
            rate: Some(grown as f64 / seconds.max(1e-9)),
            driver: Some(DriverMemory { cause, each: None }),
            allocations: times,
            confidence,
            because: LeakReason::DriverTook { times },
            shape,
            ..Leak::of(Level::Driver, device, stack)
        };
        Some(leak.with_room(headroom(self.state, self.definitions, device)))
    }
}

fn shape(time: &Series, length_ns: u64) -> Vec<u64> {
    time.lowest(length_ns, shift_for(length_ns, TIME_SHIFT).max(time.shift()))
}

/// Whether the floor of these values, the lowest from each moment on, rises as much in the last quarter of the time as in the
/// third, or nearly; and in the last half by no small rest of all.
fn is_steady(mut floor: Vec<u64>) -> bool {
    for at in (1..floor.len()).rev() {
        floor[at - 1] = floor[at - 1].min(floor[at]);
    }
    let at =
        |part: usize| floor.get(floor.len().saturating_sub(1) * part / 4).copied().unwrap_or(0);
    let (all, third, last) = (at(4) - at(0), at(3) - at(2), at(4) - at(3));
    last > 0 && last >= third / 5 * 3 && third + last >= all / 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::{ContextId, Event, SiteId, ThreadId};

    /// On an H100 the driver took 4 MiB while the graphs were destroyed, and gave back only later.
    #[test]
    fn what_the_driver_takes_while_graphs_are_destroyed_is_of_all_of_them() {
        let (device, stack) = (DeviceId(0), StackId(1));
        let at = Stamped { offset: 0, time_ns: 1, thread: ThreadId(1), event: Event::Anchor };
        let graph = |number| ExecGraph {
            number,
            device,
            context: ContextId(1),
            site: SiteId(1),
            stack,
            nodes: 9,
        };
        let took = |delta| Took {
            device,
            cause: DriverCause::Graphs,
            site: SiteId(1),
            stack,
            delta,
            name: 0,
        };
        let mut held = DriverHeld::default();
        for number in 0..4 {
            held.graph(&at, &graph(number), GraphChange::Made);
            held.took(&at, &took(10));
        }
        for number in 0..3 {
            held.graph(&at, &graph(number), GraphChange::Ended);
        }
        held.took(&at, &took(4));
        let history = &held.holders[&(device, Some(DriverCause::Graphs), stack)];
        assert_eq!((history.most, history.graphs_at_most), (44, 4));
        held.took(&at, &took(-44));
        assert_eq!(held.holders[&(device, Some(DriverCause::Graphs), stack)].graphs_at_most, 4);
    }
}
