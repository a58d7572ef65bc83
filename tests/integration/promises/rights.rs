//! A thread that gives up rights of its own does not end the recording of the others.

use testkit::{MIB, Program, Setup};
use vramtrace_format::{Event, TraceReader};

/// It fills all windows, and loses events; the first thread goes on with its next call.
#[test]
fn recording_pauses_until_a_thread_comes_that_can_write() {
    let program = Program::c("rights");
    const WAYS: &str = "user real root landlock deadline openat clone pwrite64 fallocate";
    for how in WAYS.split(' ') {
        for when in ["before", "after"] {
            let run = program.run(Setup::simulated().preload().arg(how).arg(when));
            if run.status == 77 {
                testkit::skip(&format!("rights: {}", run.stdout.trim()));
                continue;
            }
            let run = run.ok();
            assert_eq!(run.stdout, "refused: 0\n", "{how}: {}", run.stderr);
            let lines = |text: &str| run.stderr.lines().filter(|line| line.contains(text)).count();
            let all = run.stderr.lines().count();
            let counts = (lines("recording pauses"), lines("it goes on"), lines("vramtrace: "));
            assert_eq!(counts, (1, 1, all), "{}", run.stderr);
            let process = run.only_report();
            assert_eq!(process["ended_in_order"], true, "{how} {when}");
            assert_eq!(process["damage"]["places"], 0, "{how} {when}");
            assert_eq!(process["recording_off"][0]["by"], "unwritable", "{how} {when}");
            let device = &process["devices"][0];
            assert_eq!(device["live_bytes"], 68 * MIB, "{how} {when}");
            let before = if when == "before" { 0 } else { 10 };
            assert_eq!(device["allocations"], 200_014 + before, "{how} {when}");
            // The first call that can be recorded is.
            let bytes = testkit::trace_bytes(&run.only_trace());
            let reader = TraceReader::new(&bytes).unwrap();
            let mut events = reader.events().map(|stamped| stamped.event);
            let is_first = |event| matches!(event, Event::Alloc(one) if one.size == 8 * MIB);
            assert!(events.any(is_first), "{how} {when}");
        }
    }
}
