//! Who holds a device's memory: live bytes by stack, and the free space between a framework's blocks. One lock at a time is
//! held, briefly; the driver is not called; the size of the result is bounded.

use super::names::{Library, Names};
use crate::hooks::process::state::Process;
use crate::model::ledger::Entry;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::fallible_map::Map;
use std::cmp::Reverse;
use std::ops::Range;
use vramtrace_format::{DeviceId, Kind, Space, StackId, physical, sampling};

/// With more blocks than this, blocks are not examined one by one.
const BLOCKS_MOST: usize = 4 << 20;
/// Stacks of the driver's allocations that are kept, largest first: a library may be behind each.
const STACKS_MOST: usize = 64;

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
    /// Bytes of a framework's blocks whose memory is unmapped now, and all unmapped memory of the device.
    pub paused: u64,
    pub asleep: u64,
    /// A framework's blocks lie in memory that is mapped, or that other processes share: if expandable segments are
    /// not in force, they cannot be.
    pub fixed_segments: bool,
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

impl Other {
    fn range(&self) -> Range<u64> {
        self.key..self.key.saturating_add(self.size)
    }
}

/// Looks at all live allocations of the device. `most`: stacks of a framework's blocks that are kept.
pub fn look(p: &'static Process, device: DeviceId, most: usize) -> Held {
    // Who owns objects that were mapped in place of unmapped ones.
    let mut owners: Map<u64, StackId> = Map::default();
    let mut mapped: Vec<(u64, Range<u64>)> = Vec::new();
    let (unbacked, asleep) = {
        let vmm = p.vmm.lock();
        for mapping in vmm.space.mappings() {
            let range = mapping.address..mapping.address.saturating_add(mapping.size);
            let _ = mapped.try_push((mapping.object, range));
            if let Some(woken) = mapping.woken {
                let _ = owners.get_or_insert(mapping.object, woken.owner.stack);
            }
        }
        (vmm.space.unbacked(), vmm.space.asleep_on(device))
    };
    let (mut blocks, mut too_many, mut paused) = (Vec::new(), false, 0u64);
    let mut by_stack = Map::default();
    let mut others: Vec<Other> = Vec::new();
    p.ledger.visit(device, |entry| match entry.space {
        Space::Block => {
            let unmapped = overlap(&unbacked, entry.key, entry.size);
            paused = paused.saturating_add(unmapped);
            let weight = sampling::weight(entry.size, entry.rate());
            let bytes = sampling::weigh(entry.size - unmapped, weight);
            add(&mut by_stack, entry.stack, bytes, sampling::weigh(1, weight));
            too_many |=
                blocks.len() >= BLOCKS_MOST || blocks.try_push((entry.key, entry.size)).is_err();
        }
        Space::Host => {}
        _ if entry.kind == Kind::Imported => {}
        // An entry without room in the list is in no part of the sum.
        _ => drop(others.try_push(other(entry, &owners))),
    });
    let holes = match too_many || blocks.is_empty() {
        true => None,
        false => pieces(&others, mapped)
            .map(|pieces| holes(pieces, blocks, |number| others[number].held = true)),
    };
    let is_fixed = |other: &Other| {
        other.held && (other.space == Space::Vmm || p.exports.any_in(other.range()))
    };
    let mut of_driver = Map::default();
    for other in others.iter().filter(|other| !other.held) {
        add(&mut of_driver, other.stack, other.physical, 1);
    }
    let mut all = rows(&by_stack, true, most);
    for row in rows(&of_driver, false, STACKS_MOST) {
        let _ = all.try_push(row);
    }
    all.sort_unstable_by_key(order);
    // Between samples there are other blocks.
    let holes = holes.filter(|_| !p.config.samples_blocks());
    let fixed_segments = asleep > 0 || others.iter().any(is_fixed);
    Held { rows: all, holes, paused, asleep, fixed_segments }
}

/// Bytes of `[address, address + size)` in these ranges, which are sorted and apart.
pub fn overlap(ranges: &[(u64, u64)], address: u64, size: u64) -> u64 {
    let end = address.saturating_add(size);
    let first = ranges.partition_point(|(_, to)| *to <= address);
    let touching = ranges[first..].iter().take_while(|(from, _)| *from < end);
    let part = |(from, to): &(u64, u64)| (*to).min(end).saturating_sub((*from).max(address));
    touching.map(part).sum()
}

fn other(entry: &Entry, owners: &Map<u64, StackId>) -> Other {
    let &Entry { key, space, size, stack, .. } = entry;
    let owner = if space == Space::Vmm { owners.get(&key) } else { None };
    let stack = owner.copied().unwrap_or(stack);
    let physical = physical::share(entry.kind, size);
    Other { key, space, size, physical, stack, held: false }
}

/// Without host memory for it a stack is left out.
fn add(sums: &mut Map<StackId, (u64, u64)>, stack: StackId, bytes: u64, count: u64) {
    if let Ok(sum) = sums.get_or_insert(stack, (0, 0)) {
        *sum = (sum.0.saturating_add(bytes), sum.1 + count);
    }
}

