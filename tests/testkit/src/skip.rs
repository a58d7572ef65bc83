//! What a test does where something that it needs is missing. Of a test that passes the test runner
//! shows no output: each skip also leaves a line in `target/tmp/skipped`, of which `scripts/test.sh`
//! makes a summary.

use std::fs::OpenOptions;
use std::io::Write;

use crate::temporary;

/// Says why a test does not run: a program, a library or a variable is missing, which `scripts/test.sh`
/// installs or sets. With VRAMTRACE_TEST_NO_SKIP, as in CI, this is a failure.
#[track_caller]
pub fn skip(why: &str) {
    note(why);
    let strict = std::env::var_os("VRAMTRACE_TEST_NO_SKIP").is_some_and(|value| !value.is_empty());
    assert!(!strict, "VRAMTRACE_TEST_NO_SKIP is set, and a test would be skipped: {why}");
}

/// As [`skip`], for what no script installs: a right that this user does not have, another kernel or
/// processor, an interpreter of another version than the system's. Never a failure.
pub fn skip_here(why: &str) {
    note(&format!("{why} (not to be had here)"));
}

fn note(why: &str) {
    eprintln!("SKIP {why}");
    let file = OpenOptions::new().create(true).append(true).open(temporary().join("skipped"));
    file.and_then(|mut file| writeln!(file, "{why}")).expect("a line in target/tmp/skipped");
}
