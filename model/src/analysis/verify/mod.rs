//! Does a trace agree with itself? Every event is replayed, and what must hold of any program's
//! memory is checked on the way:
//!
//! * each free has its allocation, and each id that an event names is defined; the totals that the recorder wrote equal
//!   the replay's; the replay's sums equal those of what is live, they never fall below zero, and the peak is their
//!   maximum (`audit`);
//! * allocations, mappings and a cache's blocks do not overlap, mappings lie in objects, and blocks and
//!   holes tile the segments (`places`);
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

#[cfg(test)]
mod tests;

pub use findings::{Rule, Verification, Violation};

use vramtrace_format::{DamageKind, Stamped, StopReason};

use crate::replay::{Certainty, State, Until};
use crate::trace::Trace;
use crate::units::{several, size};

/// Checks the whole trace.
pub fn verify(trace: &Trace) -> Verification {
    let (definitions, broken) = trace.definitions();
    let mut audit = audit::Audit::new(&definitions);
    let replayed = trace.replay_until(&definitions, Until::End, &mut audit, &mut |_, _| {});
    let mut found = audit.finish(&replayed.state);
    found.trace = trace.path().display().to_string();
    found.events = replayed.state.events;
    let mut damage = replayed.damage;
    damage.ranges.extend(broken);
    // What stood behind a cut is missing.
    for cut in damage.ranges.iter().filter(|range| range.kind == DamageKind::Cut) {
        let (whole, is) = (several(cut.offset.saturating_add(cut.bytes), "byte"), cut.offset);
        let at = Stamped { offset: cut.offset, ..Stamped::default() };
        let is = several(is, "byte");
        found.add(Violation::new(&at, Rule::Cut, "the file was cut", whole, is));
    }
    found.holds = found.violated == 0;
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
    found.unchecked.extend(missing(&replayed.state).into_iter().map(str::to_string));
    if trace.is_running() {
        found.unchecked.push("its process runs: checked as far as it is written".to_string());
    }
    found
}

/// The recorder wrote no other events any more.
fn only_checkpoints_follow(state: &State) -> bool {
    state.stopped.is_some_and(|stop| stop.reason == StopReason::CannotPunch)
}

/// What missing events leave unchecked.
fn missing(state: &State) -> Vec<&'static str> {
    let mut lines = Vec::new();
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
    if state.stopped.is_some() {
        lines.push(match only_checkpoints_follow(state) {
            true => {
                "the file reached its limit and nothing could be erased: only checkpoints and \
                 totals follow, which were not compared"
            }
            false => "recording stopped before the process ended: what came later was not checked",
        });
    }
    lines
}
