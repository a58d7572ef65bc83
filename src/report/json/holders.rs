//! `holders --json`: schema `vramtrace.holders/1`.

use serde::Serialize;
use vramtrace_format::DeviceId;

use crate::analysis::ranks::MergedHolder;
use crate::analysis::{Holder, Level, MomentFacts, NamedHoldings, Process};
use crate::facts;

pub const SCHEMA: &str = "vramtrace.holders/1";

/// `vramtrace.holders/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HoldersReport {
    pub schema: &'static str,
    pub at: MomentFacts,
    /// `driver`, or `tensor`: blocks of PyTorch's cache in place of its segments.
    pub level: Level,
    /// Largest first.
    pub holders: Vec<Holder>,
    /// Only of several processes: the holders, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<MergedHolder>,
    /// Peaks of which only the bytes are known: their events are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_known: Vec<PeakWithoutHolders>,
    /// Libraries whose symbols could not be read, and why.
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeakWithoutHolders {
    pid: u32,
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    device: DeviceId,
    bytes: u64,
    #[serde(rename = "seconds", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    time_ns: u64,
}

/// The value of `not_known` for one process.
pub fn not_known(process: &Process, who: &NamedHoldings) -> Vec<PeakWithoutHolders> {
    let pid = process.header.pid;
    let peaks = who.live.not_known.iter().map(|(device, peak)| PeakWithoutHolders {
        pid,
        device: *device,
        bytes: peak.bytes,
        time_ns: peak.time_ns,
    });
    peaks.collect()
}
