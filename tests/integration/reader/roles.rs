//! `holders --by role` and the roles of a report, on recorded runs of PyTorch.

use serde_json::Value;
use testkit::{Scratch, sum};

/// A recorded run from tests/data/roles.
fn recorded(name: &str) -> Scratch {
    Scratch::recorded(&format!("tests/data/roles/{name}.vtrace.gz"))
}

fn bytes_of(holders: &Value, role: &str) -> u64 {
    let all = holders["holders"].as_array().unwrap();
    let found = all.iter().find(|holder| holder["role"] == role);
    found.map_or(0, |holder| holder["bytes"].as_u64().unwrap())
}

#[test]
fn holders_by_role_add_up_to_those_by_line() {
    let run = recorded("gpt2");
    let by_role = run.json("holders t.vtrace --by role");
    let by_line = run.json("holders t.vtrace");
    assert_eq!(sum(&by_role["holders"], "bytes"), sum(&by_line["holders"], "bytes"));
    assert_eq!(bytes_of(&by_role, "weights"), 498_558_976);
    assert_eq!(bytes_of(&by_role, "unknown"), 0);
    let shown = run.text("holders t.vtrace --by role");
    assert!(shown.contains("weights") && shown.contains("modeling_utils.py"), "{shown}");
    let lines = by_line["holders"].as_array().unwrap();
    assert!(lines[0].get("role").is_none(), "a line may hold several roles");
}

#[test]
fn a_report_says_what_the_peak_was_for() {
    let run = recorded("gpt2");
    let short = run.text("report t.vtrace");
    assert!(short.contains("at the peak for: activations "), "{short}");
    let shown = run.text("report t.vtrace --full");
    assert!(shown.contains("by role at the peak"), "{shown}");
    let report = run.json("report t.vtrace");
    let roles = &report["processes"][0]["devices"][0]["holders"]["roles_at_peak"];
    let largest = &roles[0];
    assert_eq!(largest["role"], "activations", "{roles}");
    let by_role = run.json("holders t.vtrace --by role");
    assert_eq!(largest["bytes"], bytes_of(&by_role, "activations"));
}

#[test]
fn no_weights_are_called_a_leak() {
    for name in ["gpt2", "accum", "gen"] {
        let run = recorded(name);
        let leaks = run.json("leaks t.vtrace");
        assert_eq!(leaks["leaks"], serde_json::json!([]), "{name}");
    }
}
