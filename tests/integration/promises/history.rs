//! A process that runs for days with a limited trace: the history answers for the time whose events were erased. The
//! program's own clock makes days of seconds (`tests/programs/days.c`).

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Program, Run, Setup, has};
use vramtrace_reader::report::json::run::{self, Judged, RunEnd};
use vramtrace_reader::trace::open;

const MIB: f64 = (1u64 << 20) as f64;
const DAY: u64 = 86_400;

/// `days`, a step in so many seconds, pairs of allocation and free in each, and how it ends.
fn setup(limit: &str, days: u64, step: u64, pairs: u64, end: &str) -> Setup {
    let setup = Setup::simulated().devices("2x512GiB").preload();
    let setup = setup.env("VRAMTRACE_TEST_CLOCK", "0").env("VRAMTRACE_STACKS", "native");
    // Half a minute on a quiet machine.
    let setup = setup.env("VRAMTRACE_MAX", limit).timeout(Duration::from_secs(600));
    setup.arg(days).arg(step).arg(pairs).arg(end)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// The leak of 16 MiB an hour is the only one, at its line, with its rate. One value at least in each of `parts` of the time.
fn check_leak(run: &Run, days: u64, parts: f64) {
    let all = run.scratch.json("leaks .");
    let leaks = all["leaks"].as_array().unwrap();
    assert_eq!(leaks.len(), 1, "{all:#}");
    let leak = &leaks[0];
    has(leak, json!({ "verdict": "growing", "device": 0 }));
    let mut frames = leak["frames"].as_array().unwrap().iter();
    assert!(frames.any(|frame| frame["function"] == "leaking_line"), "{leak:#}");
    let rate = number(&leak["rate_bytes_per_s"]) * 3600.0 / MIB;
    assert!((14.4..17.6).contains(&rate), "{rate} MiB an hour");
    let process = &all["processes"][0];
    let (sampled, whole) = (&process["sampled"], (days * DAY) as f64);
    assert!(number(&process["from_s"]) < 600.0, "watched from the start");
    assert!(number(&sampled["until_s"]) > whole * 0.4, "{sampled}");
    assert!(number(&sampled["coarsest_s"]) < whole / parts, "{sampled}");
}

/// Days of the program in `run`, of which the peak is in the middle.
fn check_moments(run: &Run, days: u64) {
    // The highest peak: its events, or its holders, are kept.
    let peak_s = number(&run.device()["peak_at_s"]);
    let middle = (days / 2 * DAY + DAY / 2) as f64;
    assert!((middle - 1.0..middle + 600.0).contains(&peak_s), "{peak_s}");
    let holders = run.scratch.json("holders . --at peak")["holders"].to_string();
    assert!(holders.contains("peak_line"), "{holders}");
    // A moment whose events were erased: what samples say.
    let at = DAY + DAY / 4;
    let report = run.scratch.json(&format!("report . --at {at}"));
    let sampled = &report["processes"][0]["sampled"];
    let (from, until) = (number(&sampled["from_s"]), number(&sampled["until_s"]));
    let is_in = (from..=until).contains(&(at as f64));
    assert!(is_in && until - from < 5.0 * 3600.0, "{sampled:#}");
    let highest = number(&sampled["devices"][0]["levels"][0]["highest_bytes"]);
    let leaked = 30.0 * 16.0;
    assert!((highest / MIB - 400.0 * 1024.0 - leaked).abs() < 1024.0, "{}", highest / MIB);
    check_peak_phase(run);
    check_day_phase(run);
    // As text, with the resolution; and the timeline goes through that time.
    let text = run.scratch.text(&format!("report . --at {at}"));
    assert!(text.contains("resolution") && text.contains("leaking_line"), "{text}");
    let csv = run.scratch.text("export . --format csv -o -");
    // record, time_s, .., device, kind
    let of_live = csv.lines().filter(|line| {
        let words: Vec<&str> = line.split(',').take(9).collect();
        words.first() == Some(&"counter") && words[7..] == ["0", "live"]
    });
    let times: Vec<f64> = of_live.filter_map(|line| line.split(',').nth(1)?.parse().ok()).collect();
    let gap = times.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max);
    assert!(!times.is_empty() && gap < 6.0 * 3600.0, "{gap} s without a value");
}

