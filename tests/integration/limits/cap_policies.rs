//! How a cap is applied: one that only warns, and the soft limit.

use serde_json::json;
use testkit::InteractiveProgram;
use testkit::{Setup, has, vramtrace};

const MIB: u64 = 1 << 20;

fn device(process: &serde_json::Value) -> &serde_json::Value {
    &process["devices"][0]
}

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
    assert!(
        printed.contains("cuda:0: a request of 1.00 GiB exceeds the cap of 1.00 GiB"),
        "{printed}"
    );
    let process = warned.end();
    let device = device(&process);
    has(device, json!({ "cap_bytes": 1024 * MIB, "cap_mode": "warn", "refused_by_cap": 0 }));
    // a 1024, m 200, p 500, a 1, s 4096.
    assert_eq!(device["would_have_refused"], 5, "{device:#}");
    let refusals = device["refusals"].as_array().unwrap();
    assert_eq!(refusals.len(), 5);
    assert!(refusals.iter().all(|one| one["result"] == 0 && one["cap_bytes"] == 1024 * MIB));
    let report = vramtrace().args(["report", "--full"]).args(warned.traces()).output().unwrap();
    let all = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(all.contains("only warns") && all.contains("would refuse"), "{all}");
}

#[test]
fn the_soft_limit_is_reported_once_a_crossing() {
    let setup = Setup::simulated().cap("4GiB").env("VRAMTRACE_CAP_WARN", "50%");
    let mut process = InteractiveProgram::start(setup);
    assert_eq!(process.result("a 1000"), 0);
    assert_eq!(process.stderr(), "");
    assert_eq!(process.result("a 1100"), 0);
    let line = process.stderr();
    assert!(
        line.contains("more than VRAMTRACE_CAP_WARN (2.00 GiB); the cap is 4.00 GiB"),
        "{line}"
    );
    // Around the limit: one crossing. Well below and up again: another.
    assert_eq!((process.result("f"), process.result("a 1100")), (0, 0));
    assert_eq!((process.result("a 10"), process.result("f")), (0, 0));
    let crossings = process.stderr().lines().count();
    assert_eq!((process.result("f"), process.result("f")), (0, 0));
    assert_eq!(process.result("a 2000"), 0);
    assert_eq!(process.stderr().lines().count(), crossings + 1);
    let process = process.end();
    let device = device(&process);
    has(
        device,
        json!({
            "cap_warn_bytes": 2048 * MIB, "cap_warn_crossings": crossings as u64 + 1,
            "refused_by_cap": 0, "cap_mode": "refuse"
        }),
    );
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
    let process = process.end();
    let device = device(&process);
    assert_eq!(device["cap_warn_crossings"], 1);
    assert!(device["cap_bytes"].is_null(), "a soft limit is no cap");
}

#[test]
fn bad_values_are_said_once_and_nothing_gets_looser() {
    let setup = Setup::simulated().cap("1GiB");
    let mut process = InteractiveProgram::start(
        setup.env("VRAMTRACE_CAP_MODE", "allow").env("VRAMTRACE_CAP_WARN", "high"),
    );
    assert_eq!(process.result("a 2048"), 2, "still a cap that refuses");
    let printed = process.stderr();
    assert_eq!(printed.lines().count(), 2, "{printed}");
    assert!(
        printed.contains("VRAMTRACE_CAP_MODE=allow: is not refuse or warn; using refuse"),
        "{printed}"
    );
    assert!(printed.contains("VRAMTRACE_CAP_WARN=high"), "{printed}");
    for (option, value, says) in [
        ("--cap-mode", "allow", "refuse or warn"),
        ("--cap-warn", "high", "8GiB"),
        ("--cap-warn", "0=1GiB", "80% or 6GiB"),
    ] {
        let run = vramtrace().args(["run", option, value, "--", "true"]).output().unwrap();
        let printed = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{printed}");
        assert!(
            printed.contains(option) && printed.contains(value) && printed.contains(says),
            "{printed}"
        );
    }
}
