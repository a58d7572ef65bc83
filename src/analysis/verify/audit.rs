//! Follows a replay, and checks its state now and then, and at the end.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;
use vramtrace_format::{
    DeviceId, Event, Kind, SiteId, Space, StackId, Stamped, StopReason, ThreadId,
};

use super::checkpoints::Checkpoints;
use super::findings::{Rule, Verification, Violation};
use super::places;
use super::recorded::compare_totals;
use super::sums;
use crate::replay::state::Inconsistencies;
use crate::replay::{Certainty, DeviceState, Key, Observer, State};
use crate::trace::Definitions;
use crate::units::several;

/// Events between two audits at least. An audit takes time in proportion to what is live, so that
/// they also lie as many events apart as allocations are live.
const BETWEEN_AUDITS: u64 = 4096;

pub(super) struct Audit<'d> {
    definitions: &'d Definitions,
    found: Verification,
    /// Before the event that is looked at.
    before: Inconsistencies,
    devices: BTreeMap<DeviceId, Followed>,
    next_audit: u64,
    threads: Threads,
    checkpoints: Checkpoints,
    /// Ids that have no definition, reported once each.
    undefined: FxHashSet<(&'static str, u32)>,
    /// Allocations for whose site the recorder had no memory.
    without_site: u64,
    last: (u64, u64),
}

/// What was seen of a device.
#[derive(Default)]
struct Followed {
    underflows: u64,
    /// The highest live bytes while they were known.
    highest: u64,
}

/// The threads that changed what is live.
#[derive(Default)]
pub(super) struct Threads {
    first: Option<ThreadId>,
    several: bool,
}

impl Threads {
    fn note(&mut self, at: &Stamped) {
        if changes_memory(&at.event) {
            self.several |= self.first.is_some_and(|first| first != at.thread);
            self.first = Some(at.thread);
        }
    }

    /// Calls of other threads may be under way at any event.
    pub(super) fn are_several(&self) -> bool {
        self.several
    }
}

fn changes_memory(event: &Event) -> bool {
    matches!(
        event,
        Event::Alloc(_)
            | Event::Free { .. }
            | Event::FreeFailed { .. }
            | Event::Refused(_)
            | Event::Map { .. }
            | Event::Unmap { .. }
            | Event::PoolState { .. }
            | Event::GraphState { .. }
            | Event::ContextCreated { .. }
            | Event::ContextDestroyed { .. }
    )
}

