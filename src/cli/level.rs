//! `--level driver|tensor`: at which level memory is shown.

use vramtrace_format::Kind;
use vramtrace_reader::analysis::{Level, Moment};
use vramtrace_reader::trace::Trace;

use crate::error::Failure;

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum LevelName {
    /// Allocations from the driver
    Driver,
    /// Blocks of PyTorch's cache in place of its segments
    Tensor,
}

impl From<LevelName> for Level {
    fn from(name: LevelName) -> Level {
        match name {
            LevelName::Driver => Level::Driver,
            LevelName::Tensor => Level::Tensor,
        }
    }
}

/// Fails if the options need blocks of PyTorch's cache and no trace has any.
pub fn require_blocks(
    traces: &[Trace],
    level: Option<Level>,
    at: Option<Moment>,
) -> Result<(), Failure> {
    let option = match (level, at) {
        (Some(Level::Tensor), _) => "--level tensor",
        (_, Some(Moment::AllocatedPeak)) => "--at peak-allocated",
        _ => return Ok(()),
    };
    let has_blocks = |trace: &Trace| {
        let (definitions, _) = trace.definitions();
        definitions.sites().any(|site| site.kind == Some(Kind::Block))
    };
    let Some(first) = traces.first().filter(|_| !traces.iter().any(has_blocks)) else {
        return Ok(());
    };
    Err(Failure::new(format!(
        "{option}: {} has no blocks of PyTorch's cache: recorded without PyTorch, or with \
         VRAMTRACE_TENSORS=off",
        first.path().display()
    )))
}
