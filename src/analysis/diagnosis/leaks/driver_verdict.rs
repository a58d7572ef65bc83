//! Verdicts on what the driver holds for itself: executable graphs that are kept, streams and code that never stop to
//! come, and bytes that have no name.
//!
//! A server that captures its graphs once, a cache that fills, and a compiler that loads code for each new shape grow
//! too, and stop. So a graph counts as leaked only if it looks used up: it was launched at once, a graph with as many
//! nodes was instantiated after it by the same stack, and it was never launched again. All other causes must grow at a
//! steady pace, in many steps, with nothing given back.

use vramtrace_format::{Cause, DeviceId, StackId};

use super::driver_held::{DriverHeld, DriverHistory, GraphCounts, GraphHistory};
use super::growth::{Axes, Left, Strength};
use super::headroom::headroom;
use super::observer::{GrowthObserver, TIME_SHIFT};
use super::series::{Series, shift_for};
use super::verdict::{DriverMemory, KeptGraphs, KeptGraphsReason, Leak, LeakReason};
use crate::analysis::{Level, NamedStack};
use crate::replay::State;
use crate::trace::Definitions;

/// Fewer kept graphs of one number of nodes are a cache that is cold. (Of a cache of 200 shapes in random order, one is
/// launched again before 40 are made, in 98 of 100 runs.)
const LEAST_SAME: u64 = 40;
/// Graphs with ever other numbers of nodes, or steps of another cause: a compiler has fewer shapes.
const LEAST_NEW: u64 = 256;
/// Most graphs that were launched again, of all that are kept: one of so many. Below [`LEAST_SAME`] times this, none.
const AGAIN_OF: u64 = 50;
/// So many of 10 were launched at once.
const AT_ONCE_OF_10: u64 = 9;
/// Shorter bursts are a start, whatever they hold.
const LEAST_SPAN_NS: u64 = 2_000_000_000;
/// Time after the last event of work that counts as the process's end: as a part of the time before it, or no longer than
/// an interpreter needs for its end. (On an H100 a program of PyTorch with 60 graphs needs 1.1 s.)
const TEARDOWN: f64 = 0.15;
const TEARDOWN_NS: u64 = 2_000_000_000;
/// Growth of graphs has stopped if none was instantiated for one part in so many of the time in which they were.
const STOPPED_PART: u64 = 4;
/// Fewer kept graphs are not mentioned.
const MENTIONED: u64 = 8;
/// Bytes without a name: the least growth, rises and observed time of a verdict.
const UNNAMED_BYTES: u64 = 16 << 20;
const UNNAMED_RISES: usize = 12;
const UNNAMED_SPAN_NS: u64 = 30_000_000_000;

#[derive(Default)]
pub(super) struct DriverFindings {
    pub leaks: Vec<Leak>,
    pub held: Vec<KeptGraphs>,
    pub is_unknown: bool,
}

struct Subject<'a> {
    held: &'a DriverHeld,
    state: &'a State,
    definitions: &'a Definitions,
    /// The last event that is no part of the process's end.
    end_ns: u64,
}

pub(super) fn judge(
    observer: &GrowthObserver,
    state: &State,
    definitions: &Definitions,
    running: bool,
) -> DriverFindings {
    let held = &observer.driver;
    let allocated = observer.places.values().map(|place| place.last_alloc_ns);
    let made = held.graphs.values().map(|graphs| graphs.last_made_ns);
    let took = held.holders.values().map(|history| history.last_taken_ns);
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
    let mut found = DriverFindings { is_unknown, ..DriverFindings::default() };
    subject.graphs(&mut found);
    subject.others(&mut found);
    subject.unnamed(&mut found);
    found
}

