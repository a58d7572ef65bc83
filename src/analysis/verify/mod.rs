//! Does a trace agree with itself? Every event is replayed, and what must hold of any program's
//! memory is checked on the way:
//!
//! * each free has its allocation, and each id that an event names is defined (`audit`);
//! * the sums that the replay keeps up to date equal those added up anew from the live set; they never
//!   fall below zero, and the peak is their maximum (`sums`, `audit`);
//! * allocations, mappings and a cache's blocks do not overlap, mappings lie in objects, and blocks and
//!   holes tile the segments (`places`);
//! * the totals that the recorder wrote equal the replay's (`recorded`);
//! * a replay that begins at a checkpoint has, at its end, the state of the whole replay
//!   (`checkpoints`);
//! * the file does not end inside a window: the recorder makes it longer by whole windows.
//!
//! Calls of other threads may be under way while the recorder writes totals or a checkpoint: their
//! effect is then in one and not yet in the other. Where several threads recorded, only what holds all
//! the same is compared.

mod audit;
mod checkpoints;
mod findings;
mod places;
mod recorded;
mod sums;

#[cfg(test)]
mod tests;

pub use findings::{Rule, Verification, Violation};

use vramtrace_format::{DamageKind, StopReason};

use crate::replay::{Certainty, State, Until};
use crate::trace::{DamageFound, Trace};
use crate::units::{several, size};

/// Checks the whole trace.
pub fn verify(trace: &Trace) -> Verification {
    let (definitions, broken) = trace.definitions();
    let mut audit = audit::Audit::new(&definitions);
    let replayed = trace.replay_until(&definitions, Until::End, &mut audit, &mut |_, _| {});
    let mut found = audit.finish(&replayed.state);
    found.events = replayed.state.events;
    let mut damage = replayed.damage;
    damage.ranges.extend(broken);
    found.add_cuts(&damage);
    if let Some(first) = damage.ranges.first() {
        found.unchecked.push(format!(
            "damaged in {} ({}), first: {first}: what stood there was not checked",
            several(damage.ranges.len() as u64, "place"),
            size(damage.bytes())
        ));
    }
    if damage.unknown > 0 {
        found.unchecked.push(format!(
            "{} of a newer recorder were not checked",
            several(damage.unknown, "record")
        ));
    }
    if found.events == 0 {
        found.unchecked.push("the file has no events: there was nothing to check".to_string());
    }
    found.unchecked.extend(missing(&replayed.state));
    if trace.is_running() {
        found.unchecked.push("its process runs: checked as far as it is written".to_string());
    }
    found
}

impl Verification {
    /// A file that was cut is a violation: what stood behind the cut is missing.
    fn add_cuts(&mut self, damage: &DamageFound) {
        for cut in damage.ranges.iter().filter(|range| range.kind == DamageKind::Cut) {
            self.add(Violation {
                rule: Rule::Cut,
                time_ns: 0,
                offset: cut.offset,
                device: None,
                key: None,
                what: "the file was cut".to_string(),
                expected: in_bytes(cut.offset.saturating_add(cut.bytes)),
                found: in_bytes(cut.offset),
            });
        }
    }
}

fn in_bytes(bytes: u64) -> String {
    several(bytes, "byte")
}

/// What missing events leave unchecked.
fn missing(state: &State) -> Vec<String> {
    let mut lines: Vec<&str> = Vec::new();
    match state.certainty {
        Certainty::Whole => {}
        Certainty::Resumed => lines.push(
            "events are missing (erased for VRAMTRACE_MAX, not recorded while the recording was off, or damaged): memory that was live then \
             was checked from the next checkpoint on, and frees of unknown memory were not checked",
        ),
        Certainty::Lost | Certainty::Resuming { .. } => lines.push(
            "events are missing and no whole checkpoint follows: what is live, sums and peaks were \
             not checked behind that place",
        ),
    }
    if let Some(stop) = state.stopped {
        lines.push(match stop.reason {
            StopReason::CannotPunch => {
                "the file reached its limit and nothing could be erased: only checkpoints and \
                 totals follow, which were not compared"
            }
            _ => "recording stopped before the process ended: what came later was not checked",
        });
    }
    lines.into_iter().map(Into::into).collect()
}
