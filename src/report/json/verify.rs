//! `verify --json`: schema `vramtrace.verify/1`.

use serde::Serialize;

use crate::analysis::verify::Verification;

pub const SCHEMA: &str = "vramtrace.verify/1";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VerifyReport {
    pub schema: &'static str,
    pub holds: bool,
    pub traces: Vec<Verification>,
}
