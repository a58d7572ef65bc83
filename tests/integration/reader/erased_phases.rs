//! The phases of a time whose events were erased, by the recorder's history; and what resolution its samples have.

use serde_json::{Value, json};
use testkit::Scratch;
use testkit::erased_trace::erased;

use super::page::section;

/// What was held on after the peak, in other phases, is not of it; a moment of the erased time has its phases; what the
/// samples resolve is said.
#[test]
fn reports_tell_the_phases_of_erased_time() {
    let scratch = Scratch::with(&erased());
    let before = "processes.0.phases_before.0.phases.*";
    scratch.prints(
        "erased",
        &[
            "report t.vtrace",
            "report t.vtrace --json | processes.0.devices.0.peak_bytes",
            "report t.vtrace --json | processes.0.devices.0.peak_at_s",
            "report t.vtrace --json | processes.0.devices.0.phases_at_peak",
            "report t.vtrace --json | processes.0.sampled_before",
            "report t.vtrace --at 7",
            "report t.vtrace --at 7 --json | processes.0.sampled",
            "report t.vtrace --at 3",
            "report t.vtrace --by phase",
            &format!("report t.vtrace --by phase --json | {before}.path {before}.peak_bytes"),
            &format!("report t.vtrace --by phase --json | {before}.open_s"),
            "leaks t.vtrace --json | processes.0.sampled",
        ],
    );
    scratch.text("report --html -o page.html t.vtrace");
    let page = std::fs::read_to_string(scratch.0.join("page.html")).unwrap();
    let page: Value = serde_json::from_slice(&section(&page, "facts")).unwrap();
    let wanted = json!({ "from_s": 0.0, "until_s": 18.0, "finest_s": 5.0, "coarsest_s": 8.0 });
    assert_eq!(page["report"]["processes"][0]["sampled_before"], wanted);
}
