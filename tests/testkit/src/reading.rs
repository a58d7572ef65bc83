//! The command `vramtrace` in a test's directory.

use std::process::Output;

use serde_json::Value;

use crate::trace_builder::TraceBuilder;
use crate::{Scratch, repository, vramtrace};

impl Scratch {
    /// A new directory with this trace as `t.vtrace`.
    pub fn with(trace: &TraceBuilder) -> Scratch {
        let scratch = Scratch::new();
        trace.write(&scratch.0.join("t.vtrace"));
        scratch
    }

    /// A new directory with a recorded run of this repository, which is compressed there, as `t.vtrace`.
    pub fn recorded(packed: &str) -> Scratch {
        let scratch = Scratch::new();
        let packed = std::fs::File::open(repository().join(packed)).unwrap();
        let mut trace = std::fs::File::create(scratch.0.join("t.vtrace")).unwrap();
        std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut trace).unwrap();
        scratch
    }

    /// Runs the command with the words of a line, without colours.
    pub fn run(&self, line: &str) -> Output {
        let words = line.split(' ').filter(|word| !word.is_empty());
        vramtrace().args(words).current_dir(&self.0).env("NO_COLOR", "1").output().unwrap()
    }

    /// What it prints where it succeeds.
    #[track_caller]
    pub fn text(&self, line: &str) -> String {
        let output = self.run(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "vramtrace {line}: {}: {stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// The document that it prints with `--json`.
    #[track_caller]
    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.text(&format!("{line} --json"))).unwrap()
    }

    /// It ends with this status, and says why on stderr.
    #[track_caller]
    pub fn fails(&self, status: i32, line: &str, why: &str) {
        let output = self.run(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "vramtrace {line}: {stderr}");
        assert!(stderr.contains(why), "vramtrace {line}: {why:?} is not in: {stderr}");
    }
}

/// Asserts that a document has these values; it may have more.
#[track_caller]
pub fn has(found: &Value, wanted: Value) {
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(found[key], *value, "{key} of {found:#}");
    }
}
