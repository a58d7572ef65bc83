//! The totals that the recorder wrote, against those of the replay.

use vramtrace_format::{Counters, DeviceId, Event, Stamped};

use super::audit::Threads;
use super::findings::{Rule, Violation};
use crate::replay::{Certainty, DeviceState, State};

/// `None`: the event carries no totals that can be compared.
pub(super) fn compare_totals(
    at: &Stamped,
    state: &State,
    threads: &Threads,
) -> Option<Vec<Violation>> {
    // The recorder adds up while other threads go on.
    if threads.are_several() {
        return None;
    }
    match at.event {
        Event::Counters(counters) => Some(compare(at, state, &counters)),
        Event::CacheState { device, allocated, reserved } => {
            let known = state.devices.get(&device)?;
            let cache = &known.cache;
            let mut different = Different { at, device, violations: Vec::new() };
            if !cache.sampled {
                different.check("bytes of blocks", allocated, cache.allocated);
            }
            // Memory of the framework that never held a block is in its figure, and in no segment.
            // Memory that the recorder has not seen is in its figure too.
            if cache.outside == 0 && !(cache.reserved..=known.live_bytes).contains(&reserved) {
                different.check("bytes of segments", reserved, cache.reserved);
            }
            Some(different.violations)
        }
        _ => None,
    }
}

struct Different<'a> {
    at: &'a Stamped,
    device: DeviceId,
    violations: Vec<Violation>,
}

impl Different<'_> {
    fn check(&mut self, what: &str, recorded: u64, replayed: u64) {
        if recorded != replayed {
            self.violations.push(Violation {
                rule: Rule::Totals,
                time_ns: self.at.time_ns,
                offset: self.at.offset,
                device: Some(self.device),
                key: None,
                what: format!("{what}, as the recorder counted"),
                expected: recorded.to_string(),
                found: format!("{replayed} in the events"),
            });
        }
    }
}

fn compare(at: &Stamped, state: &State, counters: &Counters) -> Vec<Violation> {
    let id = DeviceId(counters.device);
    let nothing = DeviceState::default();
    let device = state.devices.get(&id).unwrap_or(&nothing);
    let mut different = Different { at, device: id, violations: Vec::new() };
    different.check("live bytes", counters.live, device.live_bytes);
    different.check("live allocations", counters.live_allocations, device.live_allocations);
    different.check("requested bytes", counters.live_requested, device.requested_bytes);
    different.check("allocations", counters.allocations, device.allocations);
    different.check("frees", counters.frees, device.frees);
    different.check("refusals by the cap", counters.refused_by_cap, device.refused_by_cap);
    different.check("refusals by the driver", counters.refused_by_driver, device.refused_by_driver);
    different.check("warnings", counters.warned, device.warned);
    if state.certainty == Certainty::Whole {
        different.check("the peak", counters.peak, device.peak.bytes);
    }
    different.violations
}
