//! `verify --json`: schema `vramtrace.verify/1`.

use serde::Serialize;

pub const SCHEMA: &str = "vramtrace.verify/1";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VerifyReport {
    pub schema: &'static str,
    pub holds: bool,
    pub traces: Vec<VerifiedFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VerifiedFacts {
    pub trace: String,
    pub holds: bool,
    pub events: u64,
    pub audits: u64,
    pub totals_compared: u64,
    pub checkpoints_compared: u64,
    pub violated: u64,
    pub violations: Vec<ViolationFacts>,
    pub unchecked: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ViolationFacts {
    pub rule: &'static str,
    pub time_ns: u64,
    pub offset: u64,
    pub device: Option<u8>,
    pub space: Option<String>,
    pub address: Option<u64>,
    pub what: String,
    pub expected: String,
    pub found: String,
}
