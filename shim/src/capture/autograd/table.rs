//! The stacks of the newest nodes, by the thread that made a node and its number there. Written and read without locks.

use crate::runtime::hash_table::spread;
use crate::runtime::zero_pages::{ZeroPages, Zeroed};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use vramtrace_format::StackId;

/// Nodes that are kept. A later node takes the place of the one whose number is this much lower.
pub const NODES: usize = 1 << 16;

/// A place in the table.
struct Place {
    /// [`key`] of the node; 0: none; [`WRITING`]: a thread writes the place.
    key: AtomicU64,
    stack: AtomicU32,
}

// SAFETY: numbers; zeros stand for no node.
unsafe impl Zeroed for Place {}

const WRITING: u64 = u64::MAX;
/// Bits of a node's number in a key; the others hold the thread.
const NUMBER_BITS: u32 = 44;

#[derive(Default)]
pub struct NodeTable(ZeroPages<[Place; NODES]>);

/// One number of both. `None`: out of range, such as the number of `AccumulateGrad`.
#[inline]
fn key(thread: u64, number: u64) -> Option<u64> {
    let fits = thread != 0 && thread < (1 << (64 - NUMBER_BITS)) - 1 && number >> NUMBER_BITS == 0;
    fits.then_some(thread << NUMBER_BITS | number)
}

/// Consecutive nodes of a thread lie one behind the other.
#[inline]
fn index(thread: u64, number: u64) -> usize {
    ((spread(thread) >> 40).wrapping_add(number)) as usize % NODES
}

impl NodeTable {
    /// A thread made a node of this number with this stack.
    #[inline]
    pub fn insert(&self, thread: u64, number: u64, stack: StackId) {
        let Some(key) = key(thread, number) else { return };
        let Some(places) = self.0.get_or_make() else { return };
        let place = &places[index(thread, number)];
        let known = place.key.load(Ordering::Relaxed);
        let taken = || {
            let order = Ordering::Relaxed;
            place.key.compare_exchange(known, WRITING, order, order).is_ok()
        };
        // Of two threads that write one place at a time, one does not: its node is then not known.
        if known == WRITING || !taken() {
            return;
        }
        fence(Ordering::Release);
        place.stack.store(stack.0, Ordering::Relaxed);
        place.key.store(key, Ordering::Release);
    }

    /// The stack of a thread's node. `None`: it was not inserted, or a later one took its place.
    pub fn get(&self, thread: u64, number: u64) -> Option<StackId> {
        let key = key(thread, number)?;
        let place = &self.0.get()?[index(thread, number)];
        if place.key.load(Ordering::Acquire) != key {
            return None;
        }
        let stack = place.stack.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // A key is written once, so the place did not change in between.
        (place.key.load(Ordering::Relaxed) == key).then_some(StackId(stack))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_newest_nodes_are_known_and_older_ones_are_not() {
        let table = NodeTable::default();
        assert_eq!(table.get(1, 0), None);
        let all = NODES as u64 + 10;
        for number in 0..all {
            table.insert(1, number, StackId(number as u32 + 1));
        }
        for number in 0..10 {
            assert_eq!(table.get(1, number), None, "{number} was overwritten");
        }
        for number in 10..all {
            assert_eq!(table.get(1, number), Some(StackId(number as u32 + 1)));
        }
        assert_eq!(table.get(1, all), None);
        assert_eq!(table.get(2, 20), None, "another thread's node of this number");
    }

    #[test]
    fn numbers_that_no_key_can_hold_are_not_known() {
        let table = NodeTable::default();
        for (thread, number) in
            [(1, u64::MAX), (1, 1 << 44), (0, 5), ((1 << 20) - 1, 5), (1 << 20, 5)]
        {
            table.insert(thread, number, StackId(7));
            assert_eq!(table.get(thread, number), None, "{thread} {number}");
        }
        let (thread, number) = ((1 << 20) - 2, (1 << 44) - 1);
        table.insert(thread, number, StackId(7));
        assert_eq!(table.get(thread, number), Some(StackId(7)));
    }

    /// Two threads whose nodes share all places, and a reader: an answer is always of its own key.
    #[test]
    fn threads_that_write_the_same_places_mix_nothing_up() {
        let first = 1;
        let at = index(first, 0);
        let offset = |thread: u64| (at + NODES - index(thread, 0)) as u64 % NODES as u64;
        let table = NodeTable::default();
        let turns = if cfg!(miri) { 50 } else { 100_000 };
        let stack = |thread: u64, number: u64| StackId((thread << 24 | number & 0xff_ffff) as u32);
        std::thread::scope(|scope| {
            for thread in [first, 2, 3] {
                let (table, from) = (&table, offset(thread));
                scope.spawn(move || {
                    for turn in 0..turns {
                        let number = from + turn / 4 * NODES as u64 + turn % 4;
                        table.insert(thread, number, stack(thread, number));
                        for asked in [first, 2, 3] {
                            let number = offset(asked) + turn / 4 * NODES as u64 + turn % 4;
                            let found = table.get(asked, number);
                            assert!(found.is_none_or(|found| found == stack(asked, number)));
                        }
                    }
                });
            }
        });
    }
}
