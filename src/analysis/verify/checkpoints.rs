//! Does a checkpoint say what the events before it say? A second replay begins at each checkpoint, as
//! a reader of a file does of which the older events were erased. At the checkpoint's end both replays
//! must have the same state.
//!
//! A thread may take an allocation out of the recorder's ledger before a checkpoint begins, and write
//! the free after its end (or the reverse for an allocation). Where several threads recorded, a
//! difference counts when no event of that address follows that was stamped before the end.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Event, Kind, Space, Stamped};

use super::audit::{Threads, only_checkpoints_follow};
use super::findings::{Rule, Violation};
use crate::replay::{Certainty, Key, Live, Mapping, Replay, State};
use crate::trace::Definitions;

#[derive(Default)]
pub(super) struct Checkpoints {
    /// The replay that began at the running checkpoint.
    second: Option<Replay>,
    sums: TotalsOfSites,
    /// Differences that a late event may explain, and when the checkpoint ended.
    late: FxHashMap<Key, (Violation, u64)>,
}

/// What an event gave.
#[derive(Default)]
pub(super) struct FollowedCheckpoint {
    pub violations: Vec<Violation>,
    /// A checkpoint was compared.
    pub compared: bool,
}

/// Of the running checkpoint, by device: allocations and frees of all sites.
#[derive(Default)]
struct TotalsOfSites {
    /// The checkpoint, if no event is missing since it began.
    of: Option<u32>,
    by_device: BTreeMap<DeviceId, (u64, u64)>,
    /// A site without definition or device: its calls are in no sum here.
    unknown: bool,
}

impl Checkpoints {
    /// `state` is that of the first replay, after the event.
    pub(super) fn follow(
        &mut self,
        definitions: &Definitions,
        at: &Stamped,
        state: &State,
        threads: &Threads,
    ) -> FollowedCheckpoint {
        let mut followed = FollowedCheckpoint::default();
        if matches!(state.certainty, Certainty::Lost | Certainty::Resuming { .. }) {
            // The event that explains them may be missing.
            self.late.clear();
        }
        self.explain(at, &mut followed.violations);
        if state.certainty == Certainty::Lost {
            self.sums.of = None;
        }
        match at.event {
            Event::CheckpointBegin { id } => {
                self.sums = TotalsOfSites { of: Some(id), ..TotalsOfSites::default() };
                let known = matches!(state.certainty, Certainty::Whole | Certainty::Resumed);
                self.second = (known && !only_checkpoints_follow(state)).then(|| {
                    let mut second = Replay::new();
                    second.gap();
                    second
                });
            }
            Event::CheckpointTotals { id, site, allocations, frees, .. }
                if self.sums.of == Some(id) =>
            {
                self.sums.add(definitions, site, allocations, frees);
            }
            Event::CheckpointCounters { id, counters } if self.sums.of == Some(id) => {
                let device = DeviceId(counters.device);
                let (allocations, frees) = self.sums.of(device);
                if !self.sums.unknown {
                    let mut check = |what: &str, expected: u64, found: u64| {
                        followed.violations.extend(difference(at, device, what, expected, found));
                    };
                    check("allocations of its sites", counters.allocations, allocations);
                    check("frees of its sites", counters.frees, frees);
                }
            }
            _ => {}
        }
        // Missing events end both.
        if !state.live_is_known() {
            self.second = None;
        }
        let Some(second) = &mut self.second else { return followed };
        second.apply(definitions, at, &mut ());
        if matches!(at.event, Event::CheckpointEnd { .. }) {
            followed.compared = true;
            self.compare(at, state, threads, &mut followed.violations);
        }
        followed
    }

    /// What is left when the trace ends. `ended`: the process ended in order, so that no thread was
    /// interrupted between ledger and file.
    pub(super) fn finish(self, ended: bool) -> Vec<Violation> {
        if !ended {
            return Vec::new();
        }
        self.late.into_values().map(|(violation, _)| violation).collect()
    }

    /// An event of an address that differed.
    fn explain(&mut self, at: &Stamped, violations: &mut Vec<Violation>) {
        if self.late.is_empty() {
            return;
        }
        let key = match at.event {
            Event::Alloc(alloc) => Key { space: alloc.space, number: alloc.key },
            Event::Free { key, space, .. } | Event::FreeFailed { key, space, .. } => {
                Key { space, number: key }
            }
            // Its allocations went from the ledger one by one before it was written.
            Event::ContextDestroyed { .. } => return self.late.clear(),
            _ => return,
        };
        if let Some((violation, ended_ns)) = self.late.remove(&key)
            && at.time_ns > ended_ns
        {
            violations.push(violation);
        }
    }

