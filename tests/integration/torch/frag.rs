//! `vramtrace frag` from outside: figures against torch's own, the map, errors.

use testkit::vramtrace;

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = vramtrace().arg("frag").args(arguments).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "vramtrace.frag/1");
    json["devices"][0].clone()
}

/// Summed over the segments that the snapshot itself lists.
#[test]
fn a_snapshots_figures_are_those_of_its_own_segments() {
    let device = json(&[&data("torch_snapshot_2.11.pickle.gz"), "--at", "end"]);
    assert_eq!(device["reserved_bytes"], 134_217_728);
    assert_eq!(device["allocated_bytes"], 119_342_080);
    assert_eq!(device["free_in_segments_bytes"], 14_875_648);
    assert_eq!(device["largest_free_block_bytes"], 7_771_136);
    assert_eq!(device["segments"], 7);
    let holders = device["holders"].as_array().unwrap();
    assert!(holders[0]["frames"][0]["file"].as_str().unwrap().contains("snapshot.py"));
}

/// Measured on the card: torch's own peaks.
#[test]
fn a_csv_has_peaks_and_no_time() {
    let device = json(&[&data("varlen_s1.csv.gz")]);
    assert_eq!(device["ordinal"], 0);
    assert_eq!(device["at_s"], serde_json::Value::Null);
    assert_eq!(device["peak_reserved_bytes"], 27_426_553_856u64);
    assert_eq!(device["peak_allocated_bytes"], 14_359_854_592u64);
    assert_eq!(device["reserved_bytes"], device["peak_reserved_bytes"]);
    let fragmentation = device["fragmentation"].as_f64().unwrap();
    assert!((fragmentation - (1.0 - 14_359_854_592.0 / 27_426_553_856.0)).abs() < 1e-9);
    let of = |key: &str| device[key].as_u64().unwrap();
    assert_eq!(of("free_in_segments_bytes"), of("reserved_bytes") - of("allocated_bytes"));
    assert!(of("releasable_bytes") + of("unusable_bytes") <= of("free_in_segments_bytes"));
}

#[test]
fn text_fits_the_line_and_has_no_colour_in_a_pipe() {
    let output = vramtrace()
        .args(["frag", &data("torch_snapshot_2.11.pickle.gz"), "--rows", "4"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.contains("fragmentation 22 %"), "{text}");
    assert!(text.contains("snapshot.py"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("  0x7fa8")).collect();
    assert_eq!(rows.len(), 4);
    assert!(rows.is_sorted() && rows.iter().all(|row| row.chars().count() <= 100), "{text}");
}

#[test]
fn what_cannot_be_shown_is_an_error() {
    for (arguments, part) in [
        (vec![data("varlen_s1.csv.gz"), "--at".into(), "3".into()], "it has no times"),
        (vec![data("varlen_s1.csv.gz"), "--at".into(), "oom".into()], "ended out of memory"),
        (vec![data("varlen_s1.csv.gz"), "--at".into(), "now".into()], "`oom`"),
        (vec!["no-such-file".into()], "no-such-file"),
    ] {
        let output = vramtrace().arg("frag").args(&arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}
