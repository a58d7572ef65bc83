//! Who holds a device's memory: live bytes by stack, and the largest free range between a framework's blocks. One lock at a
//! time is held, briefly; the driver is not called; the size of the result is bounded.

use super::names::{Library, Names};
use crate::hooks::process::state::Process;
use crate::model::ledger::Entry;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::fallible_map::Map;
use std::cmp::Reverse;
use std::ops::Range;
use vramtrace_format::holes::holes;
use vramtrace_format::{DeviceId, Kind, Space, StackId, physical, sampling};

/// With more blocks than this, blocks are not examined one by one.
const BLOCKS_MOST: usize = 4 << 20;
/// Stacks of the driver's allocations that are kept, largest first: a library may be behind each.
const STACKS_MOST: usize = 64;

/// Fewer allocations are no leak (`RISES` in `model/src/analysis/diagnosis/leaks/growth.rs`).
const MANY: u64 = 8;

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
    /// Largest first: blocks in place of the allocations that they lie in. Memory that is unmapped counts for nobody.
    pub rows: Vec<Row>,
    /// The largest free range in memory that holds blocks. `None`: not known.
    pub largest_hole: Option<u64>,
    /// All free ranges there, bytes. What else a cache keeps when it gives up is in private pools, which serve no other request.
    pub in_holes: u64,
    /// A framework's blocks lie in memory that is mapped, or that other processes share: if expandable segments are
    /// not in force, they cannot be.
    pub fixed_segments: bool,
    /// So many of the driver's allocations are kept that a line of them may leak.
    pub may_leak: bool,
}

impl Held {
    /// The rows with their libraries, except for free segments of PyTorch's cache, where its blocks are followed.
    pub fn named(&self, names: &mut Names) -> Vec<(Row, Option<Library>)> {
        let has_blocks = self.rows.iter().any(|row| row.of_framework);
        let named = self.rows.iter().filter_map(|row| {
            let library = names.library(row.stack, row.of_framework);
            let is_cache = library.as_ref().is_some_and(|library| library.is_torch_cache);
            let is_free = has_blocks && !row.of_framework && is_cache;
            (!is_free).then_some((*row, library))
        });
        list_of(self.rows.len(), named).unwrap_or_default()
    }
}

/// Keys with their bytes and pieces.
pub type Sums<K> = Vec<(K, Row)>;

/// Adds up what has the same key, largest first.
pub fn sums<K: PartialEq>(rows: impl Iterator<Item = (K, Row)>) -> Sums<K> {
    let mut sums: Sums<K> = Vec::new();
    for (key, row) in rows {
        match sums.iter_mut().find(|(known, _)| *known == key) {
            Some((_, sum)) => {
                sum.bytes = sum.bytes.saturating_add(row.bytes);
                sum.count += row.count;
            }
            None => drop(sums.try_push((key, row))),
        }
    }
    sums.sort_by_key(|(_, sum)| Reverse(sum.bytes));
    sums
}

/// Who memory counts for that was unmapped and mapped again.
pub struct Remapped {
    /// Who owns objects that were mapped in place of unmapped ones.
    owners: Map<u64, StackId>,
    /// Addresses without memory.
    unbacked: Vec<(u64, u64)>,
    /// Objects and where they are mapped.
    mapped: Vec<(u64, Range<u64>)>,
}

impl Remapped {
    pub fn of(p: &Process) -> Remapped {
        let vmm = p.vmm.lock();
        let (mut owners, mut mapped) = (Map::default(), Vec::new());
        for mapping in vmm.space.mappings() {
            let range = mapping.address..mapping.address.saturating_add(mapping.size);
            let _ = mapped.try_push((mapping.object, range));
            if let Some(woken) = mapping.woken {
                let _ = owners.get_or_insert(mapping.object, woken.owner.stack);
            }
        }
        Remapped { owners, unbacked: vmm.space.unbacked(), mapped }
    }

    /// Whose a live allocation or block is, its device memory, and how many it stands for. `None`: it has none.
    pub fn share(&self, entry: &Entry) -> Option<(StackId, u64, u64)> {
        let &Entry { key, space, size, stack, kind, .. } = entry;
        match space {
            Space::Block => {
                let weight = sampling::weight(size, entry.rate());
                let backed = size - overlap(&self.unbacked, key, size);
                Some((stack, sampling::weigh(backed, weight), sampling::weigh(1, weight)))
            }
            Space::Host => None,
            _ if kind == Kind::Imported => None,
            _ => {
                let owner = if space == Space::Vmm { self.owners.get(&key) } else { None };
                Some((owner.copied().unwrap_or(stack), physical::share(kind, size), 1))
            }
        }
    }
}

/// Live bytes and their pieces by stack, a framework's blocks apart.
#[derive(Default)]
pub struct ByStack(Map<(StackId, bool), (u64, u64)>);

impl ByStack {
    /// Without host memory for it a stack is left out.
    pub fn add(&mut self, stack: StackId, of_framework: bool, bytes: u64, count: u64) {
        if let Ok(sum) = self.0.get_or_insert((stack, of_framework), (0, 0)) {
            *sum = (sum.0.saturating_add(bytes), sum.1 + count);
        }
    }

