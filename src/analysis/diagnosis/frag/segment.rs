//! A segment of PyTorch's cache with its blocks and holes. Sizes are bytes.

use serde::Serialize;
use vramtrace_format::StackId;
use vramtrace_format::holes::holes;

use super::sizes;
use crate::facts;
use crate::replay::{Backing, SegmentAt};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FragSegment {
    pub address: u64,
    pub bytes: u64,
    pub free_bytes: u64,
    pub largest_free_block_bytes: u64,
    /// By address; in JSON their number.
    #[serde(serialize_with = "facts::length")]
    #[cfg_attr(test, schemars(with = "u64"))]
    pub blocks: Vec<FragBlock>,
    pub small: bool,
    /// It consists of mapped pages (expandable_segments).
    pub expandable: bool,
    /// Unmapped bytes.
    #[serde(skip)]
    pub paused: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragBlock {
    pub address: u64,
    pub bytes: u64,
    pub stack: StackId,
}

impl FragSegment {
    pub(in crate::analysis) fn of(segment: &SegmentAt) -> FragSegment {
        let blocks = segment.blocks.iter().map(|block| FragBlock {
            address: block.address,
            bytes: block.bytes,
            stack: block.live.stack,
        });
        let blocks: Vec<FragBlock> = blocks.collect();
        FragSegment {
            address: segment.start,
            bytes: segment.bytes,
            small: match blocks.first() {
                Some(block) => sizes::is_small(block.bytes),
                None => segment.bytes <= sizes::SMALL_SEGMENT,
            },
            expandable: segment.backing == Backing::Mapping,
            free_bytes: segment.free(),
            largest_free_block_bytes: segment.largest_hole(),
            paused: segment.paused,
            blocks,
        }
    }

    pub fn allocated(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).fold(0, u64::saturating_add)
    }

    /// Whether it contains a block, so that its free memory cannot be released to the driver.
    pub fn is_pinned(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Ranges that no block covers: address and bytes.
    pub fn holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let end = self.address.saturating_add(self.bytes);
        holes(self.address..end, self.blocks.iter().map(|block| (block.address, block.bytes)))
    }
}
