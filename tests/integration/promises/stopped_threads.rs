//! A thread that is taken out of the recorder's own code: cancelled asynchronously, or by `pthread_exit` or a
//! jump in a signal handler. No other thread hangs, the cap holds, the recording goes on; a jump may end it. The
//! driver takes no lock: one that did would hang without the recorder, too.

use crate::sanitizers::plain_driver;
use testkit::{Program, Run, Setup};

/// The cap of the tests, with room for what the driver has given and the program has lost.
const LIMIT: &str = "2048";
// (A jump out of the driver does not tell what the driver gave: the trace has unknown frees then, which
// `contradicts` expects.)

fn setup(how: &str, times: u32) -> Setup {
    let setup = Setup::simulated().arg(how).arg(times).arg(LIMIT);
    setup.env("LD_LIBRARY_PATH", plain_driver()).env("VRAMTRACE_STACKS", "native")
}

#[track_caller]
fn as_bare(how: &str, times: u32, change: impl Fn(Setup) -> Setup) -> Run {
    // With the unwinder, as each C++ program.
    let program = Program::c_with("stopped", &["-Wl,--no-as-needed", "-lgcc_s"]);
    // Without the recorder there is no cap: it may lose more, and prints so.
    let bare = program.run(setup(how, times)).ok();
    let ours = program.run(change(setup(how, times)).cap(&format!("{LIMIT}MiB"))).ok();
    assert!(bare.stdout.ends_with("goes on\n"), "{}", bare.stdout);
    assert_eq!(ours.stdout, "within the limit\ngoes on\n", "{how}: {}", ours.stderr);
    ours
}

/// The trace is whole: the end of the process is in it, and it says nothing of a failure.
#[track_caller]
fn recorded(run: &Run) {
    assert_eq!(run.only_report()["ended_in_order"], true, "{}", run.stderr);
    assert_eq!(run.stderr, "");
}

/// An end of the thread in a signal's handler, and a cancellation, wait for the end of the hook.
#[test]
fn what_ends_a_thread_in_a_hook_waits_for_its_end() {
    recorded(&as_bare("exit", 300, Setup::contradicts));
    recorded(&as_bare("cancel", 120, |setup| setup));
}

/// In the slow parts: windows that are begun, and a live page that is stored, again and again.
#[test]
fn an_end_in_maintenance_waits_too() {
    let bounded = |setup: Setup| setup.contradicts().env("VRAMTRACE_MAX", "16MiB");
    recorded(&as_bare("exit", 200, bounded));
}

#[test]
fn an_end_and_a_cancellation_in_a_mark_wait_too() {
    for how in ["exit", "cancel"] {
        let marks =
            |setup: Setup| setup.contradicts().env("NVTX_INJECTION64_PATH", testkit::shim());
        recorded(&as_bare(how, 80, marks));
    }
}

/// A jump shows nothing of itself: a lock may stay with the thread. Then nobody waits for it, and the
/// recording ends with one line. What cannot be counted down stays counted, so that requests may be refused.
#[test]
fn a_thread_that_leaves_unseen_leaves_nobody_waiting() {
    for (how, times) in [("context", 100), ("jump", 200), ("alternate", 200)] {
        let ours =
            as_bare(how, times, |setup| setup.contradicts().env("VRAMTRACE_OOM_REPORT", "off"));
        assert!(ours.stderr.lines().count() <= 1, "{how}: {}", ours.stderr);
        for line in ours.stderr.lines() {
            assert!(line.contains("was taken out of the recorder"), "{how}: {line}");
            assert!(line.ends_with("recording ends here, the program goes on"), "{how}: {line}");
        }
    }
}
