//! Reports as JSON, for programs. Keys may be added, none is renamed or removed.

mod documents;
pub mod process;
pub mod ps;
pub mod run;
#[cfg(test)]
mod schemas;
mod torch;

pub use documents::*;

use serde::Serialize;

use crate::analysis::ranks::ProcessFigures;
use crate::facts::{self, ProcessId};

/// A process of a run, and how it ended.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessHead {
    #[serde(flatten)]
    pub id: ProcessId,
    pub host: String,
    pub trace: String,
    #[serde(rename = "started_unix_s", with = "facts::Seconds")]
    started_unix_ns: u64,
    /// Up to the last event.
    #[serde(rename = "duration_s", with = "facts::Seconds")]
    last_ns: u64,
    /// `in_order`, `out_of_memory`, `cut_off` (not recorded, or `_exit` with a status), `running` or `unknown`.
    pub ended: &'static str,
    /// Null: not recorded.
    exit_status: Option<i32>,
}

impl ProcessHead {
    pub fn of(figures: &ProcessFigures) -> ProcessHead {
        let header = &figures.header;
        ProcessHead {
            id: ProcessId::of(header),
            host: header.host.clone(),
            trace: figures.trace.display().to_string(),
            started_unix_ns: header.start_unix_ns,
            last_ns: figures.last_ns,
            ended: figures.end().name(),
            exit_status: figures.exit_status,
        }
    }
}
