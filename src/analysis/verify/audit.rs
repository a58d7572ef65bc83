//! Follows a replay: what it found odd at each event, what the recorder counted, and now and then all sums and addresses.

use vramtrace_format::{DeviceId, Event, Kind, SiteId, Space, StackId, Stamped, ThreadId};

use super::checkpoints::Checkpoints;
use super::findings::{Rule, Verification, Violation};
use super::only_checkpoints_follow;
use super::places;
use crate::replay::state::Inconsistencies;
use crate::replay::{ByDevice, Certainty, DeviceState, Key, Observer, State};
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
    /// The highest live bytes of each device.
    highest: ByDevice<u64>,
    next_audit: u64,
    threads: Threads,
    checkpoints: Checkpoints,
    /// Allocations for whose site the recorder had no memory.
    without_site: u64,
    last: Stamped,
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
            self.several |= *self.first.get_or_insert(at.thread) != at.thread;
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

/// The sums of a device that its checkpoints and the recorder's totals have too. The last two are not known of samples:
/// there the framework and the recorder count.
pub(super) fn figures(device: &DeviceState) -> Vec<(&'static str, u64)> {
    let cache = &device.cache;
    let mut figures = vec![
        ("live bytes", device.live_bytes),
        ("live allocations", device.live_allocations),
        ("requested bytes", device.requested_bytes),
        ("allocations", device.allocations),
        ("frees", device.frees),
        ("refusals by the cap", device.refused_by_cap),
        ("refusals by the driver", device.refused_by_driver),
        ("warnings", device.warned),
        ("bytes of pools in use", device.pool_used),
        ("bytes of graphs in use", device.graph_used),
        ("contexts", device.contexts.into()),
        ("bytes of blocks", cache.allocated),
        ("blocks", cache.blocks),
    ];
    figures.truncate(if cache.sampled { 11 } else { 13 });
    figures
}

