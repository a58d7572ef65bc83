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
        (vec!["whatif", "rustfmt.toml"], "rustfmt.toml: only "),
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

/// A snapshot has neither the cap nor the card: what PyTorch had reserved before is within its limit.
#[test]
fn oom_of_a_snapshot_advises_the_setting_that_whatif_knows() {
    let scratch = testkit::Scratch::new();
    let packed =
        std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/recorded.vtrace.gz"));
    let mut trace = std::fs::File::create(scratch.0.join("t.vtrace")).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(packed.unwrap()), &mut trace).unwrap();
    let run = |arguments: &[&str]| {
        let output = vramtrace().args(arguments).current_dir(&scratch.0).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["export", "--format", "torch-snapshot", "-o", "s.pickle", "t.vtrace"]);
    assert!(run(&["whatif", "s.pickle"]).contains("=expandable_segments:True"));
    let oom: serde_json::Value =
        serde_json::from_str(&run(&["oom", "--json", "s.pickle"])).unwrap();
    let advice = &oom["ooms"][0]["post_mortem"]["advice"][0];
    assert_eq!(advice["what"], "setting", "{advice:#}");
    assert_eq!(
        (&advice["conf"], &advice["under"]),
        (&"expandable_segments:True".into(), &"reserved".into())
    );
    for (arguments, part) in [
        (
            ["oom", "--short"],
            "  try     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   (replayed, ",
        ),
        (
            ["report", "--no-hints"],
            "FIX    export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
    ] {
        let shown = run(&[arguments[0], arguments[1], "s.pickle"]);
        assert!(shown.contains(part), "{shown}");
        let flat = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("in what PyTorch had reserved before"), "{shown}");
    }
}
