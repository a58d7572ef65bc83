//! `vramtrace whatif` from outside: figures, ranking, errors.

use testkit::{Scratch, flat, repository};

fn with(file: &str) -> Scratch {
    let scratch = Scratch::new();
    std::fs::copy(repository().join("tests/data").join(file), scratch.0.join(file)).unwrap();
    scratch.write("text", "short");
    scratch
}

/// The best comes first.
#[test]
fn json_answers_two_settings_and_a_capacity_and_bad_input_is_said() {
    let asked =
        "whatif resvar_s5.csv.gz --capacity 6GiB --conf default --conf expandable_segments:True";
    let of = |n: usize, fields: &[&str]| {
        let fields = fields.iter().map(|field| format!(" devices.0.settings.{n}.{field}"));
        format!("{asked} --json |{}", fields.collect::<String>())
    };
    with("resvar_s5.csv.gz").prints(
        "whatif",
        &[
            &of(0, &["conf", "peak_reserved_bytes"]),
            &of(1, &["conf", "at_capacity.0.fits"]),
            "whatif text",
            "whatif no-such-file",
            "whatif x --capacity 24",
            "whatif x --conf max_split:3",
        ],
    );
}

/// golden.rs keeps the text: no card has so much as it asked for, and no setting is advised.
#[test]
fn a_snapshot_with_a_refused_request_is_replayed_up_to_it() {
    let json = with("torch_snapshot_2.11.pickle.gz").json("whatif torch_snapshot_2.11.pickle.gz");
    let device = &json["devices"][0];
    assert_eq!(device["out_of_memory"]["size_bytes"], 1u64 << 50);
    assert_eq!(device["settings"][0]["smallest_capacity_bytes"], serde_json::Value::Null);
    assert_eq!(device["settings"][0]["forbidden"], serde_json::Value::Null);
}

/// A snapshot has neither the cap nor the card: what PyTorch had reserved before is within its limit.
#[test]
fn oom_of_a_snapshot_advises_the_setting_that_whatif_knows() {
    let scratch = Scratch::recorded("assets/recorded.vtrace.gz");
    scratch.text("export --format torch-snapshot -o s.pickle t.vtrace");
    assert!(scratch.text("whatif s.pickle").contains("=expandable_segments:True"));
    let oom = scratch.json("oom s.pickle");
    let advice = &oom["ooms"][0]["post_mortem"]["advice"][0];
    let found = ["what", "conf", "under"].map(|key| advice[key].as_str().unwrap());
    assert_eq!(found, ["setting", "expandable_segments:True", "reserved"]);
    let conf = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    for (line, part) in [
        ("oom --short s.pickle", format!("  try     {conf}   (replayed, ")),
        ("report --no-hints s.pickle", format!("  try     {conf}   (replayed, ")),
    ] {
        let shown = scratch.text(line);
        assert!(shown.contains(&part), "{shown}");
        let flat = flat(&shown);
        assert!(flat.contains("in what PyTorch had reserved before"), "{shown}");
    }
}
