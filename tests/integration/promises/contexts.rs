//! Contexts: counted as the driver counts them, and what ends with one leaves the ledger.

use serde_json::json;
use testkit::{Program, Setup, has};

const MIB: u64 = 1 << 20;

/// The report of `contexts HOW`, after its output was compared with the bare run's.
#[track_caller]
fn run(how: &str) -> serde_json::Value {
    let program = Program::c("contexts");
    let bare = program.run(Setup::simulated().arg(how)).ok();
    for setup in [Setup::simulated().preload(), Setup::simulated().cap("20GiB")] {
        let ours = program.run(setup.arg(how)).ok();
        assert_eq!(ours.stdout, bare.stdout, "{how}");
        assert_eq!(ours.stderr, "", "{how}");
    }
    program.run(Setup::simulated().preload().arg(how)).ok().only_report()
}

#[track_caller]
fn saw(process: &serde_json::Value, kind: &str, allocations: u64, peak: u64) {
    let device = &process["devices"][0];
    assert_eq!(device["by_kind"][kind]["allocations"], allocations, "{kind}: {device:#}");
    assert_eq!(device["by_kind"][kind]["peak_bytes"], peak, "{kind}: {device:#}");
    assert_eq!(device["by_kind"][kind]["live_bytes"], 0, "{kind}: {device:#}");
}

#[track_caller]
fn nothing_left(process: &serde_json::Value) {
    let device = &process["devices"][0];
    has(device, json!({ "live_bytes": 0, "live_allocations": 0 }));
}

#[test]
fn the_last_release_of_the_primary_context_frees_its_memory() {
    let process = run("primary");
    saw(&process, "device", 3, 20 * MIB);
    nothing_left(&process);
}

#[test]
fn a_reset_frees_and_the_count_stays() {
    let process = run("reset");
    saw(&process, "device", 3, 20 * MIB);
    nothing_left(&process);
}

#[test]
fn work_after_a_reset_goes_on_in_the_same_primary_context() {
    let process = run("reset_on");
    saw(&process, "device", 25, 1024 * MIB);
    nothing_left(&process);
}

#[test]
fn a_capture_ends_with_its_stream_or_its_context() {
    nothing_left(&run("captures"));
}

#[test]
fn a_destroyed_context_takes_its_own_and_leaves_what_outlives_it() {
    let process = run("destroy");
    saw(&process, "device", 1, 10 * MIB);
    saw(&process, "managed", 1, 6 * MIB);
    saw(&process, "array", 1, 4 * MIB);
    saw(&process, "vmm", 1, 4 * MIB);
    saw(&process, "pool", 1, 32 * MIB);
    has(&process["host_pinned"], json!({ "peak_bytes": MIB, "live_bytes": 0 }));
    nothing_left(&process);
}

#[test]
fn handles_that_come_again_are_other_contexts() {
    let process = run("many");
    saw(&process, "device", 20, 2 * MIB);
    nothing_left(&process);
}

#[test]
fn a_thread_without_a_context_gets_the_drivers_answers() {
    let program = Program::c("contexts");
    let bare = program.run(Setup::simulated().arg("nowhere")).ok();
    for setup in [Setup::simulated().preload(), Setup::simulated().cap("1GiB")] {
        assert_eq!(program.run(setup.arg("nowhere")).ok().stdout, bare.stdout);
    }
}
