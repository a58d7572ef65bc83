//! Memory of one process in another: the owner counts it, the borrower lists it and sums nothing.

use serde_json::{Value, json};
use testkit::{Program, Run, Scratch, Setup, has};
use vramtrace_format::{Event, SiteId, StackId, TraceReader};

/// As without us; returns the run with `change`.
fn run_of(how: &str, change: fn(Setup) -> Setup) -> Run {
    let run = |change: fn(Setup) -> Setup| {
        let scratch = Scratch::new();
        let state = scratch.0.join("devices");
        let setup = Setup::simulated().arg(how);
        let setup = setup.env("VRAMTRACE_SIM_STATE", state);
        Program::c("lending").run_in(change(setup), scratch)
    };
    let (bare, ours) = (run(|setup| setup), run(change));
    assert_eq!((&ours.stdout, ours.status), (&bare.stdout, 0), "{how}: {}", ours.stderr);
    ours
}

/// What each process borrowed.
fn imported(report: &Value) -> impl Iterator<Item = &Value> {
    let all = report["processes"].as_array().unwrap().iter();
    all.map(|process| &process["devices"][0]["by_kind"]["imported"])
}

/// Bytes that were borrowed at most and to the end, of the process that borrowed.
fn borrowed(run: &Run) -> (u64, u64) {
    let figures = |of: &Value| Some((of["peak_bytes"].as_u64()?, of["live_bytes"].as_u64()?));
    imported(&run.report()).filter_map(figures).max().unwrap_or_default()
}

/// A block of a pool that is imported twice; and opens and closes of one handle by several threads at once, where the entry
/// ends with the last close.
#[test]
fn what_is_borrowed_twice_is_borrowed_once_and_until_the_last_close() {
    let pool = run_of("pool", |setup| setup.cap("700MiB")).quiet();
    assert_eq!(borrowed(&pool), (64 << 20, 0));
    let threads = run_of("threads", Setup::preload).quiet();
    assert_eq!(borrowed(&threads), (64 << 20, 0));
}

/// The lender is killed while its memory is open elsewhere.
#[test]
fn memory_of_a_lender_that_has_died_is_closed_as_any_other() {
    assert_eq!(borrowed(&run_of("dead", Setup::preload)).1, 0);
}

#[test]
fn the_owner_counts_it_and_the_borrower_does_not() {
    let ours = run_of("twice", Setup::preload).quiet();
    assert!(ours.stdout.contains("same address 1"), "{}", ours.stdout);
    let report = ours.report();
    let allocations = |of: &Value| of["allocations"].as_u64().unwrap_or(0);
    let counts: Vec<u64> = imported(&report).map(allocations).collect();
    let [borrower, owner] = [2, 0].map(|count| counts.iter().position(|of| *of == count).unwrap());
    let device = |of: usize| &report["processes"][of]["devices"][0];
    has(device(owner), json!({ "peak_bytes": (64 + 518) << 20, "live_bytes": 0 }));
    // Two opens of one handle are one, and the one that stays open is another.
    let imported = &device(borrower)["by_kind"]["imported"];
    has(imported, json!({ "peak_bytes": 64 << 20, "live_bytes": 64 << 20 }));
    assert_eq!(
        (counts.len(), &device(borrower)["peak_bytes"]),
        (2, &json!(518 << 20)),
        "{report:#}"
    );
    is_reported(&ours);
    // What is borrowed is under no cap.
    run_of("twice", |setup| setup.cap("700MiB"));
}

/// The owner's trace names memory that is exported, with its address: some settings would break the export.
fn is_reported(ours: &Run) {
    let marked = ours.traces().into_iter().filter(|trace| {
        let bytes = testkit::trace_bytes(trace);
        let reader = TraceReader::new(&bytes).unwrap();
        let events: Vec<Event> = reader.events().map(|stamped| stamped.event).collect();
        let owned = events.iter().find_map(|event| match event {
            Event::Alloc(alloc) if alloc.size == 64 << 20 => Some(alloc.key),
            _ => None,
        });
        let shared = |event: &Event| match *event {
            Event::Shared { address, site, stack } => Some((address, site, stack)),
            _ => None,
        };
        let shared: Vec<_> = events.iter().filter_map(shared).collect();
        for (address, site, stack) in &shared {
            assert!(Some(*address) == owned && *site != SiteId(0) && *stack != StackId(0));
        }
        assert!(shared.len() <= 1, "one call");
        !shared.is_empty()
    });
    assert_eq!(marked.count(), 1, "the owner's trace");
}
