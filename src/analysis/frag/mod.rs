//! Fragmentation of PyTorch's cache at one moment: what is reserved and in no block, how much of
//! it is of use, and who keeps it from going back to the driver.
//!
//! | free memory | is |
//! |---|---|
//! | releasable | segments without any block: torch gives them back when a request needs them |
//! | pinned | the rest of segments that hold a block |
//! | unusable | of the pinned, the ranges below the pool's usual request |
//!
//! The **usual request** of a pool (small: blocks up to 1 MiB; large) is the size at or above which
//! half of all bytes were asked for, over the whole run.

mod moment;
mod pins;
mod sizes;
#[cfg(test)]
mod tests;

pub use moment::{At, NotThere, find};
pub use pins::Pin;
pub(in crate::analysis) use pins::pins;
pub use sizes::Sizes;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, StackId};

use crate::replay::{Backing, CacheOomAt, SegmentAt};
use crate::symbols::Symbols;

/// One device's cache at one moment.
#[derive(Clone, Debug)]
pub struct Frag {
    pub device: DeviceId,
    /// ns since the start. `None`: the trace has no times.
    pub at_ns: Option<u64>,
    /// The history begins here: earlier peaks are not known. `None`: it is whole.
    pub from_ns: Option<u64>,
    pub reserved: u64,
    pub allocated: u64,
    pub largest_free: u64,
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    pub small: PoolFrag,
    pub large: PoolFrag,
    /// By address.
    pub segments: Vec<Segment>,
    /// Those that pin most first.
    pub pins: Vec<Pin>,
    /// The last time that the cache gave up, if it did.
    pub out_of_memory: Option<CacheOomAt>,
    pub symbols: Symbols,
    /// Which stacks are of one line.
    pub lines: FxHashMap<StackId, u32>,
}

impl Frag {
    /// Nothing at all.
    pub fn empty(device: DeviceId) -> Frag {
        Frag {
            device,
            at_ns: None,
            from_ns: None,
            reserved: 0,
            allocated: 0,
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
        self.small.free() + self.large.free()
    }

    pub fn releasable(&self) -> u64 {
        self.small.releasable + self.large.releasable
    }

    pub fn unusable(&self) -> u64 {
        self.small.unusable + self.large.unusable
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolFrag {
    pub segments: u64,
    pub reserved: u64,
    pub allocated: u64,
    pub largest_free: u64,
    pub releasable: u64,
    pub unusable: u64,
    /// Half of all bytes were asked for in requests of this size or more.
    pub usual_request: u64,
}

impl PoolFrag {
    pub fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    pub bytes: u64,
    pub small: bool,
    /// A run of mapped pages.
    pub expandable: bool,
    pub largest_free: u64,
    /// By address.
    pub blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub address: u64,
    pub bytes: u64,
    pub stack: StackId,
    /// When it was allocated.
    pub time_ns: u64,
}

impl Segment {
    pub(in crate::analysis) fn of(segment: &SegmentAt) -> Segment {
        let blocks = segment.blocks.iter().map(|block| Block {
            address: block.address,
            bytes: block.bytes,
            stack: block.live.stack,
            time_ns: block.live.time_ns,
        });
        let blocks: Vec<Block> = blocks.collect();
        Segment {
            address: segment.start,
            bytes: segment.bytes,
            small: match blocks.first() {
                Some(block) => sizes::is_small(block.bytes),
                None => segment.bytes <= sizes::SMALL_SEGMENT,
            },
            expandable: segment.backing == Backing::Mapping,
            largest_free: segment.largest_hole(),
            blocks,
        }
    }

    pub fn allocated(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).fold(0, u64::saturating_add)
    }

    pub fn free(&self) -> u64 {
        self.bytes.saturating_sub(self.allocated())
    }

    /// It holds a block: its free memory cannot go back to the driver.
    pub fn is_pinned(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Ranges that no block covers: address and bytes.
    pub fn holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let end = self.address.saturating_add(self.bytes);
        let blocks = self.blocks.iter().map(|block| (block.address, block.bytes));
        let mut from = self.address;
        blocks.chain([(end, 0)]).filter_map(move |(address, bytes)| {
            let hole = (from, address.saturating_sub(from));
            from = address.saturating_add(bytes);
            (hole.1 > 0).then_some(hole)
        })
    }
}

/// Sums of the segments of one pool.
pub(in crate::analysis) fn pool<'s>(
    segments: impl Iterator<Item = &'s Segment>,
    usual_request: u64,
) -> PoolFrag {
    let mut pool = PoolFrag { usual_request, ..PoolFrag::default() };
    for segment in segments {
        pool.segments += 1;
        pool.reserved = pool.reserved.saturating_add(segment.bytes);
        pool.allocated = pool.allocated.saturating_add(segment.allocated());
        pool.largest_free = pool.largest_free.max(segment.largest_free);
        if !segment.is_pinned() {
            pool.releasable = pool.releasable.saturating_add(segment.bytes);
            continue;
        }
        let unusable = segment.holes().map(|(_, bytes)| bytes).filter(|b| *b < usual_request);
        pool.unusable = pool.unusable.saturating_add(unusable.sum());
    }
    pool
}
