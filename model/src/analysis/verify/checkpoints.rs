//! Does a checkpoint say what the events before it say? A second replay begins at each checkpoint, as
//! a reader of a file does of which the older events were erased. At the checkpoint's end both replays
//! must have the same state.
//!
//! A thread may take an allocation out of the recorder's ledger before a checkpoint begins, and write
//! the free after its end (or the reverse for an allocation). Where several threads recorded, a
//! difference counts when no event of that address follows that was stamped before the end.

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Event, Purpose, Space, Stamped};

use super::audit::{figures, key_of};
use super::findings::{Rule, Verification, Violation};
use super::only_checkpoints_follow;
use crate::replay::{Certainty, Key, Live, Mapping, Replay, State};
use crate::trace::Definitions;

#[derive(Default)]
pub(super) struct Checkpoints {
    /// The replay that began at the running checkpoint, with the id of that.
    second: Option<(u8, Replay)>,
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
        several_threads: bool,
        found: &mut Verification,
    ) {
        if matches!(state.certainty, Certainty::Lost | Certainty::Resuming { .. }) {
            // The event that explains them may be missing.
            self.late.clear();
        }
        self.explain(at, found);
        if let Event::StateBegin { id, what: Purpose::Checkpoint, .. } = at.event {
            let known = state.live_is_known() && !only_checkpoints_follow(state);
            self.second = known.then(|| (id, Replay::new()));
            self.second.iter_mut().for_each(|(_, second)| second.gap());
        }
        // Missing events end both.
        if !state.live_is_known() {
            self.second = None;
        }
        let Some((checkpoint, second)) = &mut self.second else { return };
        second.apply(definitions, at, &mut ());
        if matches!(at.event, Event::StateEnd { id, .. } if id == *checkpoint)
            && let Some((_, second)) = self.second.take()
        {
            found.checkpoints += 1;
            self.compare(at, state, second.state(), several_threads, found);
        }
    }

    /// What is left when the trace ends. `ended`: the process ended in order, so that no thread was
    /// interrupted between ledger and file.
    pub(super) fn finish(self, ended: bool, found: &mut Verification) {
        self.late.into_values().filter(|_| ended).for_each(|violation| found.add(violation));
    }

    /// An event of an address that differed.
    fn explain(&mut self, at: &Stamped, found: &mut Verification) {
        match at.event {
            // Its allocations went from the ledger one by one before it was written.
            Event::ContextDestroyed { .. } => self.late.clear(),
            Event::Alloc(_) | Event::Free { .. } | Event::FreeFailed { .. } => {
                let violation = key_of(&at.event).and_then(|key| self.late.remove(&key));
                let unexplained = violation.filter(|violation| at.time_ns > violation.time_ns);
                unexplained.into_iter().for_each(|violation| found.add(violation));
            }
            _ => {}
        }
    }

    /// At the end of a checkpoint.
    fn compare(
        &mut self,
        at: &Stamped,
        first: &State,
        second: &State,
        several_threads: bool,
        found: &mut Verification,
    ) {
        let described = |live: Option<&Live>| live.map_or("none".to_string(), described);
        for (key, expected, is) in live_differences(first, second) {
            let what = "an allocation in a checkpoint";
            let texts = (described(expected), described(is));
            let violation = Violation::new(at, Rule::Checkpoint, what, texts.0, texts.1);
            let device = expected.or(is).map(|live| live.device);
            let violation = violation.on(device).of(Some(key));
            match several_threads {
                true => drop(self.late.insert(key, violation)),
                false => found.add(violation),
            }
        }
        if several_threads {
            return;
        }
        for (id, device) in &first.devices {
            let others = second.devices.get(id).map_or_else(|| vec![("live bytes", 0)], figures);
            let pairs = figures(device).into_iter().zip(others);
            let figures = pairs.map(|((what, of), (_, other))| (what, of, other));
            found.compare(at, Rule::Checkpoint, Some(*id), figures);
        }
        // Who brought the bytes back is no part of a checkpoint.
        let shown = |one: &Mapping| (one.address, one.size, one.offset, one.object);
        let same = |one: &Mapping| {
            second.space.at(one.address).is_some_and(|two| shown(&two) == shown(one))
        };
        let differing = first.space.mappings().filter(|mapping| !same(mapping)).count() as u64;
        let mappings = |state: &State| state.space.mappings().count() as u64;
        let figures = [
            ("mappings", mappings(first), mappings(second)),
            ("mappings that differ", 0, differing),
        ];
        found.compare(at, Rule::Checkpoint, Some(DeviceId::UNKNOWN), figures);
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
    let shown = |live: &Live| (live.size, live.site, live.stack, live.kind, live.device);
    one.same_birth(other.time_ns) && shown(one) == shown(other)
}

fn described(live: &Live) -> String {
    let Live { size, kind, site, stack, .. } = live;
    let time_ns = live.time_ns & !63;
    format!(
        "{size} bytes of {kind:?} made at {time_ns} ns by site {} and stack {}",
        site.0, stack.0
    )
}
