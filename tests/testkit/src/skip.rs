//! Skips tests whose tools are missing. The test runner hides the output of a passing test, so each skip
//! also adds a line to `target/tmp/skipped`, which `scripts/test.sh` summarises.

use std::fs::OpenOptions;
use std::io::Write;

use crate::temporary;

/// Reports that a test is skipped because a program, a library or a variable is missing that
/// `scripts/test.sh` installs or sets. With VRAMTRACE_TEST_NO_SKIP, as in CI, the test fails.
#[track_caller]
pub fn skip(why: &str) {
    note(why);
    let strict = std::env::var_os("VRAMTRACE_TEST_NO_SKIP").is_some_and(|value| !value.is_empty());
    assert!(!strict, "VRAMTRACE_TEST_NO_SKIP is set, and a test would be skipped: {why}");
}

/// As [`skip`], for something that no script can install: a permission, another kernel or processor, an
/// interpreter of another version. Never a failure.
pub fn skip_here(why: &str) {
    note(&format!("{why} (not available here)"));
}

fn note(why: &str) {
    eprintln!("SKIP {why}");
    let file = OpenOptions::new().create(true).append(true).open(temporary().join("skipped"));
    file.and_then(|mut file| writeln!(file, "{why}")).expect("a line in target/tmp/skipped");
}
