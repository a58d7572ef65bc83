//! `holders --by role`, `tree`, and the roles of a report, on recorded runs of PyTorch.

use std::io::Read;
use std::path::Path;

use serde_json::Value;
use testkit::{Scratch, vramtrace};

/// A recorded run from tests/data/roles, as `t.vtrace`.
fn recorded(name: &str) -> Scratch {
    let scratch = Scratch::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/roles");
    let packed = std::fs::File::open(data.join(format!("{name}.vtrace.gz"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    std::fs::write(scratch.0.join("t.vtrace"), bytes).unwrap();
    scratch
}

#[track_caller]
fn text(scratch: &Scratch, args: &[&str]) -> String {
    let mut command = vramtrace();
    let output = command.args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn facts(scratch: &Scratch, args: &[&str]) -> Value {
    serde_json::from_str(&text(scratch, args)).unwrap()
}

fn bytes_of(holders: &Value, role: &str) -> u64 {
    let all = holders["holders"].as_array().unwrap();
    let found = all.iter().find(|holder| holder["role"] == role);
    found.map_or(0, |holder| holder["bytes"].as_u64().unwrap())
}

#[test]
fn holders_by_role_add_up_to_those_by_line() {
    let run = recorded("gpt2");
    let by_role = facts(&run, &["holders", "t.vtrace", "--by", "role", "--json"]);
    let by_line = facts(&run, &["holders", "t.vtrace", "--json"]);
    let sum = |of: &Value| -> u64 {
        let all = of["holders"].as_array().unwrap();
        all.iter().map(|holder| holder["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(sum(&by_role), sum(&by_line));
    assert_eq!(bytes_of(&by_role, "weights"), 498_558_976);
    assert_eq!(bytes_of(&by_role, "unknown"), 0);
    let shown = text(&run, &["holders", "t.vtrace", "--by", "role"]);
    assert!(shown.contains("weights") && shown.contains("modeling_utils.py"), "{shown}");
    let lines = by_line["holders"].as_array().unwrap();
    assert!(lines[0].get("role").is_none(), "a line may hold several roles");
}

#[test]
fn a_report_says_what_the_peak_was_for() {
    let run = recorded("gpt2");
    let short = text(&run, &["report", "t.vtrace"]);
    assert!(short.contains("at the peak for: activations "), "{short}");
    let shown = text(&run, &["report", "t.vtrace", "--full"]);
    assert!(shown.contains("by role at the peak"), "{shown}");
    let report = facts(&run, &["report", "t.vtrace", "--json"]);
    let roles = &report["processes"][0]["devices"][0]["holders"]["roles_at_peak"];
    let largest = &roles[0];
    assert_eq!(largest["role"], "activations", "{roles}");
    let by_role = facts(&run, &["holders", "t.vtrace", "--by", "role", "--json"]);
    assert_eq!(largest["bytes"], bytes_of(&by_role, "activations"));
}

#[test]
fn no_weights_are_called_a_leak() {
    for name in ["gpt2", "accum", "gen"] {
        let run = recorded(name);
        let leaks = facts(&run, &["leaks", "t.vtrace", "--json"]);
        assert_eq!(leaks["leaks"], serde_json::json!([]), "{name}");
    }
}

#[test]
fn a_tree_leads_from_the_outermost_frame_in() {
    let run = recorded("gpt2");
    let shown = text(&run, &["tree", "t.vtrace"]);
    let at = |what: &str| shown.find(what).unwrap_or_else(|| panic!("{what}:\n{shown}"));
    assert!(at("roles_truth.py:65 <module>") < at("roles_truth.py:42 step"), "{shown}");
    assert!(at("roles_truth.py:42 step") < at("GPT2Block.forward"), "{shown}");
    assert!(!shown.contains("_call_impl"), "{shown}");
    let whole = text(&run, &["tree", "t.vtrace", "--no-fold", "--least", "0", "--depth", "99"]);
    assert!(whole.contains("_call_impl"), "{whole}");
    let widest = shown.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 100, "{shown}");
    let by_role = facts(&run, &["tree", "t.vtrace", "--by", "role", "--json"]);
    let device = &by_role["devices"][0];
    let top: Vec<&str> = device["children"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| of["name"].as_str().unwrap())
        .collect();
    assert_eq!(top[0], "activations", "{top:?}");
    assert!(top.contains(&"weights") && top.contains(&"PyTorch cache (free)"), "{top:?}");
    let below = |of: &Value| -> u64 {
        of["children"].as_array().unwrap().iter().map(|of| of["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(below(device), device["bytes"].as_u64().unwrap());
}
