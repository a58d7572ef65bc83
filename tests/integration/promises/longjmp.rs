//! A longjmp across a driver call: the rest of the thread is recorded and capped as before.

use testkit::{MIB, Program, Run, Setup};

fn setup(how: &str) -> Setup {
    Setup::simulated().arg(how).env("VRAMTRACE_SIM_FAULT", "hang@cuMemAlloc_v2:2")
}

fn notes(run: &Run) -> usize {
    let left = |note: &&String| note.starts_with("a longjmp left a driver call");
    run.notes().iter().filter(left).count()
}

#[test]
fn what_follows_is_recorded_and_it_is_said_once() {
    let program = Program::c("left");
    for how in ["stack", "alternate", "deep"] {
        let ours = program.as_bare(setup(how), Setup::preload).quiet().ok();
        let device = ours.device();
        assert_eq!(device["live_bytes"], 522 * MIB, "2 + 8 + 512: {how} {device:#}");
        assert_eq!(notes(&ours), 1, "{how} {:#}", ours.only_report());
    }
}

/// What was promised to the call stays counted: the driver may have given it.
#[test]
fn what_follows_is_capped() {
    for how in ["stack", "alternate", "deep"] {
        // The context takes 518 MiB; with the 64 MiB of the call that was left, 512 do not fit.
        let run = Program::c("left").run(setup(how).cap("1100MiB")).ok();
        let last = run.stdout.lines().last().unwrap();
        assert!(last.ends_with("(&p, size) = 2"), "{how}: {}", run.stdout);
        let device = run.device();
        assert_eq!(device["refused_by_cap"], 1, "{how} {device:#}");
        assert_eq!(device["live_bytes"], 10 * MIB, "{how} {device:#}");
    }
}

/// A call that waits is not left: those of a handler in the middle of it pass through, as before.
#[test]
fn a_call_that_waits_is_not_taken_for_left() {
    let ours = Program::c("left").run(setup("nested").preload()).ok();
    let device = ours.device();
    assert_eq!(device["live_bytes"], 522 * MIB, "{device:#} {}", ours.stdout);
    assert_eq!(notes(&ours), 1);
}
