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
         begins with action,addr,size,stream, nor an RMM log that begins with \
         Thread,Time,Action,Pointer,Size,Stream"
    )]
    Unknown,
    #[error("this is a trace already: every command reads it, for example `vramtrace report FILE`")]
    Trace,
    #[error("not text: {0}")]
    NotText(#[from] std::str::Utf8Error),
    #[error("the first line must be {0}")]
    Header(&'static str),
    #[error("line {line}: {what}: \"{text}\"")]
    Row { line: usize, what: String, text: String },
    #[error(transparent)]
    Csv(#[from] ::csv::Error),
    #[error("holds no allocation")]
    Empty,
    #[error(transparent)]
    Pickle(#[from] PickleError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// What is wrong at which place of a snapshot: `segments[3].blocks[0]: it has no size`.
#[derive(Debug, thiserror::Error)]
#[error("{place}{fault}")]
pub struct SnapshotError {
    place: String,
    fault: SnapshotFault,
}

/// The messages follow the place.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFault {
    #[error(
        "has neither segments nor device_traces: it is no PyTorch memory snapshot \
         (torch.cuda.memory._dump_snapshot)"
    )]
    NoSnapshot,
    #[error(" is no list")]
    NoList,
    #[error(": the device is no ordinal from 0 to 254")]
    Device,
    #[error(": the file lists more than it can hold")]
    TooMany,
    #[error(": it ends behind all memory")]
    NoPlace,
    #[error(" has no blocks")]
    NoBlocks,
    #[error(" overlaps the block before it, or ends after the segment")]
    BlockOrder,
    #[error(" has no state")]
    NoState,
    #[error(": it has no action")]
    NoAction,
    #[error(": there are more than 4,095 private pools")]
    Pools,
    #[error(": it has no {0}")]
    NoKey(&'static str),
    #[error(": its {0} is no number from 0 up")]
    NoNumber(&'static str),
}

impl SnapshotFault {
    pub(super) fn at(self, place: &str) -> SnapshotError {
        SnapshotError { place: place.into(), fault: self }
    }
}

impl From<SnapshotFault> for SnapshotError {
    fn from(fault: SnapshotFault) -> SnapshotError {
        fault.at("")
    }
}

impl SnapshotError {
    /// The same error, its place being inside this one.
    pub(super) fn at(mut self, outer: &str) -> SnapshotError {
        self.place.insert_str(0, outer);
        self
    }
}
