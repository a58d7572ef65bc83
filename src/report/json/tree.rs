//! `tree --json`: schema `vramtrace.tree/1`.

use serde::Serialize;
use vramtrace_format::DeviceId;

use crate::analysis::MomentFacts;
use crate::analysis::tree::Node;
use crate::facts::{self, ProcessId};

pub const SCHEMA: &str = "vramtrace.tree/1";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TreeReport<'t> {
    pub schema: &'static str,
    pub at: MomentFacts,
    pub devices: &'t [DeviceTree],
}

/// The call tree of one device of one process.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceTree {
    #[serde(flatten)]
    pub process: ProcessId,
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: DeviceId,
    #[serde(flatten)]
    pub root: Node,
    /// The name of the process.
    #[serde(skip)]
    pub name: String,
    #[serde(skip)]
    pub at_ns: u64,
}
