//! `diff --json`: schema `vramtrace.diff/1`.

use serde::Serialize;

use crate::analysis::diff::{Change, Difference, LineName};

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
    pub reasons: &'d [String],
    pub devices: Vec<DeviceDiff<'d>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceDiff<'d> {
    pub name: &'d str,
    pub in_use: ChangeFacts,
    pub free_in_cache: ChangeFacts,
    pub peak: ChangeFacts,
    pub roles: Vec<PartDiff<'d>>,
    pub libraries: Vec<PartDiff<'d>>,
    pub lines: Vec<LineDiff<'d>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangeFacts {
    pub before_bytes: u64,
    pub after_bytes: u64,
    pub change_bytes: i64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PartDiff<'d> {
    pub name: &'d str,
    #[serde(flatten)]
    pub change: ChangeFacts,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineDiff<'d> {
    #[serde(flatten)]
    pub name: &'d LineName,
    #[serde(flatten)]
    pub change: ChangeFacts,
}

impl From<Change> for ChangeFacts {
    fn from(change: Change) -> ChangeFacts {
        ChangeFacts {
            before_bytes: change.before,
            after_bytes: change.after,
            change_bytes: change.bytes(),
        }
    }
}

/// The document. `reasons`: why the comparison failed; empty if it passed.
pub fn facts<'d>(
    differences: &'d [Difference],
    names: &'d [String; 2],
    tolerance: Option<f64>,
    reasons: &'d [String],
) -> DiffReport<'d> {
    fn parts(all: &[(String, Change)]) -> Vec<PartDiff<'_>> {
        all.iter().map(|(name, change)| PartDiff { name, change: (*change).into() }).collect()
    }
    let device = |of: &'d Difference| DeviceDiff {
        name: &of.name,
        in_use: of.in_use.into(),
        free_in_cache: of.free_in_cache.into(),
        peak: of.peak.into(),
        roles: parts(&of.roles),
        libraries: parts(&of.libraries),
        lines: of
            .lines
            .iter()
            .map(|line| LineDiff { name: &line.name, change: line.bytes.into() })
            .collect(),
    };
    DiffReport {
        schema: SCHEMA,
        before: &names[0],
        after: &names[1],
        tolerance_percent: tolerance.map(|part| part * 100.0),
        passed: reasons.is_empty(),
        reasons,
        devices: differences.iter().map(device).collect(),
    }
}
