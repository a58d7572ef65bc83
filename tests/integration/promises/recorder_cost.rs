//! What the recorder costs stands in every trace and in its report: also where the run was killed.

use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use testkit::{InteractiveProgram, Program, Setup};

fn cost(process: &Value) -> (u64, f64, u64, u64) {
    let cost = &process["recorder"];
    let number = |name: &str| cost[name].as_u64().unwrap_or_else(|| panic!("{name}: {process:#}"));
    assert_eq!(number("timed_one_of"), 256);
    let seconds = cost["in_calls_s"].as_f64().unwrap_or(0.0);
    (number("timed_calls"), seconds, number("written_bytes"), number("stacks"))
}

#[test]
fn a_trace_says_what_its_recorder_cost() {
    const PAIRS: u64 = 20_000;
    let setup = Setup::simulated().preload().arg("churn").arg(PAIRS);
    let run = Program::c("endings").run(setup.env("VRAMTRACE_MAX", "unlimited")).ok();
    let (calls, seconds, bytes, stacks) = cost(&run.only_report());
    // One of 256 of the thread's calls: some few come before the pairs and between.
    let wanted = 2 * PAIRS / 256;
    assert!((wanted..wanted + 20).contains(&calls), "{calls}, not {wanted}");
    assert!(seconds > 0.0 && seconds < 60.0, "{seconds}");
    assert!((1..50).contains(&stacks), "{stacks}");
    let trace = run.only_trace();
    let length = std::fs::metadata(&trace).unwrap().size();
    assert!(bytes > 32 * PAIRS && bytes <= length, "{bytes} of {length}");
    let text = run.scratch.text("report .");
    let line = text.lines().find(|line| line.starts_with("  recorder")).expect("its line");
    assert!(line.contains(" in calls (") && line.contains(" written, "), "{line}");
    assert!(line.chars().count() <= 100, "{line}");
}

#[test]
fn a_killed_one_has_the_last_that_was_written() {
    let mut process = InteractiveProgram::start(Setup::simulated().preload());
    assert_eq!(process.result("a 16"), 0);
    process.kill();
    let (_, _, bytes, _) = cost(&testkit::report(&process.traces())["processes"][0]);
    assert!(bytes > 0);
}
