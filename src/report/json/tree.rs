//! `tree --json`: schema `vramtrace.tree/1`.

use serde::Serialize;

use super::holders::MomentFacts;
use crate::analysis::tree::Node;

pub const SCHEMA: &str = "vramtrace.tree/1";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TreeReport {
    pub schema: &'static str,
    pub at: MomentFacts,
    pub devices: Vec<DeviceTree>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceTree {
    pub pid: u32,
    pub rank: Option<u32>,
    pub device: Option<u8>,
    #[serde(flatten)]
    pub root: NodeFacts,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeFacts {
    pub name: String,
    pub bytes: u64,
    pub count: u64,
    /// Largest first.
    pub children: Vec<NodeFacts>,
}

impl From<&Node> for NodeFacts {
    fn from(node: &Node) -> NodeFacts {
        NodeFacts {
            name: node.name.clone(),
            bytes: node.held.bytes,
            count: node.held.count,
            children: node.children.iter().map(NodeFacts::from).collect(),
        }
    }
}
