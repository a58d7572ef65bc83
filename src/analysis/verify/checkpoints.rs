//! Does a checkpoint say what the events before it say? A second replay begins at each checkpoint, as
//! a reader of a file does of which the older events were erased. At the checkpoint's end both replays
//! must have the same state.
//!
//! A thread may take an allocation out of the recorder's ledger before a checkpoint begins, and write
//! the free after its end (or the reverse for an allocation). Where several threads recorded, a
//! difference counts when no event of that address follows that was stamped before the end.

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Event, Kind, Space, Stamped};

use super::audit::{Threads, figures, pairs};
use super::findings::{Rule, Verification, Violation};
use super::only_checkpoints_follow;
use crate::replay::{ByDevice, Certainty, Key, Live, Mapping, Replay, State};
use crate::trace::Definitions;

#[derive(Default)]
pub(super) struct Checkpoints {
    /// The replay that began at the running checkpoint.
    second: Option<Replay>,
    /// The running checkpoint, with the allocations and frees of all sites by device. `None`: events are missing since it
    /// began, or a site has no definition.
    sites: Option<(u32, ByDevice<(u64, u64)>)>,
    /// Differences that a late event may explain.
    late: FxHashMap<Key, Violation>,
}

impl Checkpoints {
    /// `state` is that of the first replay, after the event.
    pub(super) fn follow(
        &mut self,
        definitions: &Definitions,
        at: &Stamped,
        state: &State,
        threads: &Threads,
        found: &mut Verification,
    ) {
        if matches!(state.certainty, Certainty::Lost | Certainty::Resuming { .. }) {
            // The event that explains them may be missing.
            self.late.clear();
        }
        self.explain(at, found);
        if state.certainty == Certainty::Lost {
            self.sites = None;
        }
        self.add_up_sites(definitions, at, found);
        if matches!(at.event, Event::CheckpointBegin { .. }) {
            let known = state.live_is_known() && !only_checkpoints_follow(state);
            self.second = known.then(Replay::new);
            self.second.iter_mut().for_each(Replay::gap);
        }
        // Missing events end both.
        if !state.live_is_known() {
            self.second = None;
        }
        let Some(second) = &mut self.second else { return };
        second.apply(definitions, at, &mut ());
        if matches!(at.event, Event::CheckpointEnd { .. })
            && let Some(second) = self.second.take()
        {
            found.checkpoints += 1;
            self.compare(at, state, second.state(), threads, found);
        }
    }

    /// The recorder's totals of all sites are those of the device.
    fn add_up_sites(&mut self, definitions: &Definitions, at: &Stamped, found: &mut Verification) {
        if let Event::CheckpointBegin { id } = at.event {
            self.sites = Some((id, ByDevice::default()));
        }
        let Some((running, sums)) = &mut self.sites else { return };
        match at.event {
            Event::CheckpointTotals { id, site, allocations, frees, .. } if id == *running => {
                let Some(site) = definitions.site(site) else {
                    self.sites = None;
                    return;
                };
                if site.kind.is_some_and(|kind| {
                    !kind.is_host() && !matches!(kind, Kind::Imported | Kind::Block)
                }) {
                    let sums = sums.of(site.device);
                    sums.0 = sums.0.saturating_add(allocations);
                    sums.1 = sums.1.saturating_add(frees);
                }
            }
            Event::CheckpointCounters { id, counters } if id == *running => {
                let device = DeviceId(counters.device);
                let (allocations, frees) = *sums.of(device);
                let figures = [
                    ("allocations of its sites", counters.allocations, allocations),
                    ("frees of its sites", counters.frees, frees),
                ];
                found.compare(at, Rule::Checkpoint, Some(device), figures);
            }
            _ => {}
        }
    }

    /// What is left when the trace ends. `ended`: the process ended in order, so that no thread was
    /// interrupted between ledger and file.
    pub(super) fn finish(self, ended: bool, found: &mut Verification) {
        self.late.into_values().filter(|_| ended).for_each(|violation| found.add(violation));
    }

