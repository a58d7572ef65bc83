//! Follows a replay: what it found odd at each event, what the recorder counted, and now and then all sums.

use vramtrace_format::{DeviceId, Event, Kind, SiteId, Space, StackId, Stamped, ThreadId};

use super::checkpoints::Checkpoints;
use super::findings::{Rule, Verification, Violation};
use super::{only_checkpoints_follow, places};
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
    /// The first thread that changed what is live, and whether others did too: their calls may be under way at any event.
    first_thread: Option<ThreadId>,
    several_threads: bool,
    checkpoints: Checkpoints,
    /// Allocations for whose site the recorder had no memory.
    without_site: u64,
    last: Stamped,
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

/// The memory that an event is about.
pub(super) fn key_of(event: &Event) -> Option<Key> {
    Some(match *event {
        Event::Free { key, space, .. } | Event::FreeFailed { key, space, .. } => {
            Key { space, number: key }
        }
        Event::Alloc(alloc) => Key { space: alloc.space, number: alloc.key },
        Event::Unmap { address, .. } => Key::object(address),
        Event::Drift { key, .. } => Key { space: Space::Device, number: key },
        _ => return None,
    })
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

impl<'d> Audit<'d> {
    pub(super) fn new(definitions: &'d Definitions) -> Audit<'d> {
        Audit {
            definitions,
            found: Verification::default(),
            before: Inconsistencies::default(),
            highest: ByDevice::default(),
            next_audit: BETWEEN_AUDITS,
            first_thread: None,
            several_threads: false,
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
            for (id, DeviceState { peak, live_peak_bytes, .. }) in &state.devices {
                let (time_ns, offset) = (peak.time_ns, peak.offset.unwrap_or(0));
                let at = Stamped { time_ns, offset, ..self.last };
                let highest = self.highest.get(id).copied().unwrap_or(0);
                let figures = [("the peak", highest, *live_peak_bytes)];
                self.found.compare(&at, Rule::Peak, Some(*id), figures);
            }
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

    /// What the replay found odd at this event.
    fn check_event(&mut self, at: &Stamped, state: &State) {
        let now = state.inconsistencies;
        let before = std::mem::replace(&mut self.before, now);
        if now == before {
            return;
        }
        let free_needs = Rule::FreeWithoutAllocation;
        let has_site = !matches!(at.event.itself(), Event::Alloc(alloc) if alloc.site == SiteId(0));
        let blocks = now.blocks_without_memory - before.blocks_without_memory;
        let (before_it, gone) =
            ("memory that was freed just before", "live blocks in memory that was given back");
        let odd = [
            (now.unknown_frees > before.unknown_frees, free_needs, "a free", "live memory", "none"),
            (
                now.unknown_restores > before.unknown_restores,
                free_needs,
                "a free that was refused",
                before_it,
                "none",
            ),
            (
                now.replaced > before.replaced,
                Rule::AllocatedTwice,
                "an allocation",
                "an address that is free",
                "a live one",
            ),
            (
                now.unknown_sites > before.unknown_sites && has_site,
                Rule::Undefined,
                "the site of an allocation",
                "a definition",
                "none",
            ),
            (blocks > 0, Rule::Outside, gone, "0", &blocks.to_string()),
        ];
        for (_, rule, what, expected, is) in odd.into_iter().filter(|(is_odd, ..)| *is_odd) {
            self.found.add(Violation::new(at, rule, what, expected, is).of(key_of(&at.event)));
        }
        if let Event::Drift { what, .. } = at.event {
            let (noted, expected) = ("what the recorder noted", "no contradiction");
            let found = format!("{what:?}");
            let violation = Violation::new(at, Rule::Recorder, noted, expected, found);
            self.found.add(violation.of(key_of(&at.event)));
        }
    }

    /// Ids that the event names.
    fn check_ids(&mut self, at: &Stamped) {
        let (site, stack) = match at.event.itself() {
            Event::Alloc(alloc) => {
                // Where the recorder has no memory for a site it says 0.
                self.without_site += u64::from(alloc.site == SiteId(0));
                (alloc.site, alloc.stack)
            }
            Event::Free { site, .. } => (site, StackId(0)),
            Event::Refused(refused) => (refused.site, refused.stack),
            Event::StateTotals { site, stack, .. } => (site, stack),
            Event::Took(took) => (took.site, took.stack),
            Event::ContextCreated { stack, .. } => (SiteId(0), stack),
            Event::PostMortem(found) => (SiteId(0), found.stack),
            Event::CacheOom { stack, .. } => (SiteId(0), stack),
            _ => return,
        };
        let site_is_known = site == SiteId(0) || self.definitions.site(site).is_some();
        let stack_is_known = stack == StackId(0) || self.definitions.stacks().get(stack).is_some();
        let ids = [(site_is_known, "a site", site.0), (stack_is_known, "a stack", stack.0)];
        for (_, what, id) in ids.into_iter().filter(|(is_known, ..)| !is_known) {
            let (what, is) = (format!("{what}, {id}"), format!("none ({})", event_name(&at.event)));
            self.found.add(Violation::new(at, Rule::Undefined, what, "a definition", is));
        }
    }

    /// The totals that the recorder wrote, against those of the replay.
    fn check_totals(&mut self, at: &Stamped, state: &State) {
        let nothing = DeviceState::default();
        let id = match at.event {
            Event::Counters(of) => DeviceId(of.device),
            Event::CacheState { device, .. } if state.devices.contains_key(&device) => device,
            _ => return,
        };
        let device = state.devices.get(&id).unwrap_or(&nothing);
        let cache = &device.cache;
        let mut all = Vec::new();
        match at.event {
            Event::Counters(of) => {
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
                all.extend(both.map(|((what, found), recorded)| (what, recorded, found)));
                if state.certainty == Certainty::Whole {
                    all.push(("the peak", of.peak, device.live_peak_bytes));
                }
            }
            Event::CacheState { allocated, reserved, .. } => {
                if !cache.sampled {
                    all.push(("bytes of blocks", allocated, cache.allocated));
                }
                // Memory of the framework that never held a block is in its figure, and in no segment.
                // Memory that the recorder has not seen is in its figure too.
                let may_be = cache.reserved..=device.live_bytes;
                if cache.outside == 0 && !may_be.contains(&reserved) {
                    all.push(("bytes of segments", reserved, cache.reserved));
                }
            }
            _ => {}
        }
        self.found.totals += 1;
        self.found.compare(at, Rule::Totals, Some(id), all);
    }
}

/// The sums of the state, against those of a state to which all that is live was added anew.
pub(super) fn check_sums(at: &Stamped, state: &State, violations: &mut Verification) {
    let again = state.added_up();
    let nothing = DeviceState::default();
    for (id, expected) in &again.devices {
        let found = state.devices.get(id).unwrap_or(&nothing);
        let pairs = figures(expected).into_iter().zip(figures(found));
        let mut all: Vec<_> = pairs.map(|((what, it), (_, of))| (what, it, of)).collect();
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Pitched) {
            // A page counts as the kind that came to it first, so that these two are one sum.
            let pitched = if kind == Kind::Device { Kind::Pitched } else { kind };
            let bytes = |of: &DeviceState| (of.kind(kind).live_bytes, of.kind(pitched).live_bytes);
            let sum = |of: &DeviceState| bytes(of).0.saturating_add(bytes(of).1);
            all.push(("bytes of a kind", sum(expected), sum(found)));
        }
        if state.certainty == Certainty::Whole {
            let ended = found.allocations.saturating_sub(found.live_allocations);
            all.push(("frees", ended, found.frees));
        }
        violations.compare(at, Rule::Sum, Some(*id), all);
    }
    let hosts = |of: &State| [of.host_pinned, of.host_registered].map(|host| host.live_bytes);
    let pairs = hosts(&again).into_iter().zip(hosts(state));
    let pairs = pairs.map(|(expected, found)| ("host bytes", expected, found));
    violations.compare(at, Rule::Sum, None, pairs);
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
            let (what, is) = ("a sum of live bytes", event_name(&at.event));
            let is = format!("below 0 after {is}");
            let violation = Violation::new(at, Rule::Negative, what, "0 or more", is);
            self.found.add(violation.on(Some(id)));
        }
    }

    fn on_applied(&mut self, at: &Stamped, state: &State) {
        self.last = *at;
        if changes_memory(&at.event) {
            self.several_threads |= *self.first_thread.get_or_insert(at.thread) != at.thread;
        }
        self.check_event(at, state);
        self.check_ids(at);
        let (definitions, found) = (self.definitions, &mut self.found);
        self.checkpoints.follow(definitions, at, state, self.several_threads, found);
        if !state.live_is_known() || only_checkpoints_follow(state) {
            return;
        }
        // The recorder adds up while other threads go on.
        if self.without_site == 0 && !self.several_threads {
            self.check_totals(at, state);
        }
        if state.events >= self.next_audit || matches!(at.event, Event::StateEnd { .. }) {
            self.audit(state);
            let live = state.live.len() + state.live.blocks().count();
            self.next_audit = state.events + BETWEEN_AUDITS.max(live as u64);
        }
    }
}
