//! Physical objects end when handles, mappings and binds are all gone, in whatever order.

use serde_json::json;
use testkit::{Program, Setup, has};

const OBJECT: u64 = 20 << 20;

/// The report of `vmm HOW`, after its output was compared with the bare run's.
#[track_caller]
fn run(how: &str) -> serde_json::Value {
    let program = Program::c("vmm");
    let bare = program.run(Setup::simulated().arg(how)).ok();
    let ours = program.run(Setup::simulated().preload().arg(how)).ok();
    assert_eq!(ours.stdout, bare.stdout, "{how}");
    assert_eq!(ours.stderr, "", "{how}");
    let capped = program.run(Setup::simulated().cap("20GiB").arg(how)).ok();
    assert_eq!(
        capped.stdout.replace("total 20480 MiB", "total 24576 MiB"),
        bare.stdout,
        "{how}: a wide cap changes no answer"
    );
    ours.only_report()
}

#[track_caller]
fn saw(process: &serde_json::Value, objects: u64, peak: u64, live: u64) {
    let device = &process["devices"][0];
    let vmm = &device["by_kind"]["vmm"];
    has(vmm, json!({ "allocations": objects, "peak_bytes": peak, "live_bytes": live }));
    assert_eq!(device["live_bytes"], live, "{device:#}");
}

#[test]
fn objects_released_in_the_order_of_nccl_are_freed() {
    saw(&run("nccl"), 1, OBJECT, 0);
}

#[test]
fn looking_at_live_memory_does_not_free_it() {
    saw(&run("inspect"), 1, OBJECT, 0);
}

#[test]
fn released_first_it_lives_until_the_last_unmap() {
    saw(&run("release_first"), 1, OBJECT, 0);
}

#[test]
fn one_unmap_ends_several_whole_and_partial_maps() {
    saw(&run("ranges"), 3, 3 * OBJECT, 0);
}

#[test]
fn what_stays_is_live_at_the_end() {
    saw(&run("leave"), 2, 2 * OBJECT, 2 * OBJECT);
}

#[test]
fn reused_handles_are_other_objects() {
    saw(&run("reuse"), 50, OBJECT, 0);
}

#[test]
fn threads_lose_no_reference() {
    let process = run("threads");
    let device = &process["devices"][0];
    let vmm = &device["by_kind"]["vmm"];
    has(vmm, json!({ "allocations": 8 * 300 + 1, "live_bytes": 0 }));
    assert_eq!(device["allocations"], device["frees"], "{device:#}");
    assert!(vmm["peak_bytes"].as_u64().unwrap() <= 9 * OBJECT, "{device:#}");
}

#[test]
fn host_memory_is_no_vram() {
    let process = run("host");
    assert_eq!(process["devices"][0]["peak_bytes"], 0);
    has(&process["host_pinned"], json!({ "peak_bytes": OBJECT, "live_bytes": 0 }));
}

#[test]
fn an_import_is_in_no_sum() {
    let process = run("import");
    saw(&process, 1, OBJECT, 0);
    let imported = &process["devices"][0]["by_kind"]["imported"];
    has(imported, json!({ "allocations": 1, "peak_bytes": OBJECT, "live_bytes": 0 }));
}

#[test]
fn objects_fill_a_cap_and_not_a_byte_more() {
    let run = Program::c("vmm").run(Setup::simulated().cap("1GiB").arg("fill")).ok();
    assert!(run.stdout.contains("refused with 2, untouched 1"), "{}", run.stdout);
    assert!(run.stdout.contains("total 1024 MiB, free below one object 1"), "{}", run.stdout);
    let process = run.only_report();
    let device = &process["devices"][0];
    let peak = device["peak_bytes"].as_u64().unwrap();
    let context = device["context_bytes"].as_u64().unwrap();
    assert!(context > 100 << 20, "{device:#}");
    assert!(peak + context <= 1 << 30, "{device:#}");
    assert!(peak + context + OBJECT > 1 << 30, "{device:#}");
    has(device, json!({ "refused_by_cap": 1, "live_bytes": 0 }));
}
