//! The recorder's share of the time of the program's threads, and what follows from it for the rate of samples.
//!
//! The share is the time in hooks, by the calls that are timed, against the time between two timed calls of a thread. Above the
//! bound the rate doubles for each factor of 2; far below it halves.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Timed calls after which the share is judged.
const CALLS: u32 = 128;
/// A timed call that took longer was interrupted, or did work that is due once in a time: it does not stand for others, unless
/// there are many.
const LONGEST_NS: u64 = 10_000;
const MANY: u32 = CALLS / 8;
/// Work that took longer was interrupted.
const LONGEST_WORK_NS: u64 = 50_000;
/// The rate falls again below this part of the bound: its half would be far below, too.
const FAR_BELOW: u64 = 4;

pub(super) struct Overhead {
    /// In millionths.
    bound: u32,
    last: AtomicU32,
    calls: AtomicU32,
    /// Of these, how many took long.
    long: AtomicU32,
    spent_ns: AtomicU64,
    since_ns: AtomicU64,
}

impl Overhead {
    pub fn new(bound: u32) -> Overhead {
        Overhead {
            bound,
            last: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            long: AtomicU32::new(0),
            spent_ns: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
        }
    }

    /// The share that was judged last, and the bound, in millionths.
    pub fn figures(&self) -> (u32, u32) {
        (self.last.load(Relaxed), self.bound)
    }

    /// Adds work that is not part of a timed call, and is all of its kind.
    pub fn add_work(&self, took_ns: u64) {
        self.spent_ns.fetch_add(took_ns.min(LONGEST_WORK_NS), Relaxed);
    }

    /// Adds a timed call, one in `one_of` of its thread: its time, and that since the last timed one. `Some`: how often the
    /// rate is to double; below zero: to halve.
    pub fn add(&self, took_ns: u64, one_of: u64, since_ns: u64) -> Option<i32> {
        if took_ns > LONGEST_NS {
            self.long.fetch_add(1, Relaxed);
        } else {
            self.spent_ns.fetch_add(took_ns * one_of, Relaxed);
        }
        self.since_ns.fetch_add(since_ns, Relaxed);
        if self.calls.fetch_add(1, Relaxed) + 1 != CALLS {
            return None;
        }
        // Others may add meanwhile: an estimate.
        let long = self.long.swap(0, Relaxed);
        let of_long = if long < MANY { 1 } else { one_of };
        let spent_ns = self.spent_ns.swap(0, Relaxed) + u64::from(long) * LONGEST_NS * of_long;
        let since_ns = self.since_ns.swap(0, Relaxed);
        self.calls.store(0, Relaxed);
        Some(self.judge(spent_ns, since_ns))
    }

    fn judge(&self, spent_ns: u64, since_ns: u64) -> i32 {
        let share = u128::from(spent_ns) * 1_000_000 / u128::from(since_ns.max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX).min(1_000_000);
        self.last.store(share as u32, Relaxed);
        let bound = u64::from(self.bound).max(1);
        match share > bound {
            true => share.div_ceil(bound).next_power_of_two().ilog2() as i32,
            false => -i32::from(share * FAR_BELOW < bound),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_OF: u64 = 64;

    /// The result of the timed calls of one judgement.
    fn judged(overhead: &Overhead, took_ns: u64, since_ns: u64) -> i32 {
        for _ in 1..CALLS {
            assert_eq!(overhead.add(took_ns, ONE_OF, since_ns), None);
        }
        overhead.add(took_ns, ONE_OF, since_ns).unwrap()
    }

    #[test]
    fn above_the_bound_the_rate_doubles_and_far_below_it_halves() {
        let overhead = Overhead::new(20_000);
        // Each call takes 1 us; the thread makes one in this time.
        for (every_us, steps, share) in [
            (100, 0, 10_000),
            (50, 0, 20_000),
            (49, 1, 20_408),
            (20, 2, 50_000),
            (4, 4, 250_000),
            (1000, -1, 1_000),
        ] {
            assert_eq!(judged(&overhead, 1_000, ONE_OF * every_us * 1_000), steps, "{every_us}");
            assert_eq!(overhead.figures(), (share, 20_000));
        }
        assert_eq!(judged(&overhead, 1_000, 0), 6, "never more than the whole time");
    }

    #[test]
    fn a_call_that_was_interrupted_is_not_the_recorders_cost() {
        // Of 128 calls some take a millisecond, the others half a microsecond: 1 % of the time between them.
        for (long, steps, share) in
            [(1, 0, 9_946), (15, 0, 9_194), (16, 1, 33_750), (128, 4, 200_000)]
        {
            let overhead = Overhead::new(20_000);
            let since_ns = ONE_OF * 50_000;
            for at in 1..CALLS {
                let took_ns = if at <= long { 1_000_000 } else { 500 };
                assert_eq!(overhead.add(took_ns, ONE_OF, since_ns), None);
            }
            let took_ns = if CALLS <= long { 1_000_000 } else { 500 };
            assert_eq!(overhead.add(took_ns, ONE_OF, since_ns), Some(steps), "{long}");
            assert_eq!(overhead.figures().0, share, "{long}");
        }
    }
}