impl<'d> Audit<'d> {
    pub(super) fn new(definitions: &'d Definitions) -> Audit<'d> {
        Audit {
            definitions,
            found: Verification::default(),
            before: Inconsistencies::default(),
            devices: BTreeMap::new(),
            next_audit: BETWEEN_AUDITS,
            threads: Threads::default(),
            checkpoints: Checkpoints::default(),
            undefined: FxHashSet::default(),
            without_site: 0,
            last: (0, 0),
        }
    }

    /// After the last event.
    pub(super) fn finish(mut self, state: &State) -> Verification {
        if state.live_is_known() {
            self.audit(state);
        }
        if state.certainty == Certainty::Whole {
            self.check_peaks(state);
        }
        if self.without_site > 0 {
            self.found.unchecked.push(format!(
                "the recorder had no memory for the site of {}: kind and device are not known",
                several(self.without_site, "allocation")
            ));
        }
        let ended = state.ended_ns.is_some();
        let violations = self.checkpoints.finish(ended);
        violations.into_iter().for_each(|violation| self.found.add(violation));
        self.found
    }

    fn violation(&self, rule: Rule) -> Violation {
        let (time_ns, offset) = self.last;
        Violation {
            rule,
            time_ns,
            offset,
            device: None,
            key: None,
            what: String::new(),
            expected: String::new(),
            found: String::new(),
        }
    }

    /// All sums and all addresses.
    fn audit(&mut self, state: &State) {
        self.found.audits += 1;
        for (device, what, expected, found) in sums::compare(state) {
            self.found.add(Violation {
                device,
                what: what.to_string(),
                expected: expected.to_string(),
                found: found.to_string(),
                ..self.violation(Rule::Sum)
            });
        }
        for misfit in places::check(state) {
            self.found.add(Violation {
                device: misfit.device,
                key: misfit.key,
                what: misfit.what.to_string(),
                expected: misfit.expected,
                found: misfit.found,
                ..self.violation(misfit.rule)
            });
        }
        if state.certainty != Certainty::Whole {
            return;
        }
        for (id, device) in &state.devices {
            let ended = device.allocations.saturating_sub(device.live_allocations);
            if ended != device.frees {
                self.found.add(Violation {
                    device: Some(*id),
                    what: "frees".to_string(),
                    expected: ended.to_string(),
                    found: device.frees.to_string(),
                    ..self.violation(Rule::Sum)
                });
            }
        }
    }

    fn check_peaks(&mut self, state: &State) {
        for (id, device) in &state.devices {
            let highest = self.devices.get(id).map_or(0, |followed| followed.highest);
            let mut check = |what: &str, expected: u64, found: u64| {
                if expected != found {
                    self.found.add(Violation {
                        rule: Rule::Peak,
                        time_ns: device.peak.time_ns,
                        offset: device.peak.offset.unwrap_or(0),
                        device: Some(*id),
                        key: None,
                        what: what.to_string(),
                        expected: expected.to_string(),
                        found: found.to_string(),
                    });
                }
            };
            check("the peak", highest, device.peak.bytes);
            let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Imported);
            let by_kind = kinds.map(|kind| device.peak.by_kind[kind as usize]);
            let by_kind = by_kind.fold(0, u64::saturating_add);
            check("the peak's bytes by kind", device.peak.bytes, by_kind);
        }
    }

    /// What the replay found odd at this event.
    fn check_event(&mut self, at: &Stamped, state: &State) {
        let now = state.inconsistencies;
        let before = std::mem::replace(&mut self.before, now);
        if now == before {
            return;
        }
        let key = match at.event {
            Event::Free { key, space, .. } | Event::FreeFailed { key, space, .. } => {
                Some(Key { space, number: key })
            }
            Event::Alloc(alloc) => Some(Key { space: alloc.space, number: alloc.key }),
            Event::Unmap { address, .. } => Some(Key { space: Space::Vmm, number: address }),
            Event::Drift { key, .. } => Some(Key { space: Space::Device, number: key }),
            _ => None,
        };
        let mut report = |rule, what: &str, expected: &str, found: &str| {
            let violation = Violation {
                key,
                what: what.to_string(),
                expected: expected.to_string(),
                found: found.to_string(),
                ..self.violation(rule)
            };
            self.found.add(violation);
        };
        if now.unknown_frees > before.unknown_frees {
            report(Rule::FreeWithoutAllocation, "a free", "live memory", "none");
        }
        if now.unknown_restores > before.unknown_restores {
            let expected = "memory that was freed just before";
            report(Rule::FreeWithoutAllocation, "a free that was refused", expected, "none");
        }
        if now.replaced > before.replaced {
            report(Rule::AllocatedTwice, "an allocation", "an address that is free", "a live one");
        }
        if now.unknown_sites > before.unknown_sites && site_of(&at.event) != SiteId(0) {
            report(Rule::Undefined, "the site of an allocation", "a definition", "none");
        }
        if now.blocks_without_memory > before.blocks_without_memory {
            let blocks = now.blocks_without_memory - before.blocks_without_memory;
            let found = blocks.to_string();
            report(Rule::Outside, "live blocks in memory that was given back", "0", &found);
        }
        if now.by_recorder > before.by_recorder
            && let Event::Drift { what, .. } = at.event
        {
            let found = format!("{what:?}");
            report(Rule::Recorder, "what the recorder noted", "no contradiction", &found);
        }
    }

