//! Errors of the import: file, place in it, what is wrong.

use super::pickle::PickleError;

/// Names the file, what is wrong and what would be right.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct ImportError {
    pub path: String,
    #[source]
    pub problem: ImportProblem,
}

/// The same without the file's name.
#[derive(Debug, thiserror::Error)]
pub enum ImportProblem {
    #[error(transparent)]
    Unreadable(#[from] std::io::Error),
    #[error(
        "neither a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot), nor a CSV that \
         begins with action,addr,size,stream, nor a log of RMM (Thread,Time,Action,...)"
    )]
    Unknown,
    #[error("this is a trace already: every command reads it, for example `vramtrace report FILE`")]
    Trace,
    #[error("not text: {0}")]
    NotText(#[from] std::str::Utf8Error),
    #[error("line {line}: {what}: \"{text}\"")]
    Row { line: usize, what: String, text: String },
    #[error("holds no allocation")]
    Empty,
    #[error(transparent)]
    Pickle(#[from] PickleError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// What is wrong at which place of a snapshot: `segments[3].blocks[0]: it has no size`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SnapshotError(pub(super) String);

/// The text follows the place.
impl From<&str> for SnapshotError {
    fn from(fault: &str) -> SnapshotError {
        SnapshotError(fault.to_string())
    }
}

impl SnapshotError {
    /// The same error, its place being inside this one.
    pub(super) fn at(mut self, outer: &str) -> SnapshotError {
        self.0.insert_str(0, outer);
        self
    }
}
