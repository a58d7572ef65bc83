//! A figure that several commands show is the same in each of them, for every recorded trace that the tests keep.

use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::vramtrace;

/// The recorded traces: of one process, and directories of several.
fn recorded() -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut found = vec![data.join("../../assets/recorded.vtrace.gz")];
    for directory in ["golden", "roles"] {
        for entry in std::fs::read_dir(data.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() || path.to_string_lossy().ends_with(".vtrace.gz") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() > 25, "{found:?}");
    found
}

fn json(arguments: &[&str], path: &Path) -> Option<Value> {
    let output = vramtrace().args(arguments).arg("--json").arg(path).output().unwrap();
    // A trace without stacks has no holders.
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

fn text(arguments: &[&str], path: &Path) -> String {
    let output = vramtrace().args(arguments).arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn number(of: &Value) -> i128 {
    of.as_i64().map_or_else(|| of.as_u64().unwrap().into(), i128::from)
}

fn rows(of: &Value) -> std::slice::Iter<'_, Value> {
    of.as_array().unwrap().iter()
}

/// Bytes and number of each holder, sorted.
fn held<'v>(holders: impl Iterator<Item = &'v Value>) -> Vec<(i128, i128)> {
    let mut all: Vec<_> =
        holders.map(|holder| (number(&holder["bytes"]), number(&holder["count"]))).collect();
    all.sort_unstable();
    all
}

fn is_free(of: &&Value) -> bool {
    of["name"] == "PyTorch cache (free)"
}

fn bytes<'v>(holders: impl Iterator<Item = &'v Value>) -> i128 {
    holders.map(|holder| number(&holder["bytes"])).sum()
}

/// `6.80 GiB in nvidia-smi`, as the texts have it.
fn headline(at_peak: &Value) -> String {
    let name = if at_peak["in_nvidia_smi_bytes"].is_null() { "recorded" } else { "in nvidia-smi" };
    format!("{} {name}", vramtrace_reader::units::gib(number(&at_peak["headline_bytes"]) as u64))
}

#[test]
fn the_peak_is_the_same_in_every_command() {
    for path in recorded().iter().filter(|path| path.is_file()) {
        let name = path.display();
        let report = json(&["report", "--full", "--top", "1000000"], path).unwrap();
        let oom = json(&["oom"], path).unwrap();
        let holders = json(&["holders", "--at", "peak"], path);
        let frag = json(&["frag"], path);
        let (words, oom_words) = (text(&["report"], path), text(&["oom"], path));
        let process = &report["processes"][0];
        for device in rows(&process["devices"]) {
            let here = |of: &&Value| of["device"] == device["device"];
            let at_peak = &device["in_use_at_peak"];
            let part = |name: &str| number(&at_peak[format!("{name}_bytes")]);
            let recorded = part("allocated") + part("free_in_cache") + part("beside_cache");
            let mut sum = recorded + part("contexts") + part("driver") + part("unattributed");
            if at_peak["in_nvidia_smi_bytes"].is_null() {
                sum += part("managed");
            }
            assert_eq!(sum, part("headline"), "{name}: {at_peak}");
            // The headline of a report and of a run without an out-of-memory.
            let row = words.lines().find(|line| line.trim_start().starts_with("peak ")).unwrap();
            let row = row.split_whitespace().collect::<Vec<_>>().join(" ");
            if process["devices"].as_array().unwrap().len() == 1 {
                assert!(row.contains(&headline(at_peak)), "{name}: {row}: {at_peak}");
            }
            if oom["ooms"].as_array().unwrap().is_empty() && device["cap_bytes"].is_null() {
                assert!(oom_words.contains(&headline(at_peak)), "{name}: {oom_words}: {at_peak}");
            }
            if let Some(of) = rows(&oom["processes"][0]["devices"]).find(here) {
                assert_eq!(&of["in_use_at_peak"], at_peak, "{name}");
            }
            // The holders are those of the report, and have what is allocated and reserved.
            let Some(holders) = &holders else { continue };
            let all = || {
                let here = |of: &&Value| of["device"] == device["device"];
                rows(&holders["holders"]).filter(here)
            };
            assert_eq!(held(all()), held(rows(&device["holders"]["at_peak"])), "{name}");
            // Of an erased history only the recorder's total is known.
            let whole = process["complete"] != false && device["torch"].is_object();
            if whole && all().count() > 0 {
                assert_eq!(bytes(all().filter(is_free)), part("free_in_cache"), "{name}");
            }
            let sum = bytes(all().filter(|of| of["driver_memory"].is_null()));
            let recorded = recorded + part("managed");
            assert!(sum <= recorded, "{name}: {sum} in holders, {at_peak}");
        }
        let Some(frag) = frag else { continue };
        for device in rows(&frag["devices"]) {
            let of = rows(&process["devices"]).find(|of| of["device"] == device["device"]);
            let torch = &of.unwrap_or_else(|| panic!("{name}: {device}"))["torch"];
            for figure in ["peak_reserved_bytes", "peak_allocated_bytes"] {
                assert_eq!(device[figure], torch[figure], "{name}");
            }
        }
    }
}

#[test]
fn the_holders_of_a_run_are_the_same_in_report_and_holders() {
    let roles = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/roles");
    for path in recorded().iter().filter(|path| path.is_dir()).chain([&roles]) {
        let report = json(&["report", "--top", "1000000"], path).unwrap();
        let Some(holders) = json(&["holders", "--at", "peak"], path) else { continue };
        let (all, merged) = (|| rows(&report["run"]["held_at_peaks"]), || rows(&holders["merged"]));
        let bytes_of = |of: &Value| number(&of["bytes"]);
        let sorted = |of: &mut dyn Iterator<Item = &Value>| {
            let mut all: Vec<i128> = of.map(bytes_of).collect();
            all.sort_unstable();
            all
        };
        let used = |of: &&Value| !is_free(of);
        let found = (sorted(&mut all().filter(used)), bytes(all().filter(is_free)));
        let expected = (sorted(&mut merged().filter(used)), bytes(merged().filter(is_free)));
        assert_eq!(found, expected, "{}", path.display());
    }
}
