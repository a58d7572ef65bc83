//! `whatif --json`: schema `vramtrace.whatif/1`.

use serde::Serialize;

use crate::analysis::whatif::Prediction;

pub const SCHEMA: &str = "vramtrace.whatif/1";

/// `vramtrace.whatif/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WhatifReport {
    pub schema: &'static str,
    pub devices: Vec<Prediction>,
}
