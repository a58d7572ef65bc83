//! Each API family under the preload answers as the bare driver does, and the ledger returns to
//! zero. The programs print results and sizes, no addresses.

use serde_json::json;
use testkit::{Program, Setup, has};

/// Runs `families FAMILY` bare and preloaded; returns the preloaded run's report.
fn same_as_bare(family: &str) -> serde_json::Value {
    let program = Program::c("families");
    let bare = program.run(Setup::simulated().arg(family)).ok();
    // Some end with a refused request.
    let quiet = Setup::simulated().preload().env("VRAMTRACE_OOM_REPORT", "off");
    let ours = program.run(quiet.arg(family)).ok();
    assert_eq!(ours.stdout, bare.stdout, "{family}: answers differ");
    assert_eq!(ours.stderr, bare.stderr, "{family}: stderr differs");
    ours.only_report()
}

#[track_caller]
fn back_to_zero(process: &serde_json::Value) {
    let device = &process["devices"][0];
    has(device, json!({ "live_bytes": 0, "live_allocations": 0 }));
    assert_eq!(device["allocations"], device["frees"], "{device:#}");
    assert_eq!(process["ended_in_order"], true);
}

/// Allocations of `kind`, its peak in bytes, and how often the driver refused.
#[track_caller]
fn saw(process: &serde_json::Value, kind: &str, allocations: u64, peak: u64, refused: u64) {
    let device = &process["devices"][0];
    let of_kind = &device["by_kind"][kind];
    has(of_kind, json!({ "allocations": allocations, "peak_bytes": peak }));
    has(device, json!({ "refused_by_driver": refused, "refused_by_cap": 0 }));
}

const MIB: u64 = 1 << 20;

#[test]
fn device_memory_is_recorded_in_pages_and_freed() {
    let process = same_as_bare("device");
    back_to_zero(&process);
    // 1,000 B take a page of 2 MiB, 3 MiB take two; refused: 2^45 bytes.
    saw(&process, "device", 2, 6 * MIB, 1);
}

#[test]
fn pitched_memory_is_recorded_in_pages_and_freed() {
    let process = same_as_bare("pitched");
    back_to_zero(&process);
    saw(&process, "pitched", 1, 2 * MIB, 0);
}

#[test]
fn managed_memory_is_recorded_in_pages_and_freed() {
    let process = same_as_bare("managed");
    back_to_zero(&process);
    saw(&process, "managed", 1, 6 * MIB, 0);
}

#[test]
fn pool_reservations_are_recorded_and_given_back() {
    let process = same_as_bare("pool");
    back_to_zero(&process);
    let device = &process["devices"][0];
    assert_eq!(device["by_kind"]["pool"]["allocations"], 3, "{device:#}");
    // 1,000 B reserve 32 MiB and 100 MiB reserve 128 more at the most.
    let peak = device["by_kind"]["pool"]["peak_bytes"].as_u64().unwrap();
    assert!((128 * MIB..=160 * MIB).contains(&peak), "{device:#}");
    assert_eq!(device["refused_by_driver"], 1);
}

#[test]
fn virtual_memory_objects_are_recorded_and_freed() {
    let process = same_as_bare("vmm");
    back_to_zero(&process);
    saw(&process, "vmm", 1, 64 * MIB, 1);
}

#[test]
fn arrays_and_mipmaps_are_recorded_and_freed() {
    let process = same_as_bare("array");
    back_to_zero(&process);
    saw(&process, "array", 2, 256 * MIB, 0);
    let device = &process["devices"][0];
    has(&device["by_kind"]["mipmapped"], json!({ "allocations": 1, "peak_bytes": 86 * MIB }));
}

#[test]
fn host_memory_is_its_own_class() {
    let process = same_as_bare("host");
    has(&process["host_pinned"], json!({ "live_bytes": 0, "peak_bytes": 2 * MIB }));
    assert_eq!(process["devices"][0]["peak_bytes"], 0);
}

#[test]
fn graph_memory_stays_until_trimmed() {
    let process = same_as_bare("graph");
    back_to_zero(&process);
    let device = &process["devices"][0];
    assert_eq!(device["by_kind"]["graph"]["peak_bytes"], 224 * MIB, "{device:#}");
}

#[test]
fn a_destroyed_context_frees_what_it_held() {
    let process = same_as_bare("context");
    back_to_zero(&process);
    saw(&process, "device", 1, 10 * MIB, 0);
}

#[test]
fn one_process_of_all_families_is_unchanged_under_a_wide_cap() {
    let program = Program::c("families");
    let bare = program.run(Setup::simulated()).ok();
    let ours = program.run(Setup::simulated().preload()).ok();
    assert_eq!(ours.stdout, bare.stdout);
    back_to_zero(&ours.only_report());
    let capped = program.run(Setup::simulated().cap("20GiB")).ok();
    assert_eq!(capped.stdout, bare.stdout, "a wide cap changes no answer");
}