    /// An event of an address that differed.
    fn explain(&mut self, at: &Stamped, found: &mut Verification) {
        let key = match at.event {
            _ if self.late.is_empty() => return,
            Event::Alloc(alloc) => Key { space: alloc.space, number: alloc.key },
            Event::Free { key, space, .. } | Event::FreeFailed { key, space, .. } => {
                Key { space, number: key }
            }
            // Its allocations went from the ledger one by one before it was written.
            Event::ContextDestroyed { .. } => return self.late.clear(),
            _ => return,
        };
        if let Some(violation) = self.late.remove(&key)
            && at.time_ns > violation.time_ns
        {
            found.add(violation);
        }
    }

    /// At the end of a checkpoint.
    fn compare(
        &mut self,
        at: &Stamped,
        first: &State,
        second: &State,
        threads: &Threads,
        found: &mut Verification,
    ) {
        for (key, expected, is) in live_differences(first, second) {
            let what = "an allocation in a checkpoint";
            let violation =
                Violation::new(Rule::Checkpoint, what, described(expected), described(is));
            let device = expected.or(is).map(|live| live.device);
            let violation = Violation { device, ..violation.of(key).at(at) };
            match threads.are_several() {
                true => drop(self.late.insert(key, violation)),
                false => found.add(violation),
            }
        }
        if !threads.are_several() {
            compare_sums(at, first, second, found);
        }
    }
}

type LiveDifference<'s> = (Key, Option<&'s Live>, Option<&'s Live>);

fn live_differences<'s>(first: &'s State, second: &'s State) -> Vec<LiveDifference<'s>> {
    let mut different = Vec::new();
    for (key, live) in all(first) {
        let other = second.live.get(key);
        if !other.is_some_and(|other| is_same(live, other)) {
            different.push((key, Some(live), other));
        }
    }
    let unknown = all(second).filter(|(key, _)| first.live.get(*key).is_none());
    different.extend(unknown.map(|(key, live)| (key, None, Some(live))));
    different.sort_unstable_by_key(|(key, ..)| *key);
    different
}

fn all(state: &State) -> impl Iterator<Item = (Key, &Live)> {
    let block = |(number, live)| (Key { space: Space::Block, number }, live);
    state.live.iter().chain(state.live.blocks().map(block))
}

/// A checkpoint does not say which thread allocated, nor how often an import was opened.
fn is_same(one: &Live, other: &Live) -> bool {
    one.same_birth(other.time_ns)
        && (one.size, one.site, one.stack, one.kind, one.device)
            == (other.size, other.site, other.stack, other.kind, other.device)
}

fn described(live: Option<&Live>) -> String {
    match live {
        None => "none".to_string(),
        Some(live) => format!(
            "{} bytes of {:?} made at {} ns by site {} and stack {}",
            live.size,
            live.kind,
            live.time_ns & !63,
            live.site.0,
            live.stack.0
        ),
    }
}

/// Reports each figure in which two states of the same place differ.
fn compare_sums(at: &Stamped, first: &State, second: &State, found: &mut Verification) {
    for (id, device) in &first.devices {
        let other = second.devices.get(id).map(figures);
        let other = other.unwrap_or_else(|| vec![("live bytes", 0)]);
        found.compare(at, Rule::Checkpoint, Some(*id), pairs(device, other));
    }
    let mappings = |state: &State| state.space.mappings().count() as u64;
    // Who brought the bytes back is no part of a checkpoint.
    let shown = |one: &Mapping| (one.address, one.size, one.offset, one.object);
    let same =
        |one: &Mapping| second.space.at(one.address).is_some_and(|two| shown(&two) == shown(one));
    let differing = first.space.mappings().filter(|mapping| !same(mapping)).count();
    let figures = [
        ("mappings", mappings(first), mappings(second)),
        ("mappings that differ", 0, differing as u64),
    ];
    found.compare(at, Rule::Checkpoint, Some(DeviceId::UNKNOWN), figures);
}
