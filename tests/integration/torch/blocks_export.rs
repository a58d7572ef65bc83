//! Exports of traces with blocks of PyTorch's cache.

use std::collections::HashSet;

use serde_json::Value;
use testkit::Scratch;
use testkit::trace_builder::cached;

/// The free cache is apart; at the driver's level there are no blocks.
#[test]
fn stacks_and_rows_have_blocks_and_the_free_cache() {
    Scratch::with(&cached()).prints(
        "blocks-export",
        &[
            "export t.vtrace --format folded -o -",
            "export t.vtrace --format folded --level driver -o -",
            "export t.vtrace --format csv -o -",
            "export t.vtrace --format csv --level driver -o -",
        ],
    );
}

/// Async events of one category and id never overlap: a block has not the id of its segment.
#[test]
fn chrome_draws_blocks_in_lanes_of_their_own() {
    let chrome = Scratch::with(&cached()).text("export t.vtrace --format chrome -o -");
    let value: Value = serde_json::from_str(&chrome).unwrap();
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
