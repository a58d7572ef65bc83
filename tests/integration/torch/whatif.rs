//! `vramtrace whatif` from outside: figures, ranking, errors.

use testkit::vramtrace;

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn json_answers_two_settings_and_a_capacity() {
    let output = vramtrace()
        .args(["whatif", &data("resvar_s5.csv.gz"), "--json", "--capacity", "6GiB"])
        .args(["--conf", "", "--conf", "expandable_segments:True"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "vramtrace.whatif/1");
    let settings = json["devices"][0]["settings"].as_array().unwrap();
    assert_eq!(settings[0]["conf"], "expandable_segments:True", "the best comes first");
    assert_eq!(settings[0]["peak_reserved_bytes"], 7_201_619_968u64);
    assert_eq!(settings[1]["conf"], "default");
    assert_eq!(settings[1]["fits"]["6442450944"], false);
    assert_eq!(settings[1]["at_capacity"][0]["fits"], false);
}

#[test]
fn bad_input_is_said_and_nothing_is_run() {
    for (arguments, part) in [
        (vec!["whatif", "Cargo.toml"], "Cargo.toml: only "),
        (vec!["whatif", "no-such-file"], "no-such-file"),
        (vec!["whatif", "x", "--capacity", "24"], "--capacity 24:"),
        (vec!["whatif", "x", "--conf", "max_split:3"], "--conf \"max_split:3\":"),
    ] {
        let output =
            vramtrace().current_dir(env!("CARGO_MANIFEST_DIR")).args(&arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_snapshot_with_a_refused_request_is_replayed_up_to_it() {
    let run = |more: &[&str]| {
        let file = data("torch_snapshot_2.11.pickle.gz");
        let output = vramtrace().args(["whatif", &file]).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(&[]);
    assert!(text.contains("ended out of memory"), "{text}");
    assert!(text.contains("default (in force)"), "{text}");
    assert!(text.contains("No setting helps: the request is larger than any device"), "{text}");
    assert!(!text.contains("export PYTORCH_CUDA_ALLOC_CONF="), "{text}");
    let json: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let device = &json["devices"][0];
    assert_eq!(device["out_of_memory"]["asked_bytes"], 1u64 << 50);
    // No card has so much.
    assert_eq!(device["settings"][0]["smallest_capacity_bytes"], serde_json::Value::Null);
    assert_eq!(device["settings"][0]["compatible"], true);
}