    fn compare(
        &mut self,
        at: &Stamped,
        state: &State,
        threads: &Threads,
        violations: &mut Vec<Violation>,
    ) {
        let Some(second) = self.second.take() else { return };
        let second = second.into_state();
        for (key, expected, found) in live_differences(state, &second) {
            let violation = Violation {
                rule: Rule::Checkpoint,
                time_ns: at.time_ns,
                offset: at.offset,
                device: expected.or(found).map(|live| live.device),
                key: Some(key),
                what: "an allocation in a checkpoint".to_string(),
                expected: described(expected),
                found: described(found),
            };
            match threads.are_several() {
                true => drop(self.late.insert(key, (violation, at.time_ns))),
                false => violations.push(violation),
            }
        }
        if !threads.are_several() {
            compare_sums(at, state, &second, violations);
        }
    }
}

impl TotalsOfSites {
    fn add(
        &mut self,
        definitions: &Definitions,
        site: vramtrace_format::SiteId,
        allocations: u64,
        frees: u64,
    ) {
        let Some(site) = definitions.site(site) else {
            self.unknown = true;
            return;
        };
        let Some(kind) = site.kind else { return };
        if matches!(kind, Kind::Imported | Kind::Block) || kind.is_host() {
            return;
        }
        let sums = self.by_device.entry(site.device).or_default();
        sums.0 = sums.0.saturating_add(allocations);
        sums.1 = sums.1.saturating_add(frees);
    }

    fn of(&self, device: DeviceId) -> (u64, u64) {
        self.by_device.get(&device).copied().unwrap_or_default()
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
fn compare_sums(at: &Stamped, first: &State, second: &State, violations: &mut Vec<Violation>) {
    let mut check = |device: DeviceId, what: &str, expected: u64, found: u64| {
        violations.extend(difference(at, device, what, expected, found));
    };
    for (id, device) in &first.devices {
        let Some(other) = second.devices.get(id) else {
            check(*id, "live bytes", device.live_bytes, 0);
            continue;
        };
        check(*id, "live bytes", device.live_bytes, other.live_bytes);
        check(*id, "live allocations", device.live_allocations, other.live_allocations);
        check(*id, "requested bytes", device.requested_bytes, other.requested_bytes);
        check(*id, "allocations", device.allocations, other.allocations);
        check(*id, "frees", device.frees, other.frees);
        check(*id, "refusals by the cap", device.refused_by_cap, other.refused_by_cap);
        check(*id, "refusals by the driver", device.refused_by_driver, other.refused_by_driver);
        check(*id, "warnings", device.warned, other.warned);
        check(*id, "bytes of pools in use", device.pool_used, other.pool_used);
        check(*id, "bytes of graphs in use", device.graph_used, other.graph_used);
        check(*id, "contexts", device.contexts.into(), other.contexts.into());
        if !device.cache.sampled {
            check(*id, "bytes of blocks", device.cache.allocated, other.cache.allocated);
            check(*id, "blocks", device.cache.blocks, other.cache.blocks);
        }
    }
    let unknown = DeviceId::UNKNOWN;
    let mappings = |state: &State| state.space.mappings().count() as u64;
    check(unknown, "mappings", mappings(first), mappings(second));
    // Who brought the bytes back is no part of a checkpoint.
    let shown = |one: &Mapping| (one.address, one.size, one.offset, one.object);
    let same =
        |one: &Mapping| second.space.at(one.address).is_some_and(|two| shown(&two) == shown(one));
    let differing = first.space.mappings().filter(|mapping| !same(mapping)).count();
    check(unknown, "mappings that differ", 0, differing as u64);
}

fn difference(
    at: &Stamped,
    device: DeviceId,
    what: &str,
    expected: u64,
    found: u64,
) -> Option<Violation> {
    (expected != found).then(|| Violation {
        rule: Rule::Checkpoint,
        time_ns: at.time_ns,
        offset: at.offset,
        device: Some(device),
        key: None,
        what: format!("{what} in a checkpoint"),
        expected: expected.to_string(),
        found: found.to_string(),
    })
}
