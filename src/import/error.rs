//! What is wrong with a file that was to be imported.

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
    #[error("not whole gzip: {0}")]
    Gzip(std::io::Error),
    #[error("unpacks to more than {0} times its size")]
    TooLarge(u64),
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
    /// A place in a snapshot, and what is wrong there.
    #[error("{0}")]
    Snapshot(String),
}
