//! However the program ends and whatever it does to us, its behaviour is its own: the same output
//! and status as without the preload, and at most one line of ours on stderr.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Program, Run, Scratch, Setup, has, report};

use crate::trace_file_damage::{files, process_of, tails};

/// Of programs that fill a disk, on a machine with other work.
const LONG: Duration = Duration::from_secs(600);

/// Runs `endings HOW` bare and preloaded, compares, and returns the preloaded run.
#[track_caller]
fn unchanged(setup: Setup) -> Run {
    let ours = Program::c("endings").as_bare(setup, Setup::preload);
    at_most_one_line(&ours.stderr);
    ours
}

#[track_caller]
fn at_most_one_line(stderr: &str) {
    assert!(stderr.lines().count() <= 1, "more than one line: {stderr}");
    assert!(stderr.is_empty() || stderr.starts_with("vramtrace: "), "{stderr}");
}

fn how(name: &str) -> Setup {
    Setup::simulated().arg(name)
}

/// The process that ended in order, of it and its forked child.
pub fn parent(run: &Run) -> Value {
    let mut all = run.traces().into_iter().map(|trace| process_of(&trace));
    all.find(|process| process["ended_in_order"] == true).expect("the parent's trace")
}

#[test]
fn an_end_is_recorded_as_what_it_was() {
    for (name, argument, in_order, status) in [
        ("return", "", true, None),
        ("exit", "", true, Some(7)),
        ("vfork", "", true, None),
        ("_exit", "0", true, Some(0)),
        ("_exit", "264", false, Some(8)),
        ("outlive", "6", false, Some(6)),
        ("abort", "", false, None),
    ] {
        let process = unchanged(how(name).arg(argument)).quiet().only_report();
        has(&process, json!({ "ended_in_order": in_order, "exit_status": status }));
        let live = process["devices"][0]["live_bytes"].as_u64();
        assert!(in_order || live >= Some(4 << 20), "{name}: {live:?}");
    }
}

#[test]
fn a_child_that_never_touches_cuda_leaves_nothing() {
    assert_eq!(unchanged(how("fork")).traces().len(), 1);
}

/// The child's refusal is not the parent's. The parent ended in order, the child by _exit: each tail belongs to one trace.
#[test]
fn a_forked_child_is_refused_as_without_us_and_spares_the_parents_file() {
    let run = unchanged(how("fork-cuda"));
    has(&parent(&run)["devices"][0], json!({ "live_bytes": 4 << 20, "refused_by_driver": 0 }));
    let (traces, left) = (run.traces(), tails(&run.scratch.0));
    assert!(left.len() < traces.len(), "{left:?}");
    let ended = traces.iter().filter(|trace| process_of(trace)["ended_in_order"] == true);
    assert_eq!(ended.count(), traces.len() - left.len());
}

#[test]
fn exec_and_threads_that_outlive_main_end_as_without_us() {
    unchanged(how("exec"));
    unchanged(how("outlive")).only_report();
}

#[test]
fn a_host_that_closes_every_descriptor_runs_on() {
    let run = unchanged(how("close-all"));
    let stopped = run.only_report()["stopped"].clone();
    // Either all records fitted in prepared windows, or recording stopped with a message.
    assert!(stopped.is_null() || run.stderr.starts_with("vramtrace: "), "{stopped} {}", run.stderr);
}

#[test]
fn a_host_that_reuses_our_descriptors_number_keeps_its_file() {
    unchanged(how("reuse-fd"));
}

#[test]
fn a_read_only_directory_stops_recording_not_the_program() {
    let run = unchanged(how("churn").arg(1000).cwd(Path::new("/proc")));
    assert!(run.stderr.contains("/proc"), "says where: {}", run.stderr);
    assert!(run.traces().is_empty());
}

