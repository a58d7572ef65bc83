//! Corners of the API and of a process's life that the other tests leave alone.

use serde_json::json;
use testkit::{Program, Run, Setup, has};

const MIB: u64 = 1 << 20;

fn corner(which: &str) -> Setup {
    Setup::simulated().arg(which)
}

/// As without us; returns the preloaded run.
#[track_caller]
fn same_as_bare(which: &str) -> Run {
    let program = Program::c("corners");
    let bare = program.run(corner(which)).ok();
    let ours = program.run(corner(which).preload()).ok();
    assert_eq!(ours.stdout, bare.stdout, "{which}");
    assert_eq!(ours.stderr, "", "{which}");
    ours
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
    let run = Program::c("corners").run(corner("managed").cap("8GiB")).ok();
    let process = run.only_report();
    let device = &process["devices"][0];
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
    let run = Program::c("corners").run(corner("padding").cap("560MiB")).ok();
    assert_eq!(number(&run, "used "), 32 * MIB - 1022, "{}", run.stdout);
    let device = &run.only_report()["devices"][0];
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
    let capped = Program::c("corners").run(corner("pools").cap("1000MiB")).ok();
    let second = "get(&b, 300 * MIB, pool, stream) = ";
    let results: Vec<&str> = capped.stdout.split(second).skip(1).map(|rest| &rest[..1]).collect();
    assert_eq!(results, ["0", "2"], "host memory is under no cap, managed is: {}", capped.stdout);
    let device = &capped.only_report()["devices"][0];
    assert_eq!(device["refused_by_cap"], 1, "{device:#}");
}

/// RMM's own tests do that, and the driver reads freed memory if it is asked for the figures of such a pool.
#[test]
fn a_destroyed_pool_is_not_read_though_requests_name_it() {
    let program = Program::c("corners");
    let bare = program.run(corner("destroyed")).ok();
    let ours = program.run(corner("destroyed").preload()).ok();
    assert_eq!(ours.stdout, bare.stdout);
    let device = &ours.only_report()["devices"][0];
    has(device, json!({ "live_bytes": 0, "refused_by_driver": 3 }));
    for cap in ["8GiB", "4TiB"] {
        let run = program.run(corner("destroyed").cap(cap)).ok();
        assert!(run.stdout.contains("late 1 huge 1"), "{cap}: {}", run.stdout);
    }
}

#[test]
fn memory_nodes_of_the_general_call_are_counted_and_capped() {
    let process = same_as_bare("nodes").only_report();
    let device = &process["devices"][0];
    let graph = &device["by_kind"]["graph"];
    has(graph, json!({ "peak_bytes": 224 * MIB, "allocations": 3 }));
    assert_eq!(device["live_bytes"], 0, "{device:#}");

    let capped = Program::c("corners").run(corner("nodes").cap("700MiB")).ok();
    let launched =
        capped.stdout.matches("cuGraphLaunch, (CUgraphExec, CUstream))(exec, stream) = 2");
    assert_eq!(launched.count(), 3, "{}", capped.stdout);
    assert_eq!(capped.only_report()["devices"][0]["refused_by_cap"], 3);
}

#[test]
fn what_is_bound_to_a_multicast_object_lives() {
    let process = same_as_bare("multicast").only_report();
    let device = &process["devices"][0];
    let vmm = &device["by_kind"]["vmm"];
    has(vmm, json!({ "allocations": 2, "live_bytes": 0 }));
    assert_eq!(vmm["peak_bytes"], 22 * MIB, "alive while it was bound: {device:#}");
}

#[test]
fn a_child_past_the_c_library_has_a_state_of_its_own() {
    let run = same_as_bare("clone");
    let parent = run
        .traces()
        .iter()
        .map(|trace| testkit::report(std::slice::from_ref(trace))["processes"][0].clone())
        .find(|process| process["ended_in_order"] == true)
        .expect("the parent's trace");
    let device = &parent["devices"][0];
    has(device, json!({ "live_bytes": 4 * MIB, "refused_by_driver": 0 }));
}

#[test]
fn children_forked_while_others_are_in_hooks_run_on() {
    let program = Program::c("corners");
    for setup in [corner("storm"), corner("storm").preload(), corner("storm").cap("20GiB")] {
        let run = program.run(setup).ok();
        assert_eq!(run.stdout, "good children 60\n");
        assert_eq!(run.stderr, "");
    }
}

#[test]
fn an_exit_out_of_a_signal_handler_never_hangs() {
    let program = Program::c("corners");
    for setup in [corner("alarm"), corner("alarm").preload()] {
        let run = program.run(setup).ok();
        assert_eq!(run.stdout, "good children 30\n");
        assert_eq!(run.stderr, "");
    }
}

#[test]
fn calls_that_may_bypass_the_recorder_are_reported() {
    let run = same_as_bare("escapes");
    assert!(run.stdout.starts_with("opened 1 1\n"), "{}", run.stdout);
    let report = testkit::vramtrace().arg("report").arg(run.only_trace()).output().unwrap();
    let text = String::from_utf8(report.stdout).unwrap();
    assert!(text.contains("RTLD_DEEPBIND") && text.contains("dlmopen"), "{text}");
}

#[test]
fn a_sanitizer_behind_us_is_reported_where_it_belongs() {
    let asked = std::process::Command::new("gcc").arg("-print-file-name=libasan.so").output();
    let there = asked.is_ok_and(|found| found.stdout.starts_with(b"/"));
    if !there {
        testkit::skip("corner cases: no AddressSanitizer");
        return;
    }
    let program = Program::c_with("corners", &["-fsanitize=address"]);
    let options = "verify_asan_link_order=0:detect_leaks=0";
    let run = program.run(corner("none").preload().env("ASAN_OPTIONS", options)).ok();
    assert!(run.stderr.contains("put libasan first in LD_PRELOAD"), "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}
