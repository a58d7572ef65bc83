//! `run --json`: schema `vramtrace.run/2`, an object a line: one for each process, then one for the job. Keys may be
//! added, none is renamed or removed.
//!
//! Changed since version 1, which was one indented object that replaced the file: the keys of the run are those of the
//! line of the job; peaks and leaks are in the lines of the processes.

mod job;
mod process;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::leaks::Leak;

pub use job::{CardRecord, Ended, FailureRecord, JobRecord, WorstLeak};
pub use process::{DeviceRecord, OomRecord, ProcessRecord};
pub use read::{Judged, RunRecords, read, worth_reading};

pub const SCHEMA: &str = "vramtrace.run/2";

/// A line.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "record", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)]
pub enum RunRecord<'r> {
    Process(&'r ProcessRecord),
    Job(&'r JobRecord),
}

/// As in `vramtrace leaks --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JudgedLeak {
    /// The run fails because of it.
    pub fails: bool,
    /// The line that holds it, as text.
    pub line: Option<String>,
    #[serde(flatten)]
    pub leak: Leak,
}

/// The best thing to try after an out-of-memory.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AdviceRecord {
    /// As in `vramtrace oom --json`: `setting`, `cap`, `card`, `smaller_request`, ...
    pub what: &'static str,
    /// A PYTORCH_CUDA_ALLOC_CONF under which the replayed run fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    /// The same in words.
    pub text: String,
}

/// Names with more bytes than the others have a key of their own.
const NAMED: usize = 24;

/// Adds bytes to the sums of others by name.
fn add(to: &mut BTreeMap<String, u64>, name: &str, bytes: u64) {
    let sum = match to.get_mut(name) {
        Some(sum) => sum,
        None => to.entry(name.to_string()).or_default(),
    };
    *sum = sum.saturating_add(bytes);
}

/// Keeps the largest, and sums the others as `other`.
fn bounded(mut all: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    if all.len() <= NAMED {
        return all;
    }
    let mut sizes: Vec<u64> = all.values().copied().collect();
    sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let least = sizes[NAMED - 1];
    let small = |_: &String, bytes: &mut u64| *bytes >= least;
    let before: u64 = all.values().copied().fold(0, u64::saturating_add);
    all.retain(small);
    let kept: u64 = all.values().copied().fold(0, u64::saturating_add);
    add(&mut all, "other", before - kept);
    all
}

/// A part from 0 to 1, to four digits.
fn share(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 10_000.0).round() / 10_000.0
}

fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
