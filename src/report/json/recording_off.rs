//! Times in which the recording was switched off.

use serde::Serialize;
use vramtrace_format::SwitchedBy;

use crate::replay::OffSpan;

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OffFacts {
    pub from_s: f64,
    /// Null: to the end of the trace.
    pub until_s: Option<f64>,
    /// `record`: by `vramtrace record`; `host_file`: by the file of the host or of the user; `unwritable`: no thread could
    /// write the trace.
    pub by: &'static str,
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub fn off_facts(off: &[OffSpan]) -> Vec<OffFacts> {
    let facts = |span: &OffSpan| OffFacts {
        from_s: seconds(span.from_ns),
        until_s: span.until_ns.map(seconds),
        by: name(span.by),
    };
    off.iter().map(facts).collect()
}

/// The name in JSON of what switches the recording off.
pub fn name(by: SwitchedBy) -> &'static str {
    match by {
        SwitchedBy::Order => "record",
        SwitchedBy::HostFile => "host_file",
        SwitchedBy::End => "unwritable",
    }
}