/// The figures of a device beside others, by their order: names, those of the device, the others.
pub(super) fn pairs(
    device: &DeviceState,
    others: impl IntoIterator<Item = (&'static str, u64)>,
) -> Vec<(&'static str, u64, u64)> {
    let both = figures(device).into_iter().zip(others);
    both.map(|((what, of), (_, other))| (what, of, other)).collect()
}

impl<'d> Audit<'d> {
    pub(super) fn new(definitions: &'d Definitions) -> Audit<'d> {
        Audit {
            definitions,
            found: Verification::default(),
            before: Inconsistencies::default(),
            highest: ByDevice::default(),
            next_audit: BETWEEN_AUDITS,
            threads: Threads::default(),
            checkpoints: Checkpoints::default(),
            without_site: 0,
            last: Stamped::default(),
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
        self.checkpoints.finish(state.ended_ns.is_some(), &mut self.found);
        self.found
    }

    /// All sums and all addresses.
    fn audit(&mut self, state: &State) {
        self.found.audits += 1;
        check_sums(&self.last, state, &mut self.found);
        places::check(&self.last, state, &mut self.found);
    }

    fn check_peaks(&mut self, state: &State) {
        for (id, device) in &state.devices {
            let peak = &device.peak;
            let of_kind = |kind: Kind| peak.by_kind[kind as usize];
            let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Imported);
            let by_kind = kinds.map(of_kind).fold(0, u64::saturating_add);
            let highest = self.highest.get(id).copied().unwrap_or(0);
            let figures = [
                ("the peak", highest, peak.bytes),
                ("the peak's bytes by kind", peak.bytes, by_kind),
            ];
            let (time_ns, offset) = (peak.time_ns, peak.offset.unwrap_or(0));
            let at = Stamped { time_ns, offset, ..self.last };
            self.found.compare(&at, Rule::Peak, Some(*id), figures);
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
            Event::Unmap { address, .. } => Some(Key::object(address)),
            Event::Drift { key, .. } => Some(Key { space: Space::Device, number: key }),
            _ => None,
        };
        let mut report = |is_new, rule, what: &str, expected: &str, found: &str| {
            if is_new {
                let violation = Violation::new(rule, what, expected, found);
                self.found.add(Violation { key, ..violation }.at(at));
            }
        };
        let freed = now.unknown_frees > before.unknown_frees;
        report(freed, Rule::FreeWithoutAllocation, "a free", "live memory", "none");
        let restored = now.unknown_restores > before.unknown_restores;
        let (what, expected) = ("a free that was refused", "memory that was freed just before");
        report(restored, Rule::FreeWithoutAllocation, what, expected, "none");
        let replaced = now.replaced > before.replaced;
        let free = "an address that is free";
        report(replaced, Rule::AllocatedTwice, "an allocation", free, "a live one");
        let undefined = now.unknown_sites > before.unknown_sites
            && matches!(at.event, Event::Alloc(alloc) | Event::CheckpointAlloc { alloc, .. }
                if alloc.site != SiteId(0));
        report(undefined, Rule::Undefined, "the site of an allocation", "a definition", "none");
        let blocks = now.blocks_without_memory - before.blocks_without_memory;
        let what = "live blocks in memory that was given back";
        report(blocks > 0, Rule::Outside, what, "0", &blocks.to_string());
        if let Event::Drift { what, .. } = at.event {
            let noted = ("what the recorder noted", "no contradiction");
            report(true, Rule::Recorder, noted.0, noted.1, &format!("{what:?}"));
        }
    }

    /// Ids that the event names.
    fn check_ids(&mut self, at: &Stamped) {
        let (site, stack) = match at.event {
            Event::Alloc(alloc) | Event::CheckpointAlloc { alloc, .. } => {
                // Where the recorder has no memory for a site it says 0.
                self.without_site += u64::from(alloc.site == SiteId(0));
                (alloc.site, alloc.stack)
            }
            Event::Free { site, .. } | Event::FreeFailed { site, .. } => (site, StackId(0)),
            Event::Refused(refused) => (refused.site, refused.stack),
            Event::CheckpointTotals { site, stack, .. } => (site, stack),
            Event::Took(took) | Event::CheckpointTook { took, .. } => (took.site, took.stack),
            Event::ContextCreated { stack, .. } => (SiteId(0), stack),
            Event::PostMortem(found) => (SiteId(0), found.stack),
            Event::CacheOom { stack, .. } => (SiteId(0), stack),
            _ => return,
        };
        let site_is_known = site == SiteId(0) || self.definitions.site(site).is_some();
        let stack_is_known = stack == StackId(0) || self.definitions.stacks().get(stack).is_some();
        for (is_known, what, id) in
            [(site_is_known, "a site", site.0), (stack_is_known, "a stack", stack.0)]
        {
            if !is_known {
                let (what, found) =
                    (format!("{what}, {id}"), format!("none of {id} ({})", event_name(&at.event)));
                self.found.add(Violation::new(Rule::Undefined, what, "a definition", found).at(at));
            }
        }
    }

    /// The totals that the recorder wrote, against those of the replay.
    fn check_totals(&mut self, at: &Stamped, state: &State) {
        let nothing = DeviceState::default();
        let (id, figures): (DeviceId, Vec<(&str, u64, u64)>) = match at.event {
            Event::Counters(of) => {
                let id = DeviceId(of.device);
                let device = state.devices.get(&id).unwrap_or(&nothing);
                let recorded = [
                    of.live,
                    of.live_allocations,
                    of.live_requested,
                    of.allocations,
                    of.frees,
                    of.refused_by_cap,
                    of.refused_by_driver,
                    of.warned,
                ];
                let both = figures(device).into_iter().zip(recorded);
                let mut all: Vec<_> = both.map(|((what, found), it)| (what, it, found)).collect();
                if state.certainty == Certainty::Whole {
                    all.push(("the peak", of.peak, device.peak.bytes));
                }
                (id, all)
            }
            Event::CacheState { device: id, allocated, reserved } => {
                let Some(device) = state.devices.get(&id) else { return };
                let cache = &device.cache;
                let mut all = Vec::new();
                if !cache.sampled {
                    all.push(("bytes of blocks", allocated, cache.allocated));
                }
                // Memory of the framework that never held a block is in its figure, and in no segment.
                // Memory that the recorder has not seen is in its figure too.
                let may_be = cache.reserved..=device.live_bytes;
                if cache.outside == 0 && !may_be.contains(&reserved) {
                    all.push(("bytes of segments", reserved, cache.reserved));
                }
                (id, all)
            }
            _ => return,
        };
        self.found.totals += 1;
        self.found.compare(at, Rule::Totals, Some(id), figures);
    }
}

/// The sums of the state, against those of a state to which all that is live was added anew.
pub(super) fn check_sums(at: &Stamped, state: &State, violations: &mut Verification) {
    let again = state.added_up();
    let nothing = DeviceState::default();
    for (id, expected) in &again.devices {
        let found = state.devices.get(id).unwrap_or(&nothing);
        let mut all = pairs(expected, figures(found));
        // A page counts as the kind that came to it first, so that both are one sum.
        let shared = |of: &DeviceState| {
            of.kind(Kind::Device).live_bytes.saturating_add(of.kind(Kind::Pitched).live_bytes)
        };
        all.push(("bytes of cudaMalloc and pitched memory", shared(expected), shared(found)));
        for kind in Kind::ALL {
            let (it, of) = (expected.kind(kind), found.kind(kind));
            if !matches!(kind, Kind::Device | Kind::Pitched) {
                all.push(("bytes of a kind", it.live_bytes, of.live_bytes));
            }
            all.push(("requested bytes of a kind", it.requested_bytes, of.requested_bytes));
            all.push(("allocations of a kind", it.live_allocations, of.live_allocations));
        }
        if state.certainty == Certainty::Whole {
            let ended = found.allocations.saturating_sub(found.live_allocations);
            all.push(("frees", ended, found.frees));
        }
        violations.compare(at, Rule::Sum, Some(*id), all);
    }
    for (expected, found) in
        [(&again.host_pinned, &state.host_pinned), (&again.host_registered, &state.host_registered)]
    {
        let bytes = ("host bytes", expected.live_bytes, found.live_bytes);
        let number = ("host allocations", expected.live_allocations, found.live_allocations);
        violations.compare(at, Rule::Sum, None, [bytes, number]);
    }
}

fn event_name(event: &Event) -> String {
    let text = format!("{event:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_string()
}

impl Observer for Audit<'_> {
    fn on_device_change(&mut self, at: &Stamped, id: DeviceId, device: &DeviceState) {
        let highest = self.highest.of(id);
        *highest = device.live_bytes.max(*highest);
        if device.underflows > 0 {
            let found = format!("below 0 after {}", event_name(&at.event));
            let violation =
                Violation::new(Rule::Negative, "a sum of live bytes", "0 or more", found);
            self.found.add(violation.on(id).at(at));
        }
    }

    fn on_applied(&mut self, at: &Stamped, state: &State) {
        self.last = *at;
        self.threads.note(at);
        self.check_event(at, state);
        self.check_ids(at);
        self.checkpoints.follow(self.definitions, at, state, &self.threads, &mut self.found);
        if !state.live_is_known() || only_checkpoints_follow(state) {
            return;
        }
        // The recorder adds up while other threads go on.
        if self.without_site == 0 && !self.threads.are_several() {
            self.check_totals(at, state);
        }
        if state.events >= self.next_audit || matches!(at.event, Event::CheckpointEnd { .. }) {
            self.audit(state);
            let live = state.live.len() + state.live.blocks().count();
            self.next_audit = state.events + BETWEEN_AUDITS.max(live as u64);
        }
    }
}
