//! However the program ends and whatever it does to us, its behaviour is its own: the same output
//! and status as without the preload, and at most one line of ours on stderr.

use std::process::Command;
use testkit::{Program, Run, Scratch, Setup};

/// Runs `endings HOW` bare and preloaded, compares, and returns the preloaded run.
#[track_caller]
fn unchanged(setup: Setup) -> Run {
    let program = Program::c("endings");
    let bare = program.run(setup.clone());
    let ours = program.run(setup.preload());
    assert_eq!(ours.stdout, bare.stdout, "stderr: {}", ours.stderr);
    assert_eq!(ours.status, bare.status);
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

#[test]
fn an_orderly_end_is_recorded() {
    for name in ["return", "exit"] {
        let run = unchanged(how(name));
        assert_eq!(run.only_report()["ended_in_order"], true, "{name}");
        assert_eq!(run.stderr, "");
    }
}

#[test]
fn a_sudden_end_is_recorded_as_one() {
    for name in ["_exit", "abort"] {
        let process = unchanged(how(name)).only_report();
        assert_eq!(process["ended_in_order"], false, "{name}");
        assert_eq!(process["devices"][0]["live_bytes"], 4 << 20, "{name}");
    }
}

#[test]
fn a_child_that_never_touches_cuda_leaves_nothing() {
    assert_eq!(unchanged(how("fork")).traces().len(), 1);
}

#[test]
fn a_forked_child_is_refused_as_without_us_and_spares_the_parents_file() {
    let run = unchanged(how("fork-cuda"));
    let parent = run
        .traces()
        .iter()
        .map(|t| testkit::report(std::slice::from_ref(t))["processes"][0].clone())
        .find(|p| p["ended_in_order"] == true)
        .expect("the parent's trace");
    assert_eq!(parent["devices"][0]["live_bytes"], 4 << 20);
    assert_eq!(
        parent["devices"][0]["refused_by_driver"], 0,
        "the child's refusal is not the parent's"
    );
}

#[test]
fn exec_and_threads_that_outlive_main_end_as_without_us() {
    unchanged(how("exec"));
    let run = unchanged(how("outlive"));
    run.only_report();
}

#[test]
fn a_host_that_closes_every_descriptor_runs_on() {
    let run = unchanged(how("close-all"));
    let process = run.only_report();
    let stopped = &process["stopped"];
    // Either all records fitted in prepared windows, or recording stopped with a message.
    assert!(stopped.is_null() || run.stderr.starts_with("vramtrace: "), "{stopped} {}", run.stderr);
}

#[test]
fn a_host_that_reuses_our_descriptors_number_keeps_its_file() {
    unchanged(how("reuse-fd"));
}

#[test]
fn a_read_only_directory_stops_recording_not_the_program() {
    let run = unchanged(how("churn").arg(1000).cwd(std::path::Path::new("/proc")));
    assert!(run.stderr.contains("/proc"), "says where: {}", run.stderr);
    assert!(run.traces().is_empty());
}

#[test]
fn a_full_disk_stops_recording_not_the_program() {
    let scratch = Scratch::new();
    let full = scratch.0.join("full");
    std::fs::create_dir(&full).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
        .arg(&full)
        .output()
        .is_ok_and(|o| o.status.success());
    if !mounted {
        return testkit::skip_here("full disk: mounting a tmpfs needs root");
    }
    let bare = Program::c("endings").run(how("churn").arg(400000));
    let ours = Program::c("endings").run(
        how("churn").arg(400000).preload().env("VRAMTRACE_OUT", format!("{}/", full.display())),
    );
    let traces: Vec<_> = std::fs::read_dir(&full).unwrap().map(|e| e.unwrap().path()).collect();
    let report = testkit::report(&traces);
    let unmounted = Command::new("umount").arg(&full).status().unwrap();
    assert!(unmounted.success());
    assert_eq!((ours.stdout, ours.status), (bare.stdout, bare.status));
    at_most_one_line(&ours.stderr);
    assert_eq!(ours.stderr.lines().count(), 1, "a stop is reported");
    assert!(report["processes"][0]["stopped"]["reason"].is_string(), "{report:#}");
}

#[test]
fn a_file_size_limit_does_not_kill() {
    let scratch = Scratch::new();
    let program = Program::c("endings");
    let mut command = how("churn").arg(400000).preload().command(&program.0, &scratch);
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, || {
            let limit = libc::rlimit { rlim_cur: 2 << 20, rlim_max: 2 << 20 };
            if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("churned"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    at_most_one_line(&stderr);
    let process = &testkit::report(&scratch.traces())["processes"][0];
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
    let run = Program::c("hammer").run(
        Setup::simulated()
            .arg(4)
            .arg(3000)
            .cap("1GiB")
            .env("VRAMTRACE_TEST_PANIC", "cuMemAllocManaged"),
    );
    assert_eq!(run.status, 0, "{}", run.stderr);
    let total: Vec<(u64, u64)> = run
        .stdout
        .lines()
        .map(|l| {
            let w: Vec<&str> = l.split(' ').collect();
            (w[2].parse().unwrap(), w[4].parse().unwrap())
        })
        .collect();
    assert!(total.iter().any(|(asked, granted)| granted < asked), "the cap no longer bites");
}

/// Nobody counts where the state of the process could not be made: a cap that was asked for refuses.
#[test]
fn a_panic_before_there_is_a_state_keeps_the_cap() {
    let broken = |setup: Setup| setup.env("VRAMTRACE_TEST_PANIC", "state").arg("churn").arg(100);
    for name in ["VRAMTRACE_CAP", "VRAMTRACE_CAP_GROUP"] {
        let capped = Setup::simulated().preload().env(name, "8GiB").env("VRAMTRACE_OUT", "off");
        let run = Program::c("endings").run(broken(capped));
        assert_eq!(run.status, 98, "cuInit is refused: {} {}", run.stdout, run.stderr);
        let ours: Vec<&str> =
            run.stderr.lines().filter(|line| line.starts_with("vramtrace: ")).collect();
        assert_eq!(ours.len(), 1, "{}", run.stderr);
        assert!(ours[0].contains("every request for GPU memory is refused"), "{}", run.stderr);
    }
    let warned = Setup::simulated().cap("1GiB").env("VRAMTRACE_CAP_MODE", "warn");
    assert_eq!(Program::c("endings").run(broken(warned)).status, 0);
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
    let bare = program.run(how("return"));
    let ours = program.run(how("return").cap("8GiB"));
    assert_eq!((&*ours.stdout, ours.status, &*ours.stderr), (&*bare.stdout, 0, ""));
    assert_eq!(ours.only_report()["devices"][0]["live_bytes"], 4 << 20);
}
