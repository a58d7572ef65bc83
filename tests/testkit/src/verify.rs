//! `vramtrace verify` on every trace in a test's directory, recorded or made up by the test: it finds no
//! violation in it.

use std::path::{Path, PathBuf};

use crate::{bin_dir, vramtrace};

/// What a test knows about its traces.
#[derive(Clone, Copy, Default)]
pub struct Expected {
    /// Not all of them can be read.
    pub damaged: bool,
    /// They contradict themselves.
    pub contradicts: bool,
}

/// The traces below a directory. Links are not followed.
fn traces(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if kind.is_dir() {
            found.extend(traces(&path));
        } else if kind.is_file() && path.extension().is_some_and(|end| end == "vtrace") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The traces below a directory that are not as expected, and why.
pub fn violations(directory: &Path, expected: Expected) -> Option<String> {
    let found = traces(directory);
    assert!(
        found.is_empty() || bin_dir().join("vramtrace").exists(),
        "the command checks the traces: run `cargo build --workspace` first"
    );
    let found = found.iter().filter_map(|trace| {
        let run = vramtrace().arg("verify").arg(trace).output().unwrap();
        let is_expected = match run.status.code() {
            Some(0) => true,
            Some(1) => expected.contradicts,
            Some(2) => expected.damaged,
            _ => false,
        };
        (!is_expected).then(|| {
            let output = [run.stdout, run.stderr].concat();
            format!("{}: {}: {}", trace.display(), run.status, String::from_utf8_lossy(&output))
        })
    });
    let all: String = found.collect();
    (!all.is_empty()).then_some(all)
}
