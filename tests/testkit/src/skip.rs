//! What a test does where something that it needs is missing.

use std::fs::OpenOptions;
use std::io::Write;

use crate::temporary;

/// Says why a test does not run here. Of a test that passes the test runner shows no output: the line
/// also goes to `target/tmp/skipped`, of which `scripts/test.sh` makes a summary. With
/// VRAMTRACE_TEST_NO_SKIP it is a failure.
#[track_caller]
pub fn skip(why: &str) {
    eprintln!("SKIP {why}");
    let file = OpenOptions::new().create(true).append(true).open(temporary().join("skipped"));
    file.and_then(|mut file| writeln!(file, "{why}")).expect("a line in target/tmp/skipped");
    let strict = std::env::var_os("VRAMTRACE_TEST_NO_SKIP").is_some();
    assert!(!strict, "VRAMTRACE_TEST_NO_SKIP is set, and a test would be skipped: {why}");
}
