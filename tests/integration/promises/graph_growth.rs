//! Memory of executable graphs and streams: whenever it shows, it belongs to the line that made them.

use serde_json::Value;
use testkit::{MIB, Program, Run, Setup};

fn run(name: &str, requests: u32, setup: Setup) -> Run {
    let setup = setup.env("VRAMTRACE_SIM_GRAPHS", "1").env("VRAMTRACE_STACKS", "native");
    let setup = setup.arg(name).arg(requests.to_string());
    Program::c_with("graph_growth", &["-lpthread"]).run(setup).ok()
}

/// On the program's own clock: readings take no time, so none is left out.
fn exact(name: &str, requests: u32) -> Run {
    run(name, requests, Setup::simulated().preload().env("VRAMTRACE_TEST_CLOCK", "0"))
}

/// How often NVML was asked.
fn lists(run: &Run) -> u64 {
    let lists = run.stdout.lines().find_map(|line| line.strip_prefix("lists "));
    lists.unwrap().parse().unwrap()
}

/// What the driver took: cause, function of the program (`None`: not known), bytes.
fn taken(run: &Run) -> Vec<(String, Option<String>, u64)> {
    let report = run.only_report();
    let by = report["devices"][0]["driver_bytes_by"].as_array().unwrap().clone();
    let function = |taken: &Value| {
        let lines = ["leaking_line", "other_line", "leaking_stream"];
        let at = ["lead", "caller"].into_iter().filter_map(|role| taken[role].as_u64());
        let known = at.filter_map(|at| taken["frames"][at as usize]["function"].as_str());
        known.into_iter().find(|name| lines.contains(name)).map(String::from)
    };
    by.iter()
        .map(|taken| {
            let cause = taken["cause"].as_str().unwrap().to_string();
            (cause, function(taken), taken["bytes"].as_u64().unwrap())
        })
        .collect()
}

fn bytes(taken: &[(String, Option<String>, u64)], cause: &str, line: Option<&str>) -> u64 {
    let those = taken.iter().filter(|(of, by, _)| of == cause && by.as_deref() == line);
    those.map(|(_, _, bytes)| bytes).sum()
}

/// The driver's law of 60 graphs of 2,000 nodes is that of an H200: 306 MiB, here in whole pages.
#[test]
fn what_a_first_launch_takes_is_the_line_that_instantiated() {
    let run = exact("kept", 60);
    let taken = taken(&run);
    assert_eq!(bytes(&taken, "graphs", Some("leaking_line")), 308 * MIB, "{taken:?}");
    assert_eq!(taken.len(), 1, "{taken:?}");
}

/// Each reading waits a millisecond, so that most calls are followed by none.
#[test]
fn calls_that_no_reading_followed_are_one_lines_if_they_are() {
    let slow = || Setup::simulated().preload().env("VRAMTRACE_SIM_NVML", "slow:1000");
    for (name, cause, line, requests) in
        [("kept", "graphs", "leaking_line", 60), ("kept-streams", "streams", "leaking_stream", 100)]
    {
        let taken = taken(&run(name, requests, slow()));
        let of_line = bytes(&taken, cause, Some(line));
        let all: u64 = taken.iter().map(|(_, _, bytes)| bytes).sum();
        assert!(of_line * 100 >= all * 95 && all > 40 * MIB, "{name}: {taken:?}");
    }
}

/// NVML answers in a millisecond: 100 readings take the 0.1 s of the start. After them one in 1,000 of the time, 3 to 6 s, is
/// left; without the budget each request has four readings. The recorder's time has all of them.
#[test]
fn readings_of_nvml_stay_within_their_budget() {
    // Calls of two lines in turn never share a reading: there the budget alone bounds them.
    for (name, requests) in
        [("kept", 100), ("temporary", 100), ("kept-streams", 100), ("alternate", 300)]
    {
        let slow = Setup::simulated().preload().env("VRAMTRACE_SIM_NVML", "slow:1000");
        let run = run(name, requests, slow);
        let lists = lists(&run);
        assert!((10..=110).contains(&lists), "{name}: {lists} readings");
        let taken = run.only_report()["recorder"]["in_calls_s"].as_f64().unwrap();
        assert!(taken > lists as f64 * 0.001 * 0.8, "{name}: {taken} s of {lists} readings");
    }
}

/// A reading is a wait that a program can notice. Where samples are recorded, for programs that stay on, NVML is not asked
/// because some time has passed. On the program's own clock: how long a reading waits on a busy machine decides nothing.
#[test]
fn where_samples_are_recorded_nvml_is_asked_about_what_changed() {
    for (recording, fewest, most) in [("full", 40, 60), ("sampled", 0, 0)] {
        let counted = Setup::simulated().preload().env("VRAMTRACE_SIM_NVML", "slow:1000");
        let on_clock = counted.env("VRAMTRACE_TEST_CLOCK", "0");
        let run = run("rest", 60, on_clock.env("VRAMTRACE_RECORD", recording));
        let lists = lists(&run);
        assert!((fewest..=most).contains(&lists), "{recording}: {lists} readings");
    }
}

/// Two threads that instantiate at different lines: what shows while both are in a call has no line.
#[test]
fn what_threads_that_capture_at_once_take_is_never_anothers() {
    for setup in [Setup::simulated(), Setup::simulated().env("VRAMTRACE_SIM_NVML", "slow")] {
        let taken = taken(&run("threads", 0, setup.preload()));
        let half = 154 * MIB;
        for line in ["leaking_line", "other_line"] {
            let bytes = bytes(&taken, "graphs", Some(line));
            assert!(bytes <= half + half / 10, "{line}: {taken:?}");
        }
        assert!(taken.iter().all(|(cause, _, _)| cause == "graphs"), "{taken:?}");
    }
}

#[test]
fn an_update_and_the_launch_after_it_are_the_same_line() {
    let taken = taken(&exact("tokens", 10));
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!(bytes(&taken, "graphs", Some("leaking_line")), 52 * MIB, "{taken:?}");
}

#[test]
fn a_destroyed_graph_gives_back_what_its_line_took() {
    for name in ["list", "temporary"] {
        let taken = taken(&exact(name, 30));
        let left: u64 = taken.iter().map(|(_, _, bytes)| bytes).sum();
        assert!(left <= 6 * MIB, "{name}: {taken:?}");
    }
}
