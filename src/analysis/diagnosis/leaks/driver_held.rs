//! Records what the driver holds for itself: bytes by cause and stack, the executable graphs of each stack, and the
//! bytes of a device that have no name. Memory is bounded by the number of stacks and of live executable graphs.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{Cause, DeviceId, StackId, Stamped, Took};

use super::observer::{ACTIVITY_SHIFT, TIME_SHIFT};
use super::series::Series;
use crate::replay::{DeviceState, ExecGraph, GraphChange, State};

/// The bytes of one cause and stack.
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
    /// The most bytes, and the executable graphs of the stack at that moment.
    pub most: u64,
    pub graphs_at_most: u64,
    /// Bytes over time, ns since `first_ns`.
    pub time: Series,
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

/// The bytes of a device in NVML's figure that have no name, at each sample.
#[derive(Clone, Debug)]
pub struct UnnamedHistory {
    pub bytes: u64,
    pub samples: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    pub time: Series,
    pub activity: Series,
}

#[derive(Clone, Debug, Default)]
pub struct DriverHeld {
    pub from_ns: Option<u64>,
    pub holders: BTreeMap<(DeviceId, Cause, StackId), DriverHistory>,
    pub graphs: BTreeMap<(DeviceId, StackId), GraphHistory>,
    pub unnamed: BTreeMap<DeviceId, UnnamedHistory>,
    /// The time of the last sample of each device that was counted.
    sampled: BTreeMap<DeviceId, u64>,
}

impl DriverHeld {
    pub fn took(&mut self, at: &Stamped, took: &Took) {
        self.from_ns.get_or_insert(at.time_ns);
        let graphs = match took.cause {
            Cause::Graphs => self.graphs.get(&(took.device, took.stack)),
            _ => None,
        };
        let kept = graphs.map_or(0, |graphs| graphs.counts.kept);
        let key = (took.device, took.cause, took.stack);
        let history = self.holders.entry(key).or_insert_with(|| DriverHistory {
            bytes: 0,
            taken: 0,
            given: 0,
            first_ns: at.time_ns,
            last_ns: at.time_ns,
            last_taken_ns: at.time_ns,
            most: 0,
            graphs_at_most: 0,
            time: Series::new(TIME_SHIFT, 0),
        });
        let before = history.bytes;
        history.bytes = before.saturating_add_signed(took.delta);
        match took.delta > 0 {
            true => {
                history.taken += 1;
                history.last_taken_ns = at.time_ns;
            }
            false => history.given += 1,
        }
        history.last_ns = at.time_ns;
        if history.bytes >= history.most {
            // The driver may take more while graphs are destroyed, and give back only later.
            (history.most, history.graphs_at_most) =
                (history.bytes, kept.max(history.graphs_at_most));
        }
        history.time.change(at.time_ns.saturating_sub(history.first_ns), before, history.bytes);
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
        let history = self.unnamed.entry(device).or_insert_with(|| UnnamedHistory {
            bytes,
            samples: 0,
            first_ns: sample.time_ns,
            last_ns: sample.time_ns,
            time: Series::new(TIME_SHIFT, bytes),
            activity: Series::new(ACTIVITY_SHIFT, bytes),
        });
        let time = sample.time_ns.saturating_sub(history.first_ns);
        history.time.change(time, history.bytes, bytes);
        history.activity.change(history.samples, history.bytes, bytes);
        history.samples += 1;
        (history.bytes, history.last_ns) = (bytes, sample.time_ns);
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
        let took =
            |delta| Took { device, cause: Cause::Graphs, site: SiteId(1), stack, delta, name: 0 };
        let mut held = DriverHeld::default();
        for number in 0..4 {
            held.graph(&at, &graph(number), GraphChange::Made);
            held.took(&at, &took(10));
        }
        for number in 0..3 {
            held.graph(&at, &graph(number), GraphChange::Ended);
        }
        held.took(&at, &took(4));
        let history = &held.holders[&(device, Cause::Graphs, stack)];
        assert_eq!((history.most, history.graphs_at_most), (44, 4));
        held.took(&at, &took(-44));
        assert_eq!(held.holders[&(device, Cause::Graphs, stack)].graphs_at_most, 4);
    }
}
