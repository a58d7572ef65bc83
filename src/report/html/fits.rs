//! Which batch fits, on the page of a run whose marks name two batches or lengths.

use serde::Serialize;

use crate::analysis::fits::{Question, answer, marked_recordings};
use crate::report::{json, text};
use crate::trace::Trace;

/// The result of `vramtrace fits` for the recorded card.
#[derive(Debug, Serialize)]
pub(super) struct PageFits {
    /// The answer in one line.
    line: String,
    #[serde(flatten)]
    facts: json::fits::FitsReport,
}

/// `None`: the marks of these traces name fewer than two, no card is known, or it would take long.
pub(super) fn fits(traces: &[Trace]) -> Option<PageFits> {
    let recordings = marked_recordings(traces);
    let answer = answer(&recordings, &Question::usual(&recordings)).ok()?;
    let line = text::fits::headline(&answer)?;
    Some(PageFits { line, facts: json::fits::FitsReport { schema: json::fits::SCHEMA, answer } })
}