#[test]
fn a_full_disk_stops_recording_not_the_program() {
    let scratch = Scratch::new();
    let full = scratch.0.join("full");
    std::fs::create_dir(&full).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=3m", "tmpfs"];
    let mounted = Command::new("mount").args(mount).arg(&full).output();
    if !mounted.is_ok_and(|done| done.status.success()) {
        return testkit::skip_here("full disk: mounting a tmpfs needs root");
    }
    let out = format!("{}/", full.display());
    let into_full = |setup: Setup| setup.preload().env("VRAMTRACE_OUT", &out);
    let ours = Program::c("endings").as_bare(how("churn").arg(150000).timeout(LONG), into_full);
    let report = report(&files(&full));
    assert!(Command::new("umount").arg(&full).status().unwrap().success());
    at_most_one_line(&ours.stderr);
    assert_eq!(ours.stderr.lines().count(), 1, "a stop is reported");
    assert!(report["processes"][0]["stopped"]["reason"].is_string(), "{report:#}");
}

#[test]
fn a_file_size_limit_does_not_kill() {
    let limit = ["prlimit", "--fsize=2097152"];
    let run = Program::c("endings")
        .run(how("churn").arg(150000).timeout(LONG).preload().through(&limit))
        .ok();
    assert!(run.stdout.contains("churned"), "{}", run.stdout);
    at_most_one_line(&run.stderr);
    let process = run.only_report();
    assert!(process["stopped"]["reason"].is_string(), "{process:#}");
}

#[test]
fn a_panic_in_a_hook_ends_recording_only() {
    for hook in ["cuMemAlloc_v2", "cuMemFree_v2", "cuDevicePrimaryCtxRetain"] {
        let run = unchanged(how("churn").arg(1000).env("VRAMTRACE_TEST_PANIC", hook));
        assert_eq!(run.stderr.lines().count(), 1, "{hook}: a stop is reported: {}", run.stderr);
    }
}

#[test]
fn a_panic_keeps_the_cap() {
    let setup = Setup::simulated().arg(4).arg(3000).cap("1GiB");
    let run = Program::c("hammer").run(setup.env("VRAMTRACE_TEST_PANIC", "cuMemAllocManaged")).ok();
    // Lines of "KIND asked N granted N".
    let bites = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        numbers[1] < numbers[0]
    };
    assert!(run.stdout.lines().any(bites), "the cap no longer bites");
}

/// Nobody counts where the state of the process could not be made: a cap that was asked for refuses.
#[test]
fn a_panic_before_there_is_a_state_keeps_the_cap() {
    let broken = |setup: Setup| setup.env("VRAMTRACE_TEST_PANIC", "state").arg("churn").arg(100);
    for name in ["VRAMTRACE_CAP", "VRAMTRACE_CAP_GROUP"] {
        let capped = Setup::simulated().preload().env(name, "8GiB").env("VRAMTRACE_OUT", "off");
        let run = Program::c("endings").run(broken(capped));
        assert_eq!(run.status, 98, "cuInit is refused: {} {}", run.stdout, run.stderr);
        let ours = run.stderr.lines().filter(|line| line.starts_with("vramtrace: "));
        let refuses = |line: &str| line.contains("every request for GPU memory is refused");
        assert_eq!(ours.map(refuses).collect::<Vec<_>>(), [true], "{}", run.stderr);
    }
    let warned = Setup::simulated().cap("1GiB").env("VRAMTRACE_CAP_MODE", "warn");
    Program::c("endings").run(broken(warned)).ok();
    unchanged(broken(Setup::simulated()));
}

/// A process may have any name; /proc shows its bytes as they are.
#[test]
fn a_name_that_is_no_text_changes_nothing() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let name = std::ffi::OsStr::from_bytes(b"n\xff\xfe) S 1");
    let program = Program(scratch.0.join(name));
    std::fs::copy(Program::c("endings").0, &program.0).unwrap();
    let ours = program.as_bare(how("return"), |setup| setup.cap("8GiB")).quiet().ok();
    assert_eq!(ours.device()["live_bytes"], 4 << 20);
}
