//! Two sums that threads change at every call and that are read seldom. Each thread adds to its own
//! cell, so that threads do not contend for a cache line.
//!
//! The first threads of a process each have a cell to themselves and change it by a load and a
//! store; the later ones take the cells of threads that have ended ([`crate::runtime::thread_numbers`]), or
//! share some cells, by atomic additions.

use crate::runtime::thread_numbers::{OWN, number};
use crate::runtime::zero_pages::{ZeroPages, Zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicI64, AtomicPtr, AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

const SHARED: usize = 16;
/// A thread that added nothing in so many divisions of the room gets none. Not one: threads that add
/// all the time may not come to it between two divisions, and would take each other's room in turn.
const ACTIVE: u8 = 16;
const CELLS: usize = OWN + SHARED;

/// Two cache lines, since the processor fetches lines in pairs.
#[repr(C, align(128))]
struct Cell {
    sum: AtomicI64,
    second: AtomicI64,
    /// While its first sum is below this, the thread need not read the other cells.
    limit: AtomicI64,
    /// [`ACTIVE`] since a thread added something, less the divisions of the room since then.
    recent: AtomicU8,
}

struct Cells([Cell; CELLS]);

// SAFETY: zero bytes are sums of 0.
unsafe impl Zeroed for Cells {}

/// All zero bytes are sums of 0 that have no cells yet.
#[derive(Default)]
pub struct ShardedCounter {
    /// Null: closed, or not made yet.
    open: AtomicPtr<Cells>,
    made: ZeroPages<Cells>,
    /// How often the cells were summed up.
    #[cfg(test)]
    pub readings: std::sync::atomic::AtomicU32,
}

impl ShardedCounter {
    #[inline]
    fn cells(&self) -> Option<&[Cell; CELLS]> {
        // SAFETY: null, or cells that stay.
        unsafe { self.open.load(Acquire).as_ref() }.map(|cells| &cells.0)
    }

    #[cold]
    fn make(&self) -> Option<&[Cell; CELLS]> {
        let made = self.made.get_or_make()?;
        self.open.store((&raw const *made).cast_mut(), Release);
        Some(&made.0)
    }

    /// Whether `add` adds to the cells.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.open.load(Relaxed).is_null()
    }

    /// From here on `add` adds nothing, until `add_within` opens the cells again. The sums stay; a thread
    /// that is in `add` now may still change them.
    pub fn close(&self) {
        self.open.store(null_mut(), Release);
    }

    /// Adds to both sums in this thread's cell. False: there are no open cells, nothing was added.
    #[inline(always)]
    pub fn add(&self, by: i64, second: i64) -> bool {
        self.cells().map(|cells| add(cells, by, second)).is_some()
    }

    /// As `add`, and opens the cells. `Some(true)`: this thread's share is
    /// exhausted, see [`ShardedCounter::share`]. `None`: the kernel gave no pages, nothing was added.
    #[inline(always)]
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
        let Some(cells) = self.made.get() else { return (0, 0) };
        #[cfg(test)]
        self.readings.fetch_add(1, Relaxed);
        cells.0.iter().fold((0, 0), |(sum, second), cell| {
            let add = |sum: i64, more: &AtomicI64| sum.wrapping_add(more.load(Relaxed));
            (add(sum, &cell.sum), add(second, &cell.second))
        })
    }

    /// Divides `room`, the bytes by which the first sum may still grow, between the threads that have
    /// added something lately. While each stays within its limit, the sum has grown by
    /// no more than `room`. The others, which may have ended, get none. One caller at a time.
    ///
    /// A thread that adds at this very moment may use its old share once more.
    pub fn share(&self, room: u64) {
        let Some(cells) = self.cells() else { return };
        let mut active = [false; CELLS];
        for (cell, active) in cells.iter().zip(&mut active) {
            let recent = cell.recent.load(Relaxed);
            *active = recent > 0;
            if *active {
                cell.recent.store(recent - 1, Relaxed);
            }
        }
        let count = active.iter().filter(|active| **active).count().max(1);
        let share = i64::try_from(room).unwrap_or(i64::MAX) / count as i64;
        for (cell, active) in cells.iter().zip(active) {
            let sum = cell.sum.load(Relaxed);
            cell.limit.store(if active { sum.saturating_add(share) } else { sum }, Relaxed);
        }
    }

    /// Cells that threads have to themselves and that were added to, and those that threads share.
    #[cfg(test)]
    fn cells_in_use(&self) -> (usize, usize) {
        let used = |cell: &&Cell| cell.recent.load(Relaxed) > 0;
        let (own, shared) = self.cells().unwrap().split_at(OWN);
        (own.iter().filter(used).count(), shared.iter().filter(used).count())
    }
}

/// This thread's cell and its first sum after it.
#[inline(always)]
fn add(cells: &[Cell; CELLS], by: i64, second: i64) -> (&Cell, i64) {
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
    if cell.recent.load(Relaxed) != ACTIVE {
        cell.recent.store(ACTIVE, Relaxed);
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

    #[test]
    fn threads_that_come_and_go_do_not_share_cells() {
        // Other tests of this process may have more threads than there are own cells for a while.
        for round in 0.. {
            let striped = ShardedCounter::default();
            for _ in 0..4 * CELLS {
                std::thread::scope(|scope| {
                    scope.spawn(|| assert_eq!(striped.add_within(1, 1), Some(true)));
                });
            }
            assert_eq!(striped.sums(), (4 * CELLS as i64, 4 * CELLS as i64));
            if striped.cells_in_use().1 == 0 {
                break;
            }
            assert!(round < 100, "threads that have ended keep their cells");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    #[test]
    fn threads_that_have_ended_get_no_room() {
        let striped = ShardedCounter::default();
        std::thread::scope(|scope| {
            for _ in 0..9 {
                scope.spawn(|| assert_eq!(striped.add_within(1, 0), Some(true)));
            }
        });
        assert_eq!(striped.add_within(1, 0), Some(true));
        for _ in 0..=ACTIVE {
            striped.share(100);
            assert!(striped.add(0, 0));
        }
        striped.share(100);
        assert_eq!(striped.add_within(100, 0), Some(false));
        assert_eq!(striped.add_within(1, 0), Some(true));
    }

    #[test]
    fn closed_cells_keep_their_sums_and_open_again() {
        let striped = ShardedCounter::default();
        assert_eq!(striped.add_within(5, 1), Some(true));
        striped.close();
        assert!(!striped.is_open() && !striped.add(1, 1));
        assert_eq!(striped.sums(), (5, 1));
        assert_eq!(striped.add_within(2, 1), Some(true));
        assert!(striped.is_open());
        assert_eq!(striped.sums(), (7, 2));
    }
}
