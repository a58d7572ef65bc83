//! `tree --json`: schema `vramtrace.tree/1`.

use serde::Serialize;

use super::holders::MomentFacts;
use crate::analysis::tree::Node;

pub const SCHEMA: &str = "vramtrace.tree/1";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TreeReport<'t> {
    pub schema: &'static str,
    pub at: MomentFacts,
    pub devices: Vec<DeviceTree<'t>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceTree<'t> {
    pub pid: u32,
    pub rank: Option<u32>,
    pub device: Option<u8>,
    #[serde(flatten)]
    pub root: &'t Node,
}
