//! `fits --json`: schema `vramtrace.fits/1`.

use serde::Serialize;

use crate::analysis::fits::Answer;

pub const SCHEMA: &str = "vramtrace.fits/1";

/// `vramtrace.fits/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FitsReport {
    pub schema: &'static str,
    #[serde(flatten)]
    pub answer: Answer,
}