    /// Ids that the event names.
    fn check_ids(&mut self, at: &Stamped) {
        let (site, stack) = match at.event {
            Event::Alloc(alloc) => (alloc.site, alloc.stack),
            Event::CheckpointAlloc { alloc, .. } => (alloc.site, alloc.stack),
            Event::Free { site, .. } | Event::FreeFailed { site, .. } => (site, StackId(0)),
            Event::Refused(refused) => (refused.site, refused.stack),
            Event::CheckpointTotals { site, stack, .. } => (site, stack),
            Event::Took(took) | Event::CheckpointTook { took, .. } => (took.site, took.stack),
            Event::ContextCreated { stack, .. } => (SiteId(0), stack),
            Event::PostMortem(found) => (SiteId(0), found.stack),
            Event::CacheOom { stack, .. } => (SiteId(0), stack),
            _ => return,
        };
        if site != SiteId(0) && self.definitions.site(site).is_none() {
            self.undefined(at, "a site", site.0);
        }
        if stack != StackId(0) && self.definitions.stacks().get(stack).is_none() {
            self.undefined(at, "a stack", stack.0);
        }
    }

    fn undefined(&mut self, at: &Stamped, what: &'static str, id: u32) {
        if self.undefined.insert((what, id)) {
            let found = format!("none of {id} ({})", event_name(&at.event));
            self.found.add(Violation {
                what: format!("{what}, {id}"),
                expected: "a definition".to_string(),
                found,
                ..self.violation(Rule::Undefined)
            });
        }
    }
}

/// The site of an allocation.
fn site_of(event: &Event) -> SiteId {
    match event {
        Event::Alloc(alloc) | Event::CheckpointAlloc { alloc, .. } => alloc.site,
        _ => SiteId(0),
    }
}

fn is_without_site(event: &Event) -> bool {
    let allocates = matches!(event, Event::Alloc(_) | Event::CheckpointAlloc { .. });
    allocates && site_of(event) == SiteId(0)
}

fn event_name(event: &Event) -> String {
    let text = format!("{event:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_string()
}

impl Observer for Audit<'_> {
    fn on_device_change(&mut self, at: &Stamped, id: DeviceId, device: &DeviceState) {
        let followed = self.devices.entry(id).or_default();
        followed.highest = followed.highest.max(device.live_bytes);
        if device.underflows > followed.underflows {
            followed.underflows = device.underflows;
            self.last = (at.time_ns, at.offset);
            let found = format!("below 0 after {}", event_name(&at.event));
            self.found.add(Violation {
                device: Some(id),
                what: "a sum of live bytes".to_string(),
                expected: "0 or more".to_string(),
                found,
                ..self.violation(Rule::Negative)
            });
        }
    }

    fn on_applied(&mut self, at: &Stamped, state: &State) {
        self.last = (at.time_ns, at.offset);
        self.threads.note(at);
        self.without_site += u64::from(is_without_site(&at.event));
        self.check_event(at, state);
        self.check_ids(at);
        let followed = self.checkpoints.follow(self.definitions, at, state, &self.threads);
        followed.violations.into_iter().for_each(|violation| self.found.add(violation));
        self.found.checkpoints += u64::from(followed.compared);
        if !state.live_is_known() || only_checkpoints_follow(state) {
            return;
        }
        if self.without_site == 0 {
            let compared = compare_totals(at, state, &self.threads);
            self.found.totals += u64::from(compared.is_some());
            compared.into_iter().flatten().for_each(|violation| self.found.add(violation));
        }
        if state.events >= self.next_audit || matches!(at.event, Event::CheckpointEnd { .. }) {
            self.audit(state);
            let live = state.live.len() + state.live.blocks().count();
            self.next_audit = state.events + BETWEEN_AUDITS.max(live as u64);
        }
    }
}

/// The recorder wrote no other events any more.
pub(super) fn only_checkpoints_follow(state: &State) -> bool {
    state.stopped.is_some_and(|stop| stop.reason == StopReason::CannotPunch)
}
