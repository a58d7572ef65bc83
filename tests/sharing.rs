//! Memory of one process in another: the owner counts it, the borrower lists it and sums nothing.

mod support;
use support::{Program, Run, Scratch, Setup};

fn run(setup: Setup) -> Run {
    let scratch = Scratch::new();
    let state = scratch.0.join("devices");
    Program::c("sharing").run_in(setup.env("VRAMTRACE_SIM_STATE", state), scratch).ok()
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
    assert_eq!(owner["peak_bytes"], 64 << 20, "{owner:#}");
    assert_eq!(owner["live_bytes"], 0, "{owner:#}");
    let imported = &borrower["by_kind"]["imported"];
    // Two opens of one handle are one, and the one that stays open is another.
    assert_eq!(imported["allocations"], 2, "{borrower:#}");
    assert_eq!(imported["peak_bytes"], 64 << 20, "{borrower:#}");
    assert_eq!(imported["live_bytes"], 64 << 20, "{borrower:#}");
    assert_eq!(borrower["peak_bytes"], 0, "{borrower:#}");
}

#[test]
fn what_is_borrowed_is_under_no_cap() {
    let bare = run(Setup::simulated());
    let capped = run(Setup::simulated().cap("700MiB"));
    assert_eq!(capped.stdout, bare.stdout);
}
