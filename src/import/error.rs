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
        "{looks}, which is not read: give a vramtrace trace or the directory of a run, a PyTorch memory snapshot \
         (torch.cuda.memory._dump_snapshot; as JSON or by torch.save, too), a timeline of torch.profiler with \
         profile_memory=True, a CSV that begins with action,addr,size,stream, a log of RMM (Thread,Time,Action,...), a \
         pprof profile of memory (jax.profiler.save_device_memory_profile), or what `nsys export --type parquetdir` made \
         of a report (`nsys profile --cuda-memory-usage=true`)"
    )]
    Unknown { looks: &'static str },
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
    /// What is wrong at which place: `segments[3].blocks[0]: it has no size`.
    #[error("{0}")]
    Snapshot(String),
}
