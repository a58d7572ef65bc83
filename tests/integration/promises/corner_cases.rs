//! Corners of the API and of a process's life that the other tests leave alone.

use serde_json::json;
use testkit::{MIB, Program, Run, Setup, has};

fn corner(which: &str) -> Setup {
    Setup::simulated().arg(which)
}

/// As without us; returns the preloaded run.
#[track_caller]
fn same_as_bare(which: &str) -> Run {
    Program::c("corners").as_bare(corner(which), Setup::preload).quiet().ok()
}

fn capped(which: &str, cap: &str) -> Run {
    Program::c("corners").run(corner(which).cap(cap)).ok()
}

/// The number behind a word of the output.
#[track_caller]
fn number(run: &Run, word: &str) -> u64 {
    let rest = run.stdout.split(word).nth(1).unwrap_or_else(|| panic!("{word}: {}", run.stdout));
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

/// The driver takes managed memory in steps of 128 MiB, which no figure shows: the cap does.
#[test]
fn managed_memory_counts_in_the_drivers_steps() {
    let run = capped("managed", "8GiB");
    let device = run.device();
    let peak = device["by_kind"]["managed"]["peak_bytes"].as_u64().unwrap();
    let granted = number(&run, "granted ");
    assert_eq!(peak, granted * 64 * MIB, "the report knows pages only: {device:#}");
    // The context takes 518 MiB: 59 steps fit, two blocks in each.
    assert_eq!(granted, 118, "{device:#}");
    // Every byte comes back, by frees and with a context.
    assert_eq!(number(&run, "again "), granted / 2);
    assert_eq!(number(&run, "after the context "), granted);
    assert_eq!(device["live_bytes"], 0);
}

/// A pool's figure of used bytes lacks what rounding adds: by it one more block would fit, and the
/// pool would grow past the cap by a step.
#[test]
fn a_pool_that_is_full_with_padding_does_not_grow_past_the_cap() {
    same_as_bare("padding");
    // The context takes 518 MiB and the pool 32; there is no room for a second step.
    let run = capped("padding", "560MiB");
    assert_eq!(number(&run, "used "), 32 * MIB - 1022, "{}", run.stdout);
    let device = run.device();
    assert_eq!(device["by_kind"]["pool"]["peak_bytes"], 32 * MIB, "{device:#}");
    assert_eq!(device["refused_by_cap"], 1, "{device:#}");
    assert!(run.stdout.contains("get(&third, 1, stream) = 2"), "{}", run.stdout);
}

#[test]
fn pools_of_managed_and_host_memory_count_as_their_own_kind() {
    let process = same_as_bare("pools").only_report();
    let device = &process["devices"][0];
    assert_eq!(device["live_bytes"], 0, "{device:#}");
    assert_eq!(device["by_kind"]["managed"]["peak_bytes"], 600 * MIB, "{device:#}");
    assert_eq!(process["host_pinned"]["peak_bytes"], 600 * MIB, "{process:#}");

    // Room for the context and one of two.
    let capped = capped("pools", "1000MiB");
    let second = "get(&b, 300 * MIB, pool, stream) = ";
    let results: Vec<&str> = capped.stdout.split(second).skip(1).map(|rest| &rest[..1]).collect();
    assert_eq!(results, ["0", "2"], "host memory is under no cap, managed is: {}", capped.stdout);
    assert_eq!(capped.device()["refused_by_cap"], 1);
}

/// RMM's own tests do that, and the driver reads freed memory if it is asked for the figures of such a pool.
#[test]
fn a_destroyed_pool_is_not_read_though_requests_name_it() {
    let ours = Program::c("corners").as_bare(corner("destroyed"), Setup::preload).ok();
    has(&ours.device(), json!({ "live_bytes": 0, "refused_by_driver": 3 }));
    for cap in ["8GiB", "4TiB"] {
        let run = capped("destroyed", cap);
        assert!(run.stdout.contains("late 1 huge 1"), "{cap}: {}", run.stdout);
    }
}

#[test]
fn memory_nodes_of_the_general_call_are_counted_and_capped() {
    let device = same_as_bare("nodes").device();
    let graph = &device["by_kind"]["graph"];
    has(graph, json!({ "peak_bytes": 224 * MIB, "allocations": 3 }));
    assert_eq!(device["live_bytes"], 0, "{device:#}");

    let capped = capped("nodes", "700MiB");
    let refused = "cuGraphLaunch, (CUgraphExec, CUstream))(exec, stream) = 2";
    assert_eq!(capped.stdout.matches(refused).count(), 3, "{}", capped.stdout);
    assert_eq!(capped.device()["refused_by_cap"], 3);
}

#[test]
fn what_is_bound_to_a_multicast_object_lives() {
    let device = same_as_bare("multicast").device();
    let vmm = &device["by_kind"]["vmm"];
    has(vmm, json!({ "allocations": 2, "live_bytes": 0 }));
    assert_eq!(vmm["peak_bytes"], 22 * MIB, "alive while it was bound: {device:#}");
}

#[test]
fn a_child_past_the_c_library_has_a_state_of_its_own() {
    let parent = crate::process_exit::parent(&same_as_bare("clone"));
    has(&parent["devices"][0], json!({ "live_bytes": 4 * MIB, "refused_by_driver": 0 }));
}

/// Forked while others are in hooks; and an exit out of a signal's handler.
#[test]
fn children_run_on_and_an_exit_out_of_a_handler_never_hangs() {
    for (how, good) in [("storm", "good children 60\n"), ("alarm", "good children 30\n")] {
        assert_eq!(same_as_bare(how).stdout, good);
        assert_eq!(capped(how, "20GiB").quiet().stdout, good);
    }
}

#[test]
fn calls_that_may_bypass_the_recorder_are_reported() {
    let run = same_as_bare("escapes");
    assert!(run.stdout.starts_with("opened 1 1\n"), "{}", run.stdout);
    let text = run.scratch.text("report .");
    assert!(text.contains("RTLD_DEEPBIND") && text.contains("dlmopen"), "{text}");
}

#[test]
fn a_sanitizer_behind_us_is_reported_where_it_belongs() {
    if !crate::sanitizers::has("libasan.so") {
        return testkit::skip("corner cases: no AddressSanitizer");
    }
    let program = Program::c_with("corners", &["-fsanitize=address"]);
    let options = "verify_asan_link_order=0:detect_leaks=0";
    let run = program.run(corner("none").preload().env("ASAN_OPTIONS", options)).ok();
    assert!(run.stderr.contains("put libasan first in LD_PRELOAD"), "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}