fn rows(sums: &Map<StackId, (u64, u64)>, of_framework: bool, most: usize) -> Vec<Row> {
    let row =
        |(&stack, &(bytes, count)): (_, &(u64, u64))| Row { stack, of_framework, bytes, count };
    let held = sums.iter().map(row).filter(|row| row.bytes > 0);
    let mut rows = list_of(sums.len(), held).unwrap_or_default();
    rows.sort_unstable_by_key(order);
    rows.truncate(most);
    rows.shrink_to_fit();
    rows
}

fn order(row: &Row) -> (Reverse<u64>, u32, bool) {
    (Reverse(row.bytes), row.stack.0, row.of_framework)
}

/// A piece of device memory with addresses: an allocation, or a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    range: Range<u64>,
    /// Adjacent mapped pieces count as one.
    mapped: bool,
    /// The number of its allocation.
    number: usize,
}

/// The allocations with addresses, and the mappings of the others. `None`: without host memory for them.
fn pieces(others: &[Other], mapped: Vec<(u64, Range<u64>)>) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut objects = Map::default();
    for (number, other) in others.iter().enumerate() {
        match other.space {
            Space::Device => {
                pieces.try_push(Piece { range: other.range(), mapped: false, number }).ok()?;
            }
            Space::Vmm => drop(objects.insert(other.key, number).ok()?),
            _ => {}
        }
    }
    for (object, range) in mapped {
        if let Some(&number) = objects.get(&object) {
            pieces.try_push(Piece { range, mapped: true, number }).ok()?;
        }
    }
    Some(pieces)
}

/// The free bytes in pieces that contain blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    pub free: u64,
    pub largest: u64,
}

impl Holes {
    fn with(self, (_, bytes): (u64, u64)) -> Holes {
        Holes { free: self.free.saturating_add(bytes), largest: self.largest.max(bytes) }
    }
}

/// `blocks`: address and size of each. The numbers of the pieces that hold some go to `held`.
fn holes(
    mut pieces: Vec<Piece>,
    mut blocks: Vec<(u64, u64)>,
    mut held: impl FnMut(usize),
) -> Holes {
    pieces.sort_unstable_by_key(|piece| piece.range.start);
    blocks.sort_unstable();
    let mut all = Holes::default();
    let mut blocks = blocks.into_iter().peekable();
    for run in pieces.chunk_by(|a, b| a.mapped && b.mapped && a.range.end == b.range.start) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let (start, end) = (first.range.start, last.range.end);
        while blocks.next_if(|(address, _)| *address < start).is_some() {}
        if blocks.peek().is_some_and(|(address, _)| *address < end) {
            let inside = std::iter::from_fn(|| blocks.next_if(|(address, _)| *address < end));
            all = vramtrace_format::holes::holes(start..end, inside).fold(all, Holes::with);
            run.iter().for_each(|piece| held(piece.number));
        }
    }
    all
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

    fn piece(range: Range<u64>, mapped: bool, number: usize) -> Piece {
        Piece { range, mapped, number }
    }

    fn found(pieces: &[Piece], blocks: &[(u64, u64)]) -> (Holes, Vec<usize>) {
        let mut numbers = Vec::new();
        let holes = holes(pieces.to_vec(), blocks.to_vec(), |number| numbers.push(number));
        (holes, numbers)
    }

    #[test]
    fn before_between_and_behind_the_blocks() {
        let pieces = [piece(1000..2000, false, 7), piece(0..500, false, 8)];
        let (holes, numbers) = found(&pieces, &[(1700, 100), (1100, 200)]);
        assert_eq!(holes, Holes { free: 100 + 400 + 200, largest: 400 });
        assert_eq!(numbers, [7], "what holds no block is not the framework's");
    }

    #[test]
    fn allocations_side_by_side_are_apart_and_mappings_are_one() {
        let blocks = [(0, 100), (1900, 100)];
        let apart = [piece(0..1000, false, 1), piece(1000..2000, false, 2)];
        assert_eq!(found(&apart, &blocks).0, Holes { free: 1800, largest: 900 });
        let mapped = [piece(0..1000, true, 1), piece(1000..2000, true, 2)];
        let (holes, numbers) = found(&mapped, &blocks);
        assert_eq!(holes, Holes { free: 1800, largest: 1800 });
        assert_eq!(numbers, [1, 2]);
        let gap = [piece(0..1000, true, 1), piece(1500..2000, true, 2)];
        assert_eq!(found(&gap, &blocks).0, Holes { free: 1300, largest: 900 });
    }

    #[test]
    fn blocks_outside_and_over_each_other_do_no_harm() {
        let pieces = [piece(1000..2000, false, 1)];
        let blocks = [(0, 10), (1000, 600), (1100, 100), (5000, 10), (u64::MAX, u64::MAX)];
        assert_eq!(found(&pieces, &blocks).0, Holes { free: 400, largest: 400 });
    }
}
