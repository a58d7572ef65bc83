//! Traces to read: the recorder's, and what others recorded, made into traces on the way.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use vramtrace_reader::import;
use vramtrace_reader::trace::{Trace, load};

use super::{Failure, say};

/// A trace, and what people call it.
pub struct Input {
    pub name: String,
    pub trace: Trace,
}

/// Opens trace files, directories of runs, PyTorch snapshots, CSVs of requests and RMM logs;
/// without any, the newest run in the working directory.
pub fn open(paths: &[PathBuf]) -> Result<Vec<Input>, Failure> {
    let mut inputs = Vec::new();
    let (foreign, own): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.iter().cloned().partition(|path| is_foreign(path));
    if foreign.is_empty() || !own.is_empty() {
        let loaded = load(&own)?;
        loaded.warnings.iter().for_each(say);
        let alone = loaded.traces.len() == 1;
        inputs.extend(loaded.traces.into_iter().map(|trace| Input {
            name: match alone {
                true => trace.path().display().to_string(),
                false => name_of(&trace),
            },
            trace,
        }));
    }
    for path in foreign {
        inputs.push(Input { name: path.display().to_string(), trace: imported(&path)? });
    }
    Ok(inputs)
}

fn name_of(trace: &Trace) -> String {
    match trace.header().rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("pid {}", trace.header().pid),
    }
}

/// A file that is no trace of ours, by its first bytes. One that cannot be read is left to the
/// reader of traces, who says why.
fn is_foreign(path: &Path) -> bool {
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(8).read_to_end(&mut first));
    let begins = [&b"\x80"[..], b"\x1f\x8b", b"action,", b"Thread,"];
    read.is_ok() && path.is_file() && begins.iter().any(|begin| first.starts_with(begin))
}

/// The file's history as a trace. It is mapped, so its file need not stay.
fn imported(path: &Path) -> Result<Trace, Failure> {
    let history = import::read(path)?;
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(format!("{}: cannot be made into a trace: {error}", path.display()))
    };
    let file = NamedTempFile::new().map_err(|error| failed(&error))?;
    let handle = file.reopen().map_err(|error| failed(&error))?;
    import::convert(&history, path, handle).map_err(|error| failed(&error))?;
    history.caveats.iter().for_each(say);
    Trace::open(file.path()).map_err(|error| failed(&error))
}
