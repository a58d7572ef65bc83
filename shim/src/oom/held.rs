//! Who holds a device's memory: live bytes by stack. One lock at a time is held, briefly; the driver is
//! not called; the size of the result is bounded.

use super::holes::{Holes, Piece, holes};
use crate::model::ledger::Entry;
use crate::oom::sources::Sources;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::fallible_map::Map;
use vramtrace_format::{DeviceId, Kind, Space, StackId, physical, sampling};

/// With more blocks than this, blocks are not examined one by one.
const BLOCKS_MOST: usize = 4 << 20;
/// Stacks of the driver's allocations that are kept, largest first: a library may be behind each.
pub const STACKS_MOST: usize = 64;
/// And those of a framework's blocks.
pub const OF_BLOCKS_MOST: usize = 64;

/// The live allocations of the device.
#[derive(Default)]
pub struct Live {
    blocks: Vec<(u64, u64)>,
    /// Parts of reservations without memory, by address: start and end.
    unbacked: Vec<(u64, u64)>,
    /// Unmapped memory of the device that may be mapped again, by address: start and bytes.
    asleep: Vec<(u64, u64)>,
    /// Bytes of blocks without memory.
    paused: u64,
    /// There are more blocks than are examined.
    too_many: bool,
    by_stack: Map<StackId, (u64, u64)>,
    others: Vec<Other>,
}

/// A driver allocation.
struct Other {
    key: u64,
    space: Space,
    size: u64,
    physical: u64,
    stack: StackId,
    /// Whether a framework's blocks lie in it.
    held: bool,
}

/// What one stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub stack: StackId,
    /// Whether these are a framework's blocks, not driver allocations.
    pub of_framework: bool,
    pub bytes: u64,
    pub count: u64,
}

/// The figures of one moment.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Largest first: blocks in place of the allocations that they lie in.
    pub rows: Vec<Row>,
    /// `None`: no blocks are followed.
    pub holes: Option<Holes>,
    pub paused: Paused,
    /// A framework's blocks lie in memory that is mapped, or that other processes share: if expandable segments are
    /// not in force, they cannot be.
    pub fixed_segments: bool,
}

/// A framework's memory that is unmapped now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// Bytes of blocks.
    pub blocks: u64,
    /// Bytes of the segments that they lie in.
    pub segments: u64,
}

pub fn look(p: Sources, device: DeviceId) -> Live {
    let mut live = Live::default();
    let mut owners: Map<u64, StackId> = Map::default();
    {
        let vmm = p.vmm.lock();
        live.unbacked = vmm.unbacked();
        let asleep = vmm.asleep().filter(|piece| piece.owner.device == device);
        for piece in asleep {
            let _ = live.asleep.try_push((piece.address, piece.size));
        }
        for mapping in vmm.mappings() {
            if let Some(woken) = mapping.woken {
                let _ = owners.get_or_insert(mapping.object, woken.owner.stack);
            }
        }
    }
    p.ledger.visit(device, |entry| match entry.space {
        Space::Block => {
            let paused = overlap(&live.unbacked, entry.key, entry.size);
            live.paused = live.paused.saturating_add(paused);
            if let Ok((bytes, count)) = live.by_stack.get_or_insert(entry.stack, (0, 0)) {
                let weight = sampling::weight(entry.size, entry.rate());
                *bytes = bytes.saturating_add(sampling::weigh(entry.size - paused, weight));
                *count += sampling::weigh(1, weight);
            }
            live.too_many |= live.blocks.len() >= BLOCKS_MOST
                || live.blocks.try_push((entry.key, entry.size)).is_err();
        }
        Space::Host => {}
        _ if entry.kind == Kind::Imported => {}
        // An entry without room in the list is in no part of the sum.
        _ => drop(live.others.try_push(other(entry, &owners))),
    });
    live
}

/// Bytes of `[address, address + size)` in these ranges, which are sorted and apart.
pub fn overlap(ranges: &[(u64, u64)], address: u64, size: u64) -> u64 {
    let end = address.saturating_add(size);
    let first = ranges.partition_point(|(_, to)| *to <= address);
    let touching = ranges[first..].iter().take_while(|(from, _)| *from < end);
    let part = |(from, to): &(u64, u64)| (*to).min(end).saturating_sub((*from).max(address));
    touching.map(part).sum()
}

/// `owners`: the original owners of objects that were mapped in place of unmapped ones.
fn other(entry: &Entry, owners: &Map<u64, StackId>) -> Other {
    let &Entry { key, space, size, stack, .. } = entry;
    let owner = if space == Space::Vmm { owners.get(&key) } else { None };
    let stack = owner.copied().unwrap_or(stack);
    let physical = physical::share(entry.kind, size);
    Other { key, space, size, physical, stack, held: false }
}

impl Live {
    /// The stacks of the driver's allocations, largest first.
    pub fn stacks(&self) -> Vec<StackId> {
        let mut rows = self.rows_of_the_driver();
        largest(&mut rows, STACKS_MOST);
        list_of(rows.len(), rows.iter().map(|row| row.stack)).unwrap_or_default()
    }

