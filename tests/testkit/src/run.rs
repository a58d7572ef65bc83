//! The results of a run.

use std::path::PathBuf;

use crate::{Scratch, vramtrace};

/// The output, the exit status and the files of a run.
pub struct Run {
    pub stdout: String,
    pub stderr: String,
    /// Exit status, or minus the signal.
    pub status: i32,
    pub scratch: Scratch,
}

impl Run {
    pub fn traces(&self) -> Vec<PathBuf> {
        self.scratch.traces()
    }

    pub fn only_trace(&self) -> PathBuf {
        let traces = self.traces();
        assert_eq!(traces.len(), 1, "one trace expected; stderr: {}", self.stderr);
        traces[0].clone()
    }

    /// `vramtrace report --json` of all traces of the run.
    pub fn report(&self) -> serde_json::Value {
        report(&self.traces())
    }

    /// The only process of the report.
    pub fn only_report(&self) -> serde_json::Value {
        let report = report(&[self.only_trace()]);
        let processes = report["processes"].as_array().unwrap();
        assert_eq!(processes.len(), 1);
        processes[0].clone()
    }

    /// The first device of the only process.
    #[track_caller]
    pub fn device(&self) -> serde_json::Value {
        self.only_report()["devices"][0].clone()
    }

    /// What a command prints of the only trace.
    #[track_caller]
    pub fn text(&self, line: &str) -> String {
        self.scratch.text(&format!("{line} {}", self.only_trace().display()))
    }

    /// The document of a command about the only trace.
    #[track_caller]
    pub fn json(&self, line: &str) -> serde_json::Value {
        self.scratch.json(&format!("{line} {}", self.only_trace().display()))
    }

    /// The recorder's notes in the only trace.
    pub fn notes(&self) -> Vec<String> {
        let bytes = std::fs::read(self.only_trace()).unwrap();
        let reader = vramtrace_format::TraceReader::new(&bytes).unwrap();
        let note = |definition| match definition {
            vramtrace_format::Definition::Note { text } => Some(text),
            _ => None,
        };
        reader.definitions().filter_map(note).collect()
    }

    #[track_caller]
    pub fn ok(self) -> Run {
        assert_eq!(self.status, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// With nothing on stderr.
    #[track_caller]
    pub fn quiet(self) -> Run {
        assert_eq!(self.stderr, "", "{}", self.stdout);
        self
    }
}

pub fn report(traces: &[PathBuf]) -> serde_json::Value {
    let output = vramtrace().args(["report", "--json"]).args(traces).output().unwrap();
    assert!(
        output.status.success(),
        "vramtrace report: {:?}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}