impl Subject<'_> {
    fn graphs(&self, found: &mut DriverFindings) {
        for ((device, stack), graphs) in &self.held.graphs {
            let Some(bytes) = self.held.holders.get(&(*device, Cause::Graphs, *stack)) else {
                continue;
            };
            let rest_ns = graphs.span_ns() / STOPPED_PART;
            let (until, counts) = graphs.before_end(self.end_ns, rest_ns);
            match self.growing(graphs, counts, until) {
                Ok(()) => found.leaks.push(self.leak_of(*device, *stack, graphs, counts, bytes)),
                Err(why) if graphs.counts.kept >= MENTIONED && bytes.bytes > 0 => {
                    found.held.push(KeptGraphs {
                        why,
                        device: *device,
                        bytes: bytes.bytes,
                        graphs: graphs.counts.kept,
                        stack: NamedStack::without_names(*stack),
                    });
                }
                Err(_) => {}
            }
        }
    }

    fn growing(
        &self,
        graphs: &GraphHistory,
        counts: GraphCounts,
        until_ns: u64,
    ) -> Result<(), KeptGraphsReason> {
        let span_ns = graphs.span_ns();
        if until_ns.saturating_sub(graphs.last_made_ns) > span_ns / STOPPED_PART {
            return Err(KeptGraphsReason::Stopped);
        }
        let mut kept = shape(&graphs.time, span_ns);
        // The last bin may have the first graphs that were destroyed at the end.
        if graphs.counts != counts {
            kept.pop();
        }
        let pace = Pace::of(kept);
        let same = counts.kept - counts.sizes.min(counts.kept);
        let again = match counts.kept < 2 * LEAST_SAME {
            true => counts.launched_again > 0,
            false => counts.launched_again > counts.kept / AGAIN_OF,
        };
        if again {
            return Err(KeptGraphsReason::Reused);
        }
        let at_once = counts.launched_at_once * 10 >= counts.kept.saturating_sub(1) * AT_ONCE_OF_10;
        let enough = same + 1 >= LEAST_SAME || counts.kept > LEAST_NEW;
        let long = span_ns >= LEAST_SPAN_NS;
        match at_once && enough && long && pace.is_steady() {
            true => Ok(()),
            false => Err(KeptGraphsReason::Filling),
        }
    }

    fn leak_of(
        &self,
        device: DeviceId,
        stack: StackId,
        graphs: &GraphHistory,
        counts: GraphCounts,
        bytes: &DriverHistory,
    ) -> Leak {
        let freed = graphs.counts.kept * 2 < counts.kept;
        let each = bytes.most / bytes.graphs_at_most.max(1);
        let seconds = graphs.span_ns() as f64 / 1e9;
        let rate = each as f64 * counts.kept.saturating_sub(1) as f64 / seconds.max(1e-9);
        let same = counts.kept - counts.sizes.min(counts.kept);
        let leak = Leak {
            // The context's end destroys all of them in any case.
            bytes: if freed { bytes.most } else { bytes.bytes },
            count: counts.kept,
            rate: Some(rate),
            allocations: graphs.made,
            frees: graphs.made - graphs.counts.kept,
            confidence: 1.0 - 4.0 / counts.kept.max(5) as f64,
            because: LeakReason::GraphsKept { same, again: counts.launched_again },
            shape: shape(&bytes.time, bytes.last_ns.saturating_sub(bytes.first_ns)),
            ..self.leak(device, stack, Some(Cause::Graphs), Some(each))
        };
        leak.with_room(self.room(device))
    }

    /// Streams, code, and graphs of several lines: a steady pace in many steps.
    fn others(&self, found: &mut DriverFindings) {
        for ((device, cause, stack), history) in &self.held.holders {
            let judged = match cause {
                Cause::Graphs => !self.held.graphs.contains_key(&(*device, *stack)),
                Cause::Streams | Cause::Modules => true,
                _ => false,
            };
            let length = self.end_ns.saturating_sub(history.first_ns);
            let steady = Pace::of(shape(&history.time, length)).is_steady();
            let long = length >= LEAST_SPAN_NS;
            if !judged || history.taken <= LEAST_NEW || history.given > 0 || !steady || !long {
                continue;
            }
            let seconds = history.last_ns.saturating_sub(history.first_ns) as f64 / 1e9;
            let rate = history.bytes as f64 / seconds.max(1e-9);
            let leak = Leak {
                bytes: history.bytes,
                rate: Some(rate),
                allocations: history.taken,
                confidence: 0.9,
                because: LeakReason::DriverTook { times: history.taken },
                shape: shape(&history.time, length),
                ..self.leak(*device, *stack, Some(*cause), None)
            };
            found.leaks.push(leak.with_room(self.room(*device)));
        }
    }

    /// Bytes in NVML's figure that no call and no allocation explains.
    fn unnamed(&self, found: &mut DriverFindings) {
        for (device, history) in &self.held.unnamed {
            let end_ns = history.last_ns.saturating_sub(history.first_ns);
            let axes = Axes {
                settled_ns: end_ns,
                end_ns,
                last_alloc_ns: end_ns,
                events: history.samples,
                all_events: history.samples,
            };
            let binned = axes.history(&history.time, &history.activity, end_ns);
            let Ok(growth) = binned.growth(&axes, Left::AtMost(history.bytes)) else { continue };
            let enough = growth.strength == Strength::Growing
                && growth.rises >= UNNAMED_RISES
                && growth.risen >= UNNAMED_BYTES
                && end_ns >= UNNAMED_SPAN_NS
                && Pace::of(shape(&history.time, end_ns)).is_steady();
            if !enough {
                continue;
            }
            let leak = Leak {
                bytes: history.bytes,
                rate: Some(growth.bytes_per_second),
                confidence: growth.tau * growth.straight.sqrt(),
                growth: Some(growth),
                shape: binned.time,
                ..self.leak(*device, StackId(0), None, None)
            };
            found.leaks.push(leak.with_room(self.room(*device)));
        }
    }

    fn room(&self, device: DeviceId) -> Option<u64> {
        headroom(self.state, self.definitions, device)
    }

    /// Without its figures.
    fn leak(
        &self,
        device: DeviceId,
        stack: StackId,
        cause: Option<Cause>,
        each: Option<u64>,
    ) -> Leak {
        let driver = Some(DriverMemory { cause, each });
        Leak { driver, ..Leak::of(Level::Driver, device, stack) }
    }
}

fn shape(time: &Series, length_ns: u64) -> Vec<u64> {
    time.lowest(length_ns, shift_for(length_ns, TIME_SHIFT).max(time.shift()))
}

/// The growth in the quarters of a time: of the floor, the lowest value from each moment on.
#[derive(Clone, Copy, Debug)]
struct Pace {
    all: u64,
    third: u64,
    last: u64,
}

impl Pace {
    /// Of the lowest values in equal parts of the time.
    fn of(mut floor: Vec<u64>) -> Pace {
        if floor.is_empty() {
            return Pace { all: 0, third: 0, last: 0 };
        }
        for at in (1..floor.len()).rev() {
            floor[at - 1] = floor[at - 1].min(floor[at]);
        }
        let at = |part: usize| floor[(floor.len() - 1) * part / 4];
        Pace { all: at(4) - at(0), third: at(3) - at(2), last: at(4) - at(3) }
    }

    /// As much in the last quarter as in the third, or nearly; and the last half is no small rest.
    fn is_steady(&self) -> bool {
        self.last > 0 && self.last >= self.third / 5 * 3 && (self.third + self.last) >= self.all / 3
    }
}