    /// Those that hold something, largest first.
    pub fn rows(&self) -> Vec<Row> {
        let row = |(&(stack, of_framework), &(bytes, count)): (_, &(u64, u64))| Row {
            stack,
            of_framework,
            bytes,
            count,
        };
        let held = self.0.iter().map(row).filter(|row| row.bytes > 0);
        let mut rows = list_of(self.0.len(), held).unwrap_or_default();
        rows.sort_unstable_by_key(|row| (Reverse(row.bytes), row.stack.0, row.of_framework));
        rows
    }
}

/// A driver allocation.
struct Other {
    key: u64,
    space: Space,
    size: u64,
    physical: u64,
    stack: StackId,
}

/// Looks at all live allocations of the device. `most`: stacks of a framework's blocks that are kept.
pub fn look(p: &'static Process, device: DeviceId, most: usize) -> Held {
    let mut remapped = Remapped::of(p);
    let (mut blocks, mut too_many) = (Vec::new(), false);
    let mut sums = ByStack::default();
    let mut others: Vec<Other> = Vec::new();
    p.ledger.visit(device, |entry| {
        let Some((stack, bytes, count)) = remapped.share(entry) else { return };
        let &Entry { key, space, size, .. } = entry;
        if space == Space::Block {
            sums.add(stack, true, bytes, count);
            too_many |= blocks.len() >= BLOCKS_MOST || blocks.try_push((key, size)).is_err();
        } else {
            // An entry without room in the list is in no part of the sum.
            let _ = others.try_push(Other { key, space, size, physical: bytes, stack });
        }
    });
    if too_many {
        blocks.clear();
    }
    blocks.sort_unstable();
    // The largest free range and the sum of all, if there are blocks in this range.
    let hole = |range: Range<u64>| {
        let mut inside = inside(&blocks, range.clone()).peekable();
        inside.peek()?;
        let free = holes(range, inside).map(|(_, bytes)| bytes);
        Some(free.fold((0, 0), |(largest, sum), bytes| {
            (bytes.max(largest), u64::saturating_add(sum, bytes))
        }))
    };
    let (mut largest_hole, mut in_holes) = (None, 0u64);
    // Objects with blocks: mappings side by side are one piece.
    let mut of_blocks: Map<u64, ()> = Map::default();
    remapped.mapped.sort_unstable_by_key(|(_, range)| range.start);
    for run in remapped.mapped.chunk_by(|(_, a), (_, b)| a.end == b.start) {
        let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else { continue };
        let Some((largest, sum)) = hole(first.start..last.end) else { continue };
        (largest_hole, in_holes) = (largest_hole.max(Some(largest)), in_holes.saturating_add(sum));
        for (object, _) in run {
            let _ = of_blocks.insert(*object, ());
        }
    }
    let mut fixed_segments = !of_blocks.is_empty() || p.vmm.lock().space.asleep_on(device) > 0;
    for Other { key, space, size, physical, stack } in others {
        let range = key..key.saturating_add(size);
        let free = if space == Space::Device { hole(range.clone()) } else { None };
        if let Some((largest, sum)) = free {
            (largest_hole, in_holes) =
                (largest_hole.max(Some(largest)), in_holes.saturating_add(sum));
            fixed_segments |= p.exports.any_in(range);
        } else if space != Space::Vmm || !of_blocks.contains_key(&key) {
            sums.add(stack, false, physical, 1);
        }
    }
    let (mut rows, mut left) = (sums.rows(), [STACKS_MOST, most]);
    // Of all stacks: a line may have several.
    let kept = rows.iter().filter(|row| !row.of_framework).map(|row| row.count);
    let may_leak = kept.sum::<u64>() >= MANY;
    rows.retain(|row| {
        let left = &mut left[usize::from(row.of_framework)];
        let is_kept = *left > 0;
        *left = left.saturating_sub(1);
        is_kept
    });
    rows.shrink_to_fit();
    // Between samples there are other blocks.
    let largest_hole = largest_hole.filter(|_| !p.config.samples_blocks());
    Held { rows, largest_hole, in_holes, fixed_segments, may_leak }
}

/// The blocks that begin in this range, of those with these addresses and sizes, which are sorted.
fn inside(blocks: &[(u64, u64)], range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let (first, end) = (blocks.partition_point(|block| block.0 < range.start), range.end);
    blocks[first..].iter().copied().take_while(move |(address, _)| *address < end)
}

/// Bytes of `[address, address + size)` in these ranges, which are sorted and apart.
fn overlap(ranges: &[(u64, u64)], address: u64, size: u64) -> u64 {
    let end = address.saturating_add(size);
    let first = ranges.partition_point(|(_, to)| *to <= address);
    let touching = ranges[first..].iter().take_while(|(from, _)| *from < end);
    let part = |(from, to): &(u64, u64)| (*to).min(end).saturating_sub((*from).max(address));
    touching.map(part).sum()
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
    fn blocks_of_a_range_begin_in_it() {
        let blocks = [(900, 300), (1100, 200), (1700, 100), (u64::MAX, u64::MAX)];
        let inside = |range| inside(&blocks, range).collect::<Vec<_>>();
        assert_eq!(inside(1000..2000), [(1100, 200), (1700, 100)]);
        assert_eq!(inside(0..900), []);
    }
}
