//! The lines whose blocks pin free memory in the cache: PyTorch releases a segment to the driver only when it
//! contains no block. Sizes are bytes.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::StackId;

use crate::replay::SegmentAt;

/// One line, and the segments that contain its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Pin {
    /// The stack of the line with the most bytes.
    #[serde(skip)]
    pub stack: StackId,
    /// Its part of the free bytes of those segments, in proportion to its blocks among all blocks there.
    #[serde(rename = "pinned_bytes")]
    pub pinned: u64,
    pub segments: u64,
    /// Of those segments, the ones without blocks of other lines.
    pub alone: u64,
    /// Bytes of its blocks.
    pub bytes: u64,
    pub blocks: u64,
}

#[derive(Default)]
struct Sum {
    /// Without its stack.
    pin: Pin,
    pinned: u128,
    stacks: FxHashMap<StackId, u64>,
}

/// The lines that pin memory, the largest first.
pub(super) fn pins(segments: &[&SegmentAt], lines: &FxHashMap<StackId, u32>) -> Vec<Pin> {
    let mut sums: FxHashMap<u32, Sum> = FxHashMap::default();
    let mut here: FxHashMap<u32, u64> = FxHashMap::default();
    for segment in segments.iter().filter(|segment| !segment.blocks.is_empty()) {
        here.clear();
        for block in &segment.blocks {
            let line = lines.get(&block.live.stack).copied().unwrap_or(u32::MAX);
            *here.entry(line).or_default() += block.bytes;
            let sum = sums.entry(line).or_default();
            sum.pin.bytes = sum.pin.bytes.saturating_add(block.bytes);
            sum.pin.blocks += 1;
            *sum.stacks.entry(block.live.stack).or_default() += block.bytes;
        }
        let allocated = u128::from(segment.allocated().max(1));
        for (line, bytes) in &here {
            let sum = sums.entry(*line).or_default();
            sum.pinned += u128::from(segment.free()) * u128::from(*bytes) / allocated;
            sum.pin.segments += 1;
            sum.pin.alone += u64::from(here.len() == 1);
        }
    }
    let pin = |sum: Sum| {
        let pinned = u64::try_from(sum.pinned).unwrap_or(u64::MAX);
        Pin { stack: largest(&sum.stacks), pinned, ..sum.pin }
    };
    let mut pins: Vec<Pin> = sums.into_values().map(pin).collect();
    pins.sort_by_key(|pin| (Reverse((pin.pinned, pin.bytes)), pin.stack));
    pins
}

/// The stack with the largest number of bytes; of equal ones the lowest id, to be independent of the hash order.
fn largest(stacks: &FxHashMap<StackId, u64>) -> StackId {
    let largest = stacks.iter().max_by_key(|(stack, bytes)| (**bytes, Reverse(**stack)));
    largest.map_or(StackId(0), |(stack, _)| *stack)
}
