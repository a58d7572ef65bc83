//! `diff --json`: schema `vramtrace.diff/1`.

use serde::Serialize;

use crate::analysis::diff::Difference;

pub const SCHEMA: &str = "vramtrace.diff/1";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiffReport<'d> {
    pub schema: &'static str,
    pub before: &'d str,
    pub after: &'d str,
    /// Null: none was given.
    pub tolerance_percent: Option<f64>,
    pub passed: bool,
    /// Why the comparison failed.
    pub reasons: &'d [String],
    pub devices: &'d [Difference],
}