    /// Driver allocations without blocks, by stack. Without host memory for it a row is left out.
    fn rows_of_the_driver(&self) -> Vec<Row> {
        let mut sums: Map<StackId, (u64, u64)> = Map::default();
        for other in self.others.iter().filter(|other| !other.held) {
            if let Ok((bytes, count)) = sums.get_or_insert(other.stack, (0, 0)) {
                (*bytes, *count) = (bytes.saturating_add(other.physical), *count + 1);
            }
        }
        rows(&sums, false)
    }

    /// Sums by stack. `of_cache`: whether allocations of a stack are the framework's, even without
    /// blocks in them. `most`: stacks of blocks that are kept.
    pub fn add_up(mut self, p: Sources, of_cache: impl Fn(StackId) -> bool, most: usize) -> Held {
        let paused = self.paused();
        // Between samples there are other blocks.
        let holes = self.find_holes(p, of_cache).filter(|_| !p.config.samples_blocks());
        let is_fixed = |other: &Other| {
            let range = other.key..other.key.saturating_add(other.size);
            other.held && (other.space == Space::Vmm || p.exports.any_in(range))
        };
        let fixed_segments = paused.segments > 0 || self.others.iter().any(is_fixed);
        let mut rows = rows(&self.by_stack, true);
        largest(&mut rows, most);
        let mut of_driver = self.rows_of_the_driver();
        largest(&mut of_driver, STACKS_MOST);
        for row in of_driver {
            let _ = rows.try_push(row);
        }
        largest(&mut rows, most + STACKS_MOST);
        rows.retain(|row| row.bytes > 0);
        Held { rows, holes, paused, fixed_segments }
    }

    fn paused(&mut self) -> Paused {
        self.blocks.sort_unstable();
        let blocks = &self.blocks;
        let holds_blocks = |&&(start, size): &&(u64, u64)| {
            let end = start.saturating_add(size);
            let next = blocks.partition_point(|(address, _)| *address < end);
            let last = next.checked_sub(1).map(|last| blocks[last]);
            last.is_some_and(|(address, size)| address.saturating_add(size) > start)
        };
        let segments = self.asleep.iter().filter(holds_blocks).map(|(_, size)| size).sum();
        Paused { blocks: self.paused, segments }
    }

    /// Marks allocations that hold blocks, and finds the free space between these. Also `None` without
    /// host memory.
    fn find_holes(&mut self, p: Sources, of_cache: impl Fn(StackId) -> bool) -> Option<Holes> {
        if self.blocks.is_empty() || self.too_many {
            return None;
        }
        let mut pieces = Vec::new();
        let mut objects = Map::default();
        for (number, other) in self.others.iter().enumerate() {
            match other.space {
                Space::Device => pieces.try_push(Piece {
                    range: other.key..other.key.saturating_add(other.size),
                    mapped: false,
                    empty: of_cache(other.stack),
                    number,
                }),
                Space::Vmm => objects.insert(other.key, number).map(|_| ()),
                _ => Ok(()),
            }
            .ok()?;
        }
        if !objects.is_empty() {
            let vmm = p.vmm.lock();
            for mapping in vmm.mappings() {
                let Some(&number) = objects.get(&mapping.object) else { continue };
                let range = mapping.address..mapping.address.saturating_add(mapping.size);
                let empty = of_cache(self.others[number].stack);
                pieces.try_push(Piece { range, mapped: true, empty, number }).ok()?;
            }
        }
        let others = &mut self.others;
        let blocks = std::mem::take(&mut self.blocks);
        Some(holes(pieces, blocks, |number| others[number].held = true))
    }
}

fn rows(sums: &Map<StackId, (u64, u64)>, of_framework: bool) -> Vec<Row> {
    let row =
        |(&stack, &(bytes, count)): (_, &(u64, u64))| Row { stack, of_framework, bytes, count };
    list_of(sums.len(), sums.iter().map(row)).unwrap_or_default()
}

fn largest(rows: &mut Vec<Row>, most: usize) {
    rows.sort_unstable_by_key(|row| (std::cmp::Reverse(row.bytes), row.stack.0, row.of_framework));
    rows.truncate(most);
    rows.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_block_without_memory() {
        let unbacked = [(10, 20), (30, 40)];
        assert_eq!(overlap(&unbacked, 0, 10), 0);
        assert_eq!(overlap(&unbacked, 15, 20), 5 + 5);
        assert_eq!(overlap(&unbacked, 5, 100), 20);
        assert_eq!(overlap(&unbacked, 40, u64::MAX), 0);
        assert_eq!(overlap(&[], 0, 10), 0);
    }

    #[test]
    fn what_is_asleep_counts_where_blocks_lie_in_it() {
        let mut live = Live {
            blocks: vec![(100, 10), (5, 10)],
            asleep: vec![(0, 50), (50, 50), (105, 5)],
            paused: 15,
            ..Live::default()
        };
        assert_eq!(live.paused(), Paused { blocks: 15, segments: 50 + 5 });
    }
}
