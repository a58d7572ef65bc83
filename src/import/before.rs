//! Reconstructs the memory that existed before a history begins: PyTorch's ring buffer drops the oldest entries. It
//! is what the history frees without allocating, and what exists at the end without an entry.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashSet;
use vramtrace_format::StackId;

use super::history::{Action, Ground, HistoryBlock, HistoryDevice, HistoryEntry};
use crate::allocator::{Conf, rounding};
use crate::spans::Spans;

/// Of memory that an entry frees: its stack is that of the free.
fn freed_by(entry: &HistoryEntry, expandable: bool) -> Ground {
    let HistoryEntry { stream, pool, .. } = *entry;
    Ground { stream, pool, expandable, stack: StackId(0) }
}

pub(super) fn segments(device: &HistoryDevice) -> Spans<Ground> {
    let mut before: Spans<Ground> = Spans::default();
    // Ranges with entries in the history: the state at the end says nothing about the state before these.
    let mut touched: Spans<()> = Spans::default();
    for entry in &device.entries {
        let range = entry.address..entry.address + entry.size;
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                touched.put(range, ());
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let ground = freed_by(entry, entry.action == Action::SegmentUnmap);
                for hole in touched.holes(range.clone()) {
                    before.put(hole, ground);
                }
                touched.put(range, ());
            }
            _ => {}
        }
    }
    for segment in &device.segments {
        for hole in touched.holes(segment.address..segment.address + segment.size) {
            before.put(hole, segment.ground);
        }
    }
    before
}

/// In order of address; nothing overlaps. `segments`: those that were there before.
pub(super) fn blocks(
    device: &HistoryDevice,
    segments: &Spans<Ground>,
    conf: &Conf,
) -> Vec<(HistoryBlock, Ground)> {
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    let mut found: BTreeMap<u64, (HistoryBlock, Ground)> = BTreeMap::new();
    for entry in &device.entries {
        let gone = matches!(entry.action, Action::FreeRequested | Action::FreeCompleted);
        let first = (gone || entry.action == Action::Alloc) && seen.insert(entry.address);
        if first && gone {
            let block = HistoryBlock {
                address: entry.address,
                size: rounding::block_size(conf, entry.size),
                requested: entry.size,
                pending: entry.action == Action::FreeCompleted,
                stack: StackId(0),
            };
            found.insert(entry.address, (block, freed_by(entry, false)));
        }
    }
    for segment in &device.segments {
        for block in &segment.blocks {
            if !seen.contains(&block.address) {
                found.insert(block.address, (*block, segment.ground));
            }
        }
    }
    // Freed blocks have only their requested bytes: the rounded size is limited by the next block and the segment.
    let mut next = u64::MAX;
    let mut blocks: Vec<(HistoryBlock, Ground)> = Vec::with_capacity(found.len());
    for (address, (mut block, mut ground)) in found.into_iter().rev() {
        let mut end = next;
        if let Some((segment, of)) = segments.at(address) {
            end = end.min(reach(segments, segment, of.stream, end));
            ground = of;
        }
        block.size = block.size.min(end - address);
        block.requested = block.requested.min(block.size);
        next = address;
        blocks.push((block, ground));
    }
    blocks.reverse();
    blocks
}

/// The end of the adjacent expandable ranges of this stream, searched up to `until`.
pub(super) fn reach(segments: &Spans<Ground>, from: Range<u64>, stream: u64, until: u64) -> u64 {
    let mut end = from.end;
    while let Some((next, ground)) = segments.at(end).filter(|_| end < until) {
        // Only mapped ranges grow together.
        if !ground.expandable || ground.stream != stream {
            break;
        }
        end = next.end;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::super::history::HistorySegment;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn entry(action: Action, address: u64, size: u64) -> HistoryEntry {
        HistoryEntry { action, address, size, stream: 7, pool: 0, time_ns: 0, stack: StackId(0) }
    }

    fn block(at: u64, size: u64, requested: u64, pending: bool) -> HistoryBlock {
        HistoryBlock { address: 10 * MIB + at, size, requested, pending, stack: StackId(1) }
    }

    fn segment(mib: u64, pool: u16, blocks: Vec<HistoryBlock>) -> HistorySegment {
        let ground = Ground { stream: 7, pool, ..Ground::default() };
        HistorySegment { address: mib * MIB, size: 2 * MIB, ground, blocks }
    }

    #[test]
    fn what_is_freed_or_left_without_an_allocation_was_there_before() {
        let device = HistoryDevice {
            ordinal: 0,
            entries: vec![
                entry(Action::FreeCompleted, 10 * MIB, 1000),
                entry(Action::FreeRequested, 10 * MIB + 1024, 700),
                entry(Action::FreeCompleted, 10 * MIB + 1024, 700),
                entry(Action::Alloc, 10 * MIB, 600),
                entry(Action::SegmentFree, 20 * MIB, 2 * MIB),
                entry(Action::SegmentAlloc, 20 * MIB, 2 * MIB),
                entry(Action::Alloc, 20 * MIB, 5),
                entry(Action::SegmentUnmap, 60 * MIB, 20 * MIB),
            ],
            segments: vec![
                segment(10, 1, vec![block(0, 1024, 600, false), block(MIB, 4096, 4000, true)]),
                segment(20, 0, Vec::new()),
            ],
        };
        let before = segments(&device);
        let ranges: Vec<(u64, u64, bool)> = before
            .iter()
            .map(|(range, ground)| (range.start / MIB, range.end / MIB, ground.expandable))
            .collect();
        assert_eq!(ranges, [(10, 12, false), (20, 22, false), (60, 80, true)]);
        let blocks: Vec<(u64, u64, u64, bool, u16)> = blocks(&device, &before, &Conf::default())
            .iter()
            .map(|(block, ground)| {
                let at = block.address - 10 * MIB;
                (at, block.size, block.requested, block.pending, ground.pool)
            })
            .collect();
        assert_eq!(
            blocks,
            [(0, 1024, 1000, true, 1), (1024, 1024, 700, false, 1), (MIB, 4096, 4000, true, 1)]
        );
    }
}