/// The phase of the highest peak.
fn check_peak_phase(run: &Run) {
    let device = run.device();
    assert_eq!(device["phases_at_peak"].as_array().map(Vec::len), Some(1), "{device:#}");
    let phase = &device["phases_at_peak"][0];
    has(
        phase,
        json!({ "path": ["serve", "nightly"], "peak_bytes": device["in_use_at_peak"]["allocated_bytes"] }),
    );
    let (at, peak_s) = (number(&phase["at_s"]), number(&device["peak_at_s"]));
    assert!(at <= peak_s && peak_s - at < 2.0, "{at} of {peak_s}");
}

/// The phases of the second day's peak, of 20 GiB, whose events were erased. Before and after it is `serve` alone.
fn check_day_phase(run: &Run) {
    let noon = DAY + DAY / 2 + 60;
    let report = run.scratch.json(&format!("report . --at {noon}"));
    let sampled = &report["processes"][0]["sampled"]["devices"][0];
    let (nightly, serve) = (&sampled["phases"][0], &sampled["phases"][1]);
    has(nightly, json!({ "path": ["serve", "nightly"], "peak_bytes": sampled["peak_bytes"] }));
    has(serve, json!({ "path": ["serve"] }));
    let (night, day) = (number(&nightly["peak_bytes"]) / MIB, number(&serve["peak_bytes"]) / MIB);
    assert!(night > 420.0 * 1024.0 && night - day > 19.0 * 1024.0, "{night} and {day} MiB");
    let at = number(&nightly["at_s"]);
    assert!((at - noon as f64).abs() < 600.0, "{at}");
}

#[test]
fn a_week_in_a_small_trace() {
    week(8 << 20, setup("8MiB", 7, 300, 100, "exit"));
}

/// Takes minutes: `cargo test --test promises history:: -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn a_week_in_64_mib() {
    week(64 << 20, setup("64MiB", 7, 60, 250, "exit"));
}

fn week(limit: u64, setup: Setup) {
    let days = 7;
    let setup = setup.timeout(Duration::from_secs(900));
    let run = Program::c_with("days", &["-g"]).run(setup).ok();
    let bytes = run.only_trace().metadata().unwrap().blocks() * 512;
    assert!(bytes <= limit * 11 / 10, "{bytes} bytes on disk");
    let lines: Vec<&str> = run.stdout.lines().collect();
    let figures = |line: &str| -> (u64, u64) {
        let mut words = line.split(' ').filter_map(|word| word.parse().ok());
        (words.next().unwrap(), words.next().unwrap())
    };
    let (early, late) = (figures(lines[0]), figures(lines[1]));
    assert_eq!(early.0, late.0, "descriptors");
    assert!(late.1 < early.1 + (8 << 10), "KiB of memory: {} and then {}", early.1, late.1);
    check_leak(&run, days, 32.0);
    check_moments(&run, days);
    check_hours(&run, days);
}

/// 400 GiB on each device, with a leak of 16 MiB an hour on the first, and the context.
fn check_hours(run: &Run, days: u64) {
    let traces = [open(&run.only_trace()).unwrap()];
    let hours = (days * 24) as f64;
    let leaked = hours * 16.0 / 1024.0 / 2.0;
    let expected = (400.0 + leaked) * hours;
    // With the events; and by the samples that the recorder summed up.
    for (most_events, from) in [(u64::MAX, 0.0), (0, -0.001)] {
        let process = run::read(&traces, Judged::default(), most_events, RunEnd::default())
            .processes
            .remove(0);
        assert_eq!(process.source == "summary", most_events == 0);
        let device = &process.devices[0];
        let (held, error) = (device.held_gib_hours.unwrap(), device.held_gib_hours_error.unwrap());
        assert!((from..0.01).contains(&(held / expected - 1.0)), "{held} of {expected} GiB hours");
        assert!(error > 0.0 && error < expected * 0.05, "{error} of {held}");
    }
}

#[test]
fn a_kill_leaves_the_history() {
    let days = 3;
    let run = Program::c_with("days", &["-g"]).run(setup("4MiB", days, 300, 110, "kill"));
    check_leak(&run, days, 12.0);
    check_peak_phase(&run);
}
