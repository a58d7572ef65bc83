//! Two sums that threads change at every call and that are read seldom. Each thread adds to its own
//! cell, so that threads do not contend for a cache line.
//!
//! The first threads of a process each have a cell to themselves and change it by a load and a
//! store; the later ones share some cells, by atomic additions.

use crate::runtime::hash_table::pages;
use crate::runtime::tls::thread_block;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire};

const OWN: usize = 64;
const SHARED: usize = 16;
const CELLS: usize = OWN + SHARED;

thread_block! {
    /// This thread's number, from 1; 0 = none yet. A forked child continues its parent's numbers.
    fn own_number() -> *mut u32 = "vramtrace_stripe", 4, align 4
}

static THREADS: AtomicU32 = AtomicU32::new(0);

#[inline(always)]
fn number() -> usize {
    let address = own_number();
    // SAFETY: the word is this thread's own.
    unsafe {
        if *address == 0 {
            *address = next_number();
        }
        *address as usize - 1
    }
}

#[cold]
fn next_number() -> u32 {
    let more = |number: u32| Some(if number == u32::MAX { CELLS as u32 } else { number + 1 });
    THREADS.fetch_update(Relaxed, Relaxed, more).unwrap_or(0).saturating_add(1)
}

/// Two cache lines, since the processor fetches lines in pairs.
#[repr(C, align(128))]
struct Cell {
    sum: AtomicI64,
    second: AtomicI64,
    /// While its first sum is below this, the thread need not read the other cells.
    limit: AtomicI64,
    used: AtomicBool,
}

/// All zero bytes are sums of 0 that have no cells yet.
#[derive(Default)]
pub struct ShardedCounter(AtomicPtr<Cell>);

impl ShardedCounter {
    #[inline]
    fn cells(&self) -> Option<&[Cell]> {
        let cells = self.0.load(Acquire);
        // SAFETY: pages made by `make`, never given back; zero bytes are valid cells.
        (!cells.is_null()).then(|| unsafe { std::slice::from_raw_parts(cells, CELLS) })
    }

    #[cold]
    fn make(&self) -> Option<&[Cell]> {
        let fresh = pages(CELLS * size_of::<Cell>()).ok()?.cast();
        if self.0.compare_exchange(null_mut(), fresh, AcqRel, Acquire).is_err() {
            crate::runtime::hash_table::unmap(fresh.cast(), CELLS * size_of::<Cell>());
        }
        self.cells()
    }

    /// Adds to both sums in this thread's cell. False: it has no cells yet, nothing was added.
    #[inline]
    pub fn add(&self, by: i64, second: i64) -> bool {
        self.cells().map(|cells| add(cells, by, second)).is_some()
    }

    /// As `add`, and makes the cells when there are none. `Some(true)`: this thread's share is
    /// exhausted, see [`ShardedCounter::share`]. `None`: the kernel gave no pages, nothing was added.
    #[inline]
    pub fn add_within(&self, by: i64, second: i64) -> Option<bool> {
        let cells = match self.cells() {
            Some(cells) => cells,
            None => self.make()?,
        };
        let (cell, sum) = add(cells, by, second);
        Some(sum > cell.limit.load(Relaxed))
    }

    /// Both sums. What other threads add meanwhile may be in them or not.
    pub fn sums(&self) -> (i64, i64) {
        let Some(cells) = self.cells() else { return (0, 0) };
        cells.iter().fold((0, 0), |(sum, second), cell| {
            let add = |sum: i64, more: &AtomicI64| sum.wrapping_add(more.load(Relaxed));
            (add(sum, &cell.sum), add(second, &cell.second))
        })
    }

    /// Divides `room`, the bytes by which the first sum may still grow, between the threads that have
    /// added something. While each stays within its limit, the sum has grown by no more than `room`.
    /// One caller at a time.
    ///
    /// A thread that adds at this very moment may use its old share once more.
    pub fn share(&self, room: u64) {
        let Some(cells) = self.cells() else { return };
        let used = || cells.iter().filter(|cell| cell.used.load(Relaxed));
        let share = i64::try_from(room).unwrap_or(i64::MAX) / used().count().max(1) as i64;
        for cell in used() {
            cell.limit.store(cell.sum.load(Relaxed).saturating_add(share), Relaxed);
        }
    }
}

/// This thread's cell and its first sum after it.
#[inline]
fn add(cells: &[Cell], by: i64, second: i64) -> (&Cell, i64) {
    let number = number();
    let (cell, sum) = if number < OWN {
        let cell = &cells[number];
        let sum = cell.sum.load(Relaxed).wrapping_add(by);
        cell.sum.store(sum, Relaxed);
        cell.second.store(cell.second.load(Relaxed).wrapping_add(second), Relaxed);
        (cell, sum)
    } else {
        let cell = &cells[OWN + number % SHARED];
        cell.second.fetch_add(second, Relaxed);
        (cell, cell.sum.fetch_add(by, Relaxed).wrapping_add(by))
    };
    if !cell.used.load(Relaxed) {
        cell.used.store(true, Relaxed);
    }
    (cell, sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_with_more_threads_than_cells() {
        let striped = ShardedCounter::default();
        assert!(!striped.add(1, 1));
        assert_eq!(striped.sums(), (0, 0));
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..2 * CELLS {
                    scope.spawn(|| {
                        for _ in 0..1000 {
                            striped.add_within(5, 1).unwrap();
                            assert!(striped.add(-3, 0));
                        }
                    });
                }
            });
        }
        let calls = 3 * 2 * CELLS as i64 * 1000;
        assert_eq!(striped.sums(), (2 * calls, calls));
    }

    #[test]
    fn within_their_shares_threads_do_not_exceed_the_room() {
        let striped = ShardedCounter::default();
        assert_eq!(striped.add_within(10, 0), Some(true), "no share yet");
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(striped.add_within(1, 0), Some(true)));
        });
        striped.share(100);
        assert_eq!(striped.add_within(50, 0), Some(false));
        assert_eq!(striped.add_within(1, 0), Some(true));
        striped.add(-1, 0);
        striped.share(0);
        assert_eq!(striped.add_within(1, 0), Some(true));
        assert_eq!(striped.sums(), (62, 0));
    }
}
