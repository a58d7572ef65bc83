//! Memory of one process in another: the owner counts it, the borrower lists it and sums nothing.

use serde_json::json;
use testkit::{Program, Run, Scratch, Setup, has};
use vramtrace_format::{Event, SiteId, StackId, TraceReader};

fn run_of(program: &str, setup: Setup) -> Run {
    let scratch = Scratch::new();
    let state = scratch.0.join("devices");
    Program::c(program).run_in(setup.env("VRAMTRACE_SIM_STATE", state), scratch)
}

fn run(setup: Setup) -> Run {
    run_of("sharing", setup).ok()
}

/// Bytes that were borrowed at most and to the end, of the process that borrowed.
fn borrowed(run: &Run) -> (u64, u64) {
    let report = run.report();
    let imported = report["processes"].as_array().unwrap().iter().filter_map(|process| {
        let imported = &process["devices"][0]["by_kind"]["imported"];
        Some((imported["peak_bytes"].as_u64()?, imported["live_bytes"].as_u64()?))
    });
    imported.max().unwrap_or_default()
}

#[test]
fn a_block_of_a_pool_that_is_imported_twice_is_borrowed_twice() {
    let bare = run_of("lending", Setup::simulated().arg("pool")).ok();
    let ours = run_of("lending", Setup::simulated().arg("pool").cap("700MiB")).ok();
    assert_eq!((&ours.stdout, ours.stderr.as_str()), (&bare.stdout, ""));
    assert_eq!(borrowed(&ours), (64 << 20, 0));
}

/// Opens and closes by several threads at once: the entry ends with the last close.
#[test]
fn threads_that_open_one_handle_at_once_have_it_once() {
    let bare = run_of("lending", Setup::simulated().arg("threads")).ok();
    let ours = run_of("lending", Setup::simulated().arg("threads").preload()).ok();
    assert_eq!((&ours.stdout, ours.stderr.as_str()), (&bare.stdout, ""));
    assert_eq!(borrowed(&ours), (64 << 20, 0));
}

/// The lender is killed while its memory is open elsewhere.
#[test]
fn memory_of_a_lender_that_has_died_is_closed_as_any_other() {
    let bare = run_of("lending", Setup::simulated().arg("dead"));
    let ours = run_of("lending", Setup::simulated().arg("dead").preload());
    assert_eq!(bare.status, 0, "{}", bare.stderr);
    assert_eq!((&ours.stdout, ours.status), (&bare.stdout, bare.status), "{}", ours.stderr);
    assert!(borrowed(&ours).1 == 0);
}

#[test]
fn the_owner_counts_it_and_the_borrower_does_not() {
    let bare = run(Setup::simulated());
    let ours = run(Setup::simulated().preload());
    assert_eq!(ours.stdout, bare.stdout);
    assert_eq!(ours.stderr, "");
    assert!(ours.stdout.contains("same address 1"), "{}", ours.stdout);

    let report = ours.report();
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 2, "{report:#}");
    let borrowed = |process: &serde_json::Value| {
        process["devices"][0]["by_kind"]["imported"]["allocations"].as_u64().unwrap_or(0)
    };
    let borrower = processes.iter().find(|process| borrowed(process) > 0).expect("a borrower");
    let owner = processes.iter().find(|process| borrowed(process) == 0).expect("an owner");
    let (borrower, owner) = (&borrower["devices"][0], &owner["devices"][0]);
    has(owner, json!({ "peak_bytes": 64 << 20, "live_bytes": 0 }));
    let imported = &borrower["by_kind"]["imported"];
    // Two opens of one handle are one, and the one that stays open is another.
    has(imported, json!({ "allocations": 2, "peak_bytes": 64 << 20, "live_bytes": 64 << 20 }));
    assert_eq!(borrower["peak_bytes"], 0, "{borrower:#}");
}

#[test]
fn what_is_borrowed_is_under_no_cap() {
    let bare = run(Setup::simulated());
    let capped = run(Setup::simulated().cap("700MiB"));
    assert_eq!(capped.stdout, bare.stdout);
}

/// The trace names memory that is exported, with its address: some settings would break the export.
#[test]
fn what_is_shared_is_reported() {
    let ours = run(Setup::simulated().preload());
    let marked = ours.traces().into_iter().filter(|trace| {
        let bytes = testkit::trace_bytes(trace);
        let reader = TraceReader::new(&bytes).unwrap();
        let events: Vec<Event> = reader.events().map(|stamped| stamped.event).collect();
        let owned = events.iter().find_map(|event| match event {
            Event::Alloc(alloc) if alloc.size == 64 << 20 => Some(*alloc),
            _ => None,
        });
        let shared: Vec<_> = events
            .iter()
            .filter_map(|event| match *event {
                Event::Shared { address, site, stack } => Some((address, site, stack)),
                _ => None,
            })
            .collect();
        for (address, site, stack) in &shared {
            assert_eq!(Some(*address), owned.map(|alloc| alloc.key));
            assert!(*site != SiteId(0) && *stack != StackId(0));
        }
        assert!(shared.len() <= 1, "one call");
        !shared.is_empty()
    });
    assert_eq!(marked.count(), 1, "the owner's trace");
}
