//! `oom --json`: schema `vramtrace.oom/1`.

use serde::Serialize;

use crate::analysis::oom::NotReported;
use crate::report::oom::{ListedOom, ProcessRefusals};

pub const SCHEMA: &str = "vramtrace.oom/1";

/// `vramtrace.oom/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OomsReport<'r> {
    pub schema: &'static str,
    /// All out-of-memory failures of the run, in order of time.
    pub ooms: &'r [ListedOom<'r>],
    pub processes: Vec<ProcessRefusals<'r>>,
    /// Refused requests that a library did not report, each with the next error of an API call.
    pub not_reported: Vec<NotReported>,
}
