//! Every trace that a test leaves behind is checked: `vramtrace verify` finds no violation in it.

use std::path::{Path, PathBuf};

use crate::{bin_dir, vramtrace};

/// Longer traces are left out: this is done at the end of every test.
const MOST_BYTES: u64 = 16 << 20;

/// The traces in a directory and in those directly below it.
fn traces(directory: &Path, below: bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        let is_small = || entry.metadata().is_ok_and(|meta| meta.len() <= MOST_BYTES);
        if kind.is_dir() && below {
            found.extend(traces(&path, false));
        } else if kind.is_file()
            && path.extension().is_some_and(|end| end == "vtrace")
            && is_small()
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The violations in the traces of a directory. Files that are no traces are not looked at: some
/// tests damage theirs.
pub fn violations(directory: &Path) -> Option<String> {
    // Tests of the format's crate need no command.
    if !bin_dir().join("vramtrace").exists() {
        return None;
    }
    let found = traces(directory, true).into_iter().filter_map(|trace| {
        let run = vramtrace().arg("verify").arg(&trace).output().ok()?;
        // 2: no trace, or nothing of it can be read.
        (run.status.code() != Some(0) && run.status.code() != Some(2)).then(|| {
            let output = [run.stdout, run.stderr].concat();
            format!("{}: {}", run.status, String::from_utf8_lossy(&output))
        })
    });
    let all: String = found.collect();
    (!all.is_empty()).then_some(all)
}
