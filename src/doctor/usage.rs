//! Which driver calls a command used, from its traces.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vramtrace_format::escape::Escape;
use vramtrace_format::{Event, SiteId};
use vramtrace_reader::trace::{OpenError, Trace, open};
use vramtrace_reader::units::several;

use super::Check;
use crate::launch::RunResult;
use crate::launch::child::Status;
use crate::launch::monitor::Unrecorded;

/// Calls by entry point.
type Calls = BTreeMap<String, u64>;

#[derive(Default)]
struct UsedCalls {
    allocations: Calls,
    refusals: Calls,
    /// Entry points whose memory is not followed.
    passed: BTreeSet<String>,
    /// Lines that the recorder put on stderr, and damage of the trace.
    notes: BTreeSet<String>,
    /// Libraries that replaced the beginning of the recorder's functions.
    patched_by: BTreeSet<String>,
}

/// An error: a trace that the command left cannot be read.
pub fn of(ended: &RunResult) -> Result<Vec<Check>, String> {
    let traces = ended.output.traces();
    let mut used = UsedCalls::default();
    for path in &traces {
        let wrong = |error: OpenError| format!("{}: {error}", path.display());
        used.add(&open(path).map_err(wrong)?);
    }
    let how = match ended.status {
        Status::Exited(code) => format!("exit {code}"),
        Status::Signalled(signal) => format!("ended by signal {signal}"),
    };
    let processes = if traces.len() == 1 { "process" } else { "processes" };
    let text = format!("{how}; {} {processes} with a trace", traces.len());
    let mut checks = vec![Check::ok("command", text)];
    let UsedCalls { allocations, refusals, passed, notes, patched_by } = used;
    let calls = |calls: &Calls, what: &str| {
        let one = |(api, n): (&String, &u64)| format!("{api}: {}", several(*n, what));
        calls.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    checks.push(match (allocations.is_empty(), ended.observed.with_shim) {
        (false, _) => Check::ok("calls", calls(&allocations, "allocation")),
        (true, true) => Check::ok("calls", "no GPU memory was taken"),
        (true, false) => Check::ok(
            "calls",
            "no GPU memory was taken; a process without the recorder is not seen",
        ),
    });
    if !refusals.is_empty() {
        checks.push(Check::note("refused", calls(&refusals, "refused request")));
    }
    let patched =
        |library| format!("{library} replaced functions of the recorder: its calls go through it");
    checks.extend(patched_by.iter().map(|library| Check::note("replaced", patched(library))));
    checks.extend(ended.observed.without_shim.iter().map(|Unrecorded { pid, name }| {
        let text = format!("process {pid} ({name}) used the driver without the recorder");
        Check::problem("process", text)
    }));
    checks.extend(notes.into_iter().map(|note| match note == Escape::SecondDriver.name() {
        true => Check::problem("recorder", note),
        false => Check::note("recorder", note),
    }));
    checks.extend(passed.iter().map(|api| {
        let text = format!("{api} was called: it is counted, its memory is not followed");
        Check::problem("calls", text)
    }));
    Ok(checks)
}

impl UsedCalls {
    fn add(&mut self, trace: &Trace) {
        let (definitions, _) = trace.definitions();
        self.notes.extend(definitions.notes.iter().cloned());
        self.patched_by.extend(definitions.patched_by.iter().cloned());
        let mut calls: HashMap<(SiteId, bool), u64> = HashMap::new();
        trace.for_each_event(&mut |stamped| match stamped.event {
            Event::Alloc(alloc) => *calls.entry((alloc.site, false)).or_default() += 1,
            Event::Refused(refused) => *calls.entry((refused.site, true)).or_default() += 1,
            Event::PassedThrough { api } => drop(self.passed.insert(definitions.api_name(api))),
            _ => {}
        });
        for ((site, is_refused), count) in calls {
            let sums = if is_refused { &mut self.refusals } else { &mut self.allocations };
            *sums.entry(definitions.site_api_name(site)).or_default() += count;
        }
        if let Some(first) = trace.damage().ranges.first() {
            self.notes.insert(format!("{} is damaged: {first}", trace.path().display()));
        }
    }
}
