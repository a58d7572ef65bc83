//! A driver or an NVML that hangs, fails and dies: the program sees what it would see without us,
//! a hook is never the first to hang, and the cap's figures stay.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use testkit::{MIB, Program, Run, Setup};
use vramtrace_format::{Definition, Event, Refused, TraceReader};

fn how(name: &str) -> Setup {
    Setup::simulated().arg(name).timeout(Duration::from_secs(20))
}

/// As without us, under this cap if there is one.
#[track_caller]
fn as_bare(setup: Setup, cap: &str) -> Run {
    let change = |setup: Setup| if cap.is_empty() { setup.preload() } else { setup.cap(cap) };
    Program::c("sick").as_bare(setup, change)
}

#[test]
fn an_nvml_that_hangs_stops_nobody_and_is_named_once() {
    for (hangs, cap) in [("hangs:0", "8GiB"), ("hangs:2", "")] {
        let began = Instant::now();
        let ours = as_bare(how("threads").env("VRAMTRACE_SIM_NVML", hangs), cap);
        // It hangs for ever: one who waits at each reading is not done within a minute.
        assert!(began.elapsed() < Duration::from_secs(40), "{hangs} {cap}");
        assert_eq!(ours.stderr.lines().count(), 1, "{hangs} {cap}: {}", ours.stderr);
        assert!(ours.stderr.starts_with("vramtrace: NVML does not answer"), "{}", ours.stderr);
        assert_eq!(ours.only_report()["ended_in_order"], true);
    }
}

/// The thread that asks NVML is the parent's. A child makes none, asks nobody and waits for nobody.
#[test]
fn a_child_of_a_process_whose_nvml_hangs_does_not_hang() {
    for hangs in ["hangs:0", "hangs:5"] {
        let setup = how("forks").env("VRAMTRACE_SIM_NVML", hangs);
        let ours = as_bare(setup.timeout(Duration::from_secs(60)), "8GiB");
        assert_eq!(ours.stdout.matches("ended with 0\n").count(), 20, "{}", ours.stdout);
        assert!(ours.stderr.lines().count() <= 1, "{hangs}: {}", ours.stderr);
    }
}

/// What contexts took was seen before, and counts on.
#[test]
fn what_was_counted_stays_counted_when_nvml_falls_silent() {
    for ill in ["hangs:4", "lost:4"] {
        let setup = how("threads").env("VRAMTRACE_SIM_NVML", ill);
        // 518 MiB of the context, 64 and 512: they do not fit.
        let run = Program::c("sick").run(setup.cap("1024MiB"));
        assert!(run.stdout.contains("take(&p, 512 * MIB) = 2"), "{ill}: {}", run.stdout);
        assert_eq!(run.device()["refused_by_cap"], 1, "{ill}");
    }
}

#[test]
fn a_sticky_error_is_the_programs_and_a_reset_ends_it() {
    let setup = || how("sticky").env("VRAMTRACE_SIM_FAULT", "700@cuMemAlloc_v2:3");
    let ours = as_bare(setup(), "").quiet();
    assert!(ours.stdout.contains("= 700"), "{}", ours.stdout);
    assert_eq!(ours.device()["live_bytes"], 600 * MIB);
    // 518 MiB of the new context and 300, and not a second time 300.
    let capped = Program::c("sick").run(setup().cap("1000MiB")).ok();
    let tail: Vec<&str> = capped.stdout.lines().rev().take(2).collect();
    assert_eq!(tail, ["take(&p, 300 * MIB) = 2", "take(&p, 300 * MIB) = 0"], "{}", capped.stdout);
    assert!(capped.stdout.contains("= 700"), "the driver's answer, not ours: {}", capped.stdout);
}

#[test]
fn calls_after_the_drivers_end_get_its_answer() {
    for cap in ["", "8GiB"] {
        let ours = as_bare(how("late").env("VRAMTRACE_SIM_FAULT", "exit"), cap).quiet();
        assert_eq!(ours.stdout.matches("= 4\n").count(), 3, "{}", ours.stdout);
        let process = ours.only_report();
        assert_eq!(process["ended_in_order"], true);
        assert_eq!(process["devices"][0]["live_bytes"], 64 * MIB, "the free has failed");
    }
}

/// The thread that asks NVML does not keep the process alive.
#[test]
fn a_program_whose_first_thread_ends_first_ends() {
    as_bare(how("leave"), "8GiB");
}

/// Where a filter forbids threads, NVML is not asked at all, and one line says what that means.
#[test]
fn a_missing_nvml_thread_changes_nothing_and_is_reported() {
    let source = "../../shim/tests/programs/deny.c";
    let deny = Program::compiled("gcc", source, &["-shared", "-fPIC"]).0.display().to_string();
    let preloads = [testkit::shim().display().to_string(), deny.clone()].join(":");
    // Threads are made by clone3 from glibc 2.34 on.
    let call = if testkit::glibc_minor() < 34 { libc::SYS_clone } else { libc::SYS_clone3 };
    let filtered = |preload: &str| {
        let setup = Setup::simulated().arg("sticky").env("LD_PRELOAD", preload);
        let setup = setup.env("DENY_CALL", call.to_string());
        Program::c("sick").run(setup.env("DENY_ERROR", libc::EPERM.to_string())).ok()
    };
    let (bare, ours) = (filtered(&deny), filtered(&preloads));
    assert_eq!(ours.stdout, bare.stdout);
    assert_eq!(ours.stderr.lines().count(), 1, "{}", ours.stderr);
    assert!(ours.stderr.starts_with("vramtrace: cannot create the thread"), "{}", ours.stderr);
}

/// But for launches after a function's first, which do not pass the library, and a question about a stream's capture.
#[test]
fn out_of_memory_is_a_refusal_of_whichever_function_was_called() {
    let rows = include_str!("../../../docs/COVERAGE.md").lines();
    let names = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    let names = names.filter(|name| {
        name.starts_with("cu") && !["CtxReset", "CaptureInfo"].iter().any(|one| name.contains(one))
    });
    let setup = names.fold(how("each").preload(), Setup::arg);
    let run = Program::c("sick").run(setup.env("VRAMTRACE_SIM_FAULT", "2@cuCtxSynchronize:1")).ok();
    let mut called: Vec<&str> =
        run.stdout.lines().filter_map(|line| line.strip_suffix(" = 2")).collect();
    called[0] = "cuCtxSynchronize";
    let bytes = testkit::trace_bytes(&run.only_trace());
    let reader = TraceReader::new(&bytes).unwrap();
    let (mut apis, mut sites) = (HashMap::new(), HashMap::new());
    for definition in reader.definitions() {
        match definition {
            Definition::Api { id, name } => drop(apis.insert(id, name)),
            Definition::Site { id, api, .. } => drop(sites.insert(id, api)),
            _ => {}
        }
    }
    let refused = reader.events().filter_map(|stamped| match stamped.event {
        Event::Refused(Refused { site, .. }) => Some(apis[&sites[&site]].clone()),
        _ => None,
    });
    assert_eq!(refused.collect::<Vec<_>>(), called);
    assert!(called.len() > 80, "{}", called.len());
}
