//! Fragmentation of PyTorch's cache at one moment: the reserved bytes that are in no block, the part of
//! them that is usable, and the lines whose blocks keep their segments reserved. Sizes are bytes.
//!
//! | free memory | is |
//! |---|---|
//! | releasable | segments without any block: torch frees them when a request needs the memory |
//! | pinned | the free parts of segments that contain a block |
//! | unusable | pinned ranges smaller than the pool's usual request |
//!
//! The **usual request** of a pool (small: blocks up to 1 MiB; large) is the size at or above which
//! half of all bytes were requested, over the whole run.

mod moment;
mod pins;
mod segment;
mod sizes;
#[cfg(test)]
mod tests;

pub use moment::{FragAt, MomentError, RequestSizes, find};
pub use pins::Pin;
pub(in crate::analysis) use pins::pins;
pub use segment::{FragBlock, FragSegment};
pub use sizes::Sizes;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{DeviceId, StackId};

use crate::replay::CacheOomAt;
use crate::symbols::Symbols;

/// One device's cache at one moment.
#[derive(Clone, Debug)]
pub struct Frag {
    pub device: DeviceId,
    /// The moment, ns since the start of the trace. `None`: the trace has no times.
    pub at_ns: Option<u64>,
    /// Begin of the history: earlier peaks are not known. `None`: no events are missing.
    pub from_ns: Option<u64>,
    pub reserved: u64,
    pub allocated: u64,
    /// The unmapped part of `reserved`.
    pub reserved_paused: u64,
    /// The unmapped part of `allocated`.
    pub paused: u64,
    pub largest_free: u64,
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    pub small: PoolFrag,
    pub large: PoolFrag,
    /// By address.
    pub segments: Vec<FragSegment>,
    /// The lines that pin most first.
    pub pins: Vec<Pin>,
    /// The last request that the cache could not serve.
    pub out_of_memory: Option<CacheOomAt>,
    pub symbols: Symbols,
    /// The number of each stack's line.
    pub lines: FxHashMap<StackId, u32>,
}

impl Frag {
    /// Segments with a block, those with most free bytes first.
    pub fn pinned_segments(&self) -> Vec<&FragSegment> {
        let mut pinned: Vec<&FragSegment> =
            self.segments.iter().filter(|s| s.is_pinned()).collect();
        pinned.sort_by_key(|segment| (std::cmp::Reverse(segment.free()), segment.address));
        pinned
    }

    /// All lines with blocks, the largest first.
    pub fn largest_lines(&self) -> Vec<u32> {
        let mut bytes: FxHashMap<u32, u64> = FxHashMap::default();
        for block in self.segments.iter().flat_map(|segment| &segment.blocks) {
            if let Some(line) = self.line(block.stack) {
                let sum = bytes.entry(line).or_default();
                *sum = sum.saturating_add(block.bytes);
            }
        }
        let mut lines: Vec<(u32, u64)> = bytes.into_iter().collect();
        lines.sort_by_key(|(line, bytes)| (std::cmp::Reverse(*bytes), *line));
        lines.into_iter().map(|(line, _)| line).collect()
    }

    /// A device without a cache.
    #[cfg(test)]
    pub fn empty(device: DeviceId) -> Frag {
        Frag {
            device,
            at_ns: None,
            from_ns: None,
            reserved: 0,
            allocated: 0,
            reserved_paused: 0,
            paused: 0,
            largest_free: 0,
            peak_reserved: 0,
            peak_allocated: 0,
            small: PoolFrag::default(),
            large: PoolFrag::default(),
            segments: Vec::new(),
            pins: Vec::new(),
            out_of_memory: None,
            symbols: Symbols::default(),
            lines: FxHashMap::default(),
        }
    }

    /// Reserved and in no block.
    pub fn free(&self) -> u64 {
        self.small.free().saturating_add(self.large.free())
    }

    pub fn releasable(&self) -> u64 {
        self.small.releasable.saturating_add(self.large.releasable)
    }

    pub fn unusable(&self) -> u64 {
        self.small.unusable.saturating_add(self.large.unusable)
    }

    /// `1 - peak allocated / peak reserved`, 0 to 1. `None` where nothing was reserved.
    pub fn fragmentation(&self) -> Option<f64> {
        (self.peak_reserved > 0)
            .then(|| (1.0 - self.peak_allocated as f64 / self.peak_reserved as f64).max(0.0))
    }

    pub fn line(&self, stack: StackId) -> Option<u32> {
        self.lines.get(&stack).copied()
    }
}

/// The segments of one of the two pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PoolFrag {
    pub segments: u64,
    #[serde(rename = "reserved_bytes")]
    pub reserved: u64,
    #[serde(rename = "allocated_bytes")]
    pub allocated: u64,
    #[serde(rename = "largest_free_block_bytes")]
    pub largest_free: u64,
    #[serde(rename = "releasable_bytes")]
    pub releasable: u64,
    #[serde(rename = "unusable_bytes")]
    pub unusable: u64,
    /// Half of all bytes were requested in requests of this size or more.
    #[serde(rename = "usual_request_bytes")]
    pub usual_request: u64,
}

impl PoolFrag {
    pub fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}

/// Sums of the segments of one pool.
pub(in crate::analysis) fn pool<'s>(
    segments: impl Iterator<Item = &'s FragSegment>,
    usual_request: u64,
) -> PoolFrag {
    let mut pool = PoolFrag { usual_request, ..PoolFrag::default() };
    for segment in segments {
        pool.segments += 1;
        pool.reserved = pool.reserved.saturating_add(segment.bytes);
        pool.allocated = pool.allocated.saturating_add(segment.allocated());
        pool.largest_free = pool.largest_free.max(segment.largest_free);
        if !segment.is_pinned() {
            // Unmapped memory is free already.
            let resident = segment.bytes.saturating_sub(segment.paused);
            pool.releasable = pool.releasable.saturating_add(resident);
            continue;
        }
        let unusable = segment.holes().map(|(_, bytes)| bytes).filter(|b| *b < usual_request);
        pool.unusable = pool.unusable.saturating_add(unusable.sum());
    }
    pool
}
