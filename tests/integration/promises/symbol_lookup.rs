//! However a program looks up the driver, the ledger has each allocation once, with its size and
//! kind.

use serde_json::json;
use testkit::{Program, Setup, has};

const MIB: u64 = 1 << 20;

#[track_caller]
fn once_each(process: &serde_json::Value) {
    let device = &process["devices"][0];
    has(device, json!({ "allocations": 2, "frees": 2 }));
    for kind in ["device", "pool"] {
        assert_eq!(device["by_kind"][kind]["allocations"], 1, "{kind}: {device:#}");
    }
    has(&device["by_kind"]["device"], json!({ "peak_bytes": 4 * MIB, "live_bytes": 0 }));
}

#[track_caller]
fn through(lookup: &str) {
    let program = Program::c("lookups");
    let bare = program.run(Setup::simulated().arg(lookup)).ok();
    let ours = program.run(Setup::simulated().preload().arg(lookup)).ok();
    assert_eq!(ours.stdout, bare.stdout, "{lookup}");
    assert_eq!(ours.stderr, bare.stderr, "{lookup}");
    once_each(&ours.only_report());
}

#[test]
fn symbols_found_by_dlsym_are_recorded() {
    for lookup in ["dlsym", "default", "dlsym-of-dlsym"] {
        through(lookup);
    }
}

#[test]
fn symbols_found_by_rtld_next_are_recorded() {
    through("next");
}

/// Original versions, as cudart asks; legacy and per-thread default streams.
#[test]
fn symbols_found_by_get_proc_address_are_recorded() {
    for lookup in ["proc1-0", "proc1-1", "proc1-2"] {
        through(lookup);
    }
}

/// The newest version, through the pointer that it gives for itself.
#[test]
fn symbols_found_by_get_proc_address_v2_are_recorded() {
    for lookup in ["proc2-0", "proc2-1", "proc2-2"] {
        through(lookup);
    }
}
