//! Exports of traces with blocks of PyTorch's cache.

use std::collections::HashSet;

use serde_json::Value;
use testkit::trace_builder::cached;
use testkit::{Scratch, vramtrace};

const MIB: u64 = 1 << 20;

fn exported(args: &[&str]) -> String {
    let scratch = Scratch::new();
    cached().write(&scratch.0.join("t.vtrace"));
    let mut command = vramtrace();
    command.args(["export", "t.vtrace", "-o", "-"]).args(args).current_dir(&scratch.0);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn total(folded: &str) -> u64 {
    folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn folded_stacks_have_blocks_and_the_free_cache() {
    let tensor = exported(&["--format", "folded"]);
    let free = format!("GPU 0;PyTorch cache (free) {}", 30 * MIB);
    assert!(tensor.lines().any(|line| line == free), "{tensor}");
    let line = format!("train (train.py:41);Block.mlp (modeling_gpt2.py:301) {}", 50 * MIB);
    assert!(tensor.lines().any(|found| found.ends_with(&line)), "{tensor}");
    let driver = exported(&["--format", "folded", "--level", "driver"]);
    assert!(!driver.contains("cache (free)") && !driver.contains("Block.mlp"), "{driver}");
    assert_eq!((total(&tensor), total(&driver)), (188 * MIB, 188 * MIB));
}

#[test]
fn csv_has_rows_of_blocks_and_their_counters() {
    let text = exported(&["--format", "csv"]);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers().unwrap().clone();
    let column = |name: &str| names.iter().position(|column| column == name).unwrap();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let of = |record: &str, kind: &str| -> Vec<&csv::StringRecord> {
        let is = |row: &&csv::StringRecord| &row[0] == record && &row[column("kind")] == kind;
        rows.iter().filter(is).collect()
    };
    let blocks = of("allocation", "block");
    assert_eq!(blocks.len(), 17);
    assert!(blocks.iter().all(|row| row[column("physical_bytes")].is_empty()));
    assert_eq!(blocks.iter().filter(|row| &row[column("end")] == "freed").count(), 9);
    let values = |kind: &str| -> Vec<u64> {
        of("counter", kind).iter().map(|row| row[column("bytes")].parse().unwrap()).collect()
    };
    let (allocated, reserved) = (values("allocated"), values("reserved"));
    assert_eq!(allocated.iter().max(), Some(&(134 * MIB)));
    assert_eq!(allocated.last(), Some(&(106 * MIB)));
    let steps: Vec<u64> = [40, 80, 120, 160, 120, 164].map(|mib| mib * MIB).into();
    assert_eq!(reserved, steps);
    let driver = exported(&["--format", "csv", "--level", "driver"]);
    assert!(!driver.contains(",block,") && !driver.contains(",reserved,"), "{driver}");
}

/// Async events of one category and id never overlap: a block has not the id of its segment.
#[test]
fn chrome_draws_blocks_in_lanes_of_their_own() {
    let value: Value = serde_json::from_str(&exported(&["--format", "chrome"])).unwrap();
    let (mut open, mut begun) = (HashSet::new(), 0);
    for event in value["traceEvents"].as_array().unwrap() {
        let id = (event["cat"].as_str(), event["id"].as_str());
        match event["ph"].as_str().unwrap() {
            "b" => {
                assert!(open.insert(id), "{id:?} begins twice");
                if id.0 == Some("block") {
                    begun += 1;
                    assert!(
                        ["PyTorch", "transformers"]
                            .contains(&event["args"]["library"].as_str().unwrap())
                    );
                    assert!(event["args"]["physical_bytes"].is_null());
                }
            }
            "e" => assert!(open.remove(&id), "{id:?} ends without a beginning"),
            _ => {}
        }
    }
    assert_eq!(begun, 17);
}
