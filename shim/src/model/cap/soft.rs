//! The soft limit: a crossing is reported once, until the count has fallen 5 % below the limit.

use crate::runtime::attention;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub struct SoftLimiter {
    /// `u64::MAX` = none.
    limit: AtomicU64,
    over: AtomicBool,
    /// The count that crossed it upwards since the last report; 0: none.
    crossed: AtomicU64,
    /// What was reported last.
    is_reported_over: AtomicBool,
}

/// What is to be reported of a soft limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    pub over: bool,
    pub counted: u64,
    pub limit: u64,
}

impl SoftLimiter {
    pub fn new() -> SoftLimiter {
        SoftLimiter {
            limit: AtomicU64::new(u64::MAX),
            over: AtomicBool::new(false),
            crossed: AtomicU64::new(0),
            is_reported_over: AtomicBool::new(false),
        }
    }

    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    pub fn set(&self, limit: Option<u64>, counted: u64) {
        self.limit.store(limit.unwrap_or(u64::MAX), Relaxed);
        self.notice(counted);
    }

    /// Notes the current count.
    #[inline]
    pub fn notice(&self, counted: u64) {
        let limit = self.limit.load(Relaxed);
        if counted > limit {
            if !self.over.load(Relaxed) && !self.over.swap(true, Relaxed) {
                self.crossed.store(counted, Relaxed);
                attention::ask(attention::NEWS);
            }
        // The count must fall by a part before a new crossing is reported: one that oscillates around the limit is one.
        } else if self.over.load(Relaxed)
            && (limit == u64::MAX || counted < limit - limit / 20)
            && self.over.swap(false, Relaxed)
        {
            attention::ask(attention::NEWS);
        }
    }

    /// The crossings since the last call, in their order; `now` is the count. Of several that end where the first began, the
    /// first two at most.
    pub fn take(&self, now: u64) -> impl Iterator<Item = Crossing> {
        let (limit, over) = (self.limit.load(Relaxed), self.over.load(Relaxed));
        let was_over = self.is_reported_over.swap(over, Relaxed);
        let counted = self.crossed.swap(0, Relaxed);
        let is_up = !was_over && (over || counted != 0);
        let counted = if counted != 0 { counted } else { now };
        let up = is_up.then_some(Crossing { over: true, counted, limit });
        let is_down = !over && (was_over || is_up);
        let down = is_down.then_some(Crossing { over: false, counted: now, limit });
        up.into_iter().chain(down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(soft: &SoftLimiter, now: u64) -> Vec<(bool, u64)> {
        soft.take(now).map(|crossing| (crossing.over, crossing.counted)).collect()
    }

    #[test]
    fn a_count_that_swings_is_one_crossing() {
        let soft = SoftLimiter::new();
        soft.set(Some(1000), 0);
        soft.notice(1000);
        assert_eq!(reported(&soft, 1000), [], "at the limit is not over it");
        for counted in [1001, 999, 1500, 951, 1001] {
            soft.notice(counted);
        }
        assert_eq!(reported(&soft, 1001), [(true, 1001)]);
        assert_eq!(reported(&soft, 1001), []);
        soft.notice(949);
        assert_eq!(reported(&soft, 949), [(false, 949)]);
        soft.notice(2000);
        assert_eq!(reported(&soft, 2000), [(true, 2000)], "again");
    }

    #[test]
    fn a_spike_between_two_looks_is_reported() {
        let soft = SoftLimiter::new();
        soft.set(Some(100), 0);
        soft.notice(101);
        soft.notice(5);
        assert_eq!(reported(&soft, 5), [(true, 101), (false, 5)]);
    }

    #[test]
    fn a_limit_that_moves() {
        let soft = SoftLimiter::new();
        soft.set(Some(100), 200);
        soft.set(Some(300), 200);
        assert_eq!(reported(&soft, 200), [(true, 200), (false, 200)]);
        soft.set(None, 200);
        assert_eq!((reported(&soft, 200), soft.limit()), (vec![], None));
    }
}
