//! `run --json`: schema `vramtrace.run/1`. Keys may be added, none is renamed or removed.

use serde::Serialize;

use super::leaks::{LeakFacts, RuleFacts};

pub const SCHEMA: &str = "vramtrace.run/1";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunReport {
    pub schema: &'static str,
    /// All requested checks passed. The command itself may have failed.
    pub passed: bool,
    /// How the command ended: one of the two is null.
    pub exit_status: Option<u8>,
    pub signal: Option<i32>,
    pub reasons: Vec<String>,
    pub max_peak_bytes: Option<u64>,
    pub peaks: Vec<PeakFacts>,
    /// As in `vramtrace leaks --json`. `fails`: the run fails because of this leak.
    pub leaks: Vec<JudgedLeak>,
    pub unused_suppressions: Vec<RuleFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeakFacts {
    pub pid: u32,
    pub rank: Option<u32>,
    pub device: Option<u8>,
    pub peak_bytes: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JudgedLeak {
    pub fails: bool,
    #[serde(flatten)]
    pub leak: LeakFacts,
}
