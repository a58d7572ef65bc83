//! How a cap is applied: one that only warns, and the soft limit.

use serde_json::json;
use testkit::{InteractiveProgram, Scratch, Setup, has};

const MIB: u64 = 1 << 20;

#[test]
fn a_cap_that_only_warns_refuses_nothing_and_tells_all() {
    let mut bare = InteractiveProgram::start(Setup::simulated());
    let mut warned =
        InteractiveProgram::start(Setup::simulated().cap("1GiB").env("VRAMTRACE_CAP_MODE", "warn"));
    for order in ["a 256", "i", "a 1024", "i", "m 200", "p 500", "f", "a 1", "s 4096", "i"] {
        assert_eq!(warned.ask(order), bare.ask(order), "{order}: as without a cap");
    }
    let printed = warned.stderr();
    assert_eq!(printed.matches("only warns").count(), 1, "{printed}");
    let line = "cuda:0: a request of 1.00 GiB exceeds the cap of 1.00 GiB";
    assert!(printed.contains(line), "{printed}");
    let device = warned.end()["devices"][0].clone();
    has(&device, json!({ "cap_bytes": 1024 * MIB, "cap_mode": "warn", "refused_by_cap": 0 }));
    // a 1024, m 200, p 500, a 1, s 4096.
    assert_eq!(device["would_have_refused"], 5, "{device:#}");
    let refusals = device["refusals"].as_array().unwrap();
    assert_eq!(refusals.len(), 5);
    assert!(refusals.iter().all(|one| one["result"] == 0 && one["limit_bytes"] == 1024 * MIB));
    let all = warned.scratch.text("report . --full");
    assert!(all.contains("only warns") && all.contains("would refuse"), "{all}");
    let none = warned.scratch.text("oom .");
    assert!(none.contains("no out-of-memory; cuda:0: no refusal, "), "{none}");
    assert!(none.contains(" the cap, which only warns, peak "), "{none}");
}

#[test]
fn the_soft_limit_is_reported_once_a_crossing() {
    let setup = Setup::simulated().cap("4GiB").env("VRAMTRACE_CAP_WARN", "50%");
    let mut process = InteractiveProgram::start(setup);
    assert_eq!(process.result("a 1000"), 0);
    assert_eq!(process.stderr(), "");
    assert_eq!(process.result("a 1100"), 0);
    let line = process.stderr();
    let crossing = "more than VRAMTRACE_CAP_WARN (2.00 GiB); the cap is 4.00 GiB";
    assert!(line.contains(crossing), "{line}");
    // Around the limit: one crossing. Well below and up again: another.
    assert_eq!(process.results("f, a 1100, a 10, f"), [0; 4]);
    let crossings = process.stderr().lines().count() as u64;
    assert_eq!(process.results("f, f, a 2000"), [0; 3]);
    assert_eq!(process.stderr().lines().count() as u64, crossings + 1);
    let device = process.end()["devices"][0].clone();
    has(&device, json!({ "cap_warn_bytes": 2048 * MIB, "cap_warn_crossings": crossings + 1 }));
    has(&device, json!({ "refused_by_cap": 0, "cap_mode": "refuse" }));
}

#[test]
fn a_swing_at_the_soft_limit_is_one_crossing() {
    let mut process =
        InteractiveProgram::start(Setup::simulated().preload().env("VRAMTRACE_CAP_WARN", "2GiB"));
    assert_eq!((process.result("a 2000"), process.result("a 100")), (0, 0));
    for _ in 0..20 {
        assert_eq!((process.result("f"), process.result("a 100")), (0, 0));
    }
    assert_eq!(process.stderr().lines().count(), 1, "{}", process.stderr());
    // A soft limit is no cap.
    has(&process.end()["devices"][0], json!({ "cap_warn_crossings": 1, "cap_bytes": null }));
}

#[test]
fn bad_values_are_said_once_and_nothing_gets_looser() {
    let setup = Setup::simulated().cap("1GiB").env("VRAMTRACE_CAP_MODE", "allow");
    let mut process = InteractiveProgram::start(setup.env("VRAMTRACE_CAP_WARN", "high"));
    assert_eq!(process.result("a 2048"), 2, "still a cap that refuses");
    let printed = process.stderr();
    assert_eq!(printed.lines().count(), 2, "{printed}");
    let mode = "VRAMTRACE_CAP_MODE=allow: is not refuse or warn; using refuse";
    assert!(printed.contains(mode) && printed.contains("VRAMTRACE_CAP_WARN=high"), "{printed}");
    let mut uncapped = InteractiveProgram::start(Setup::simulated().cap("7=1GiB,8=1GiB"));
    assert_eq!(uncapped.result("a 2048"), 0);
    let says = "VRAMTRACE_CAP names a device that this process does not see; device 0 has no cap\n";
    assert_eq!(uncapped.stderr(), format!("vramtrace: {says}"));
    for (option, value, says) in [
        ("--cap-mode", "allow", "refuse or warn"),
        ("--cap-warn", "high", "8GiB"),
        ("--cap-warn", "0=1GiB", "80% or 6GiB"),
    ] {
        for part in [option, value, says] {
            Scratch::new().fails(2, &format!("run {option} {value} -- true"), part);
        }
    }
}
