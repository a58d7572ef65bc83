//! The soft limit: passing it is news, once, until the count has fallen well below it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub struct SoftLimiter {
    /// `u64::MAX` = none.
    limit: AtomicU64,
    over: AtomicBool,
    /// The count that crossed it last, upwards; to be reported.
    crossed: AtomicU64,
    /// Crossed since it was reported last: up (1), down again (2), both (3).
    untold: std::sync::atomic::AtomicU8,
    news: Arc<AtomicBool>,
}

const UP: u8 = 1;
const DOWN: u8 = 2;

/// What is to be reported of a soft limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    pub over: bool,
    pub counted: u64,
    pub limit: u64,
}

/// It counts as left when the count is a twentieth below it: a count that swings around the limit
/// is one crossing, not a thousand.
fn left_at(limit: u64) -> u64 {
    limit - limit / 20
}

impl SoftLimiter {
    pub fn new(news: Arc<AtomicBool>) -> SoftLimiter {
        SoftLimiter {
            limit: AtomicU64::new(u64::MAX),
            over: AtomicBool::new(false),
            crossed: AtomicU64::new(0),
            untold: Default::default(),
            news,
        }
    }

    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    pub fn set(&self, limit: Option<u64>, counted: u64) {
        self.limit.store(limit.unwrap_or(u64::MAX), Relaxed);
        self.notice(counted);
    }

    /// The count is this now.
    #[inline]
    pub fn notice(&self, counted: u64) {
        let limit = self.limit.load(Relaxed);
        if counted > limit {
            if !self.over.load(Relaxed) && !self.over.swap(true, Relaxed) {
                self.crossed.store(counted, Relaxed);
                self.tell(UP);
            }
        } else if self.over.load(Relaxed)
            && (limit == u64::MAX || counted < left_at(limit))
            && self.over.swap(false, Relaxed)
        {
            self.tell(DOWN);
        }
    }

    #[cold]
    fn tell(&self, what: u8) {
        self.untold.fetch_or(what, Relaxed);
        self.news.store(true, Relaxed);
    }

    /// Something else of the same budget is to be reported.
    #[cold]
    pub fn something_to_tell(&self) {
        self.news.store(true, Relaxed);
    }

    /// What happened since the last call, in its order; `now` is the count.
    pub fn take(&self, now: u64) -> impl Iterator<Item = Crossing> {
        let untold = self.untold.swap(0, Relaxed);
        let limit = self.limit.load(Relaxed);
        let up = Crossing { over: true, counted: self.crossed.load(Relaxed), limit };
        let down = Crossing { over: false, counted: now, limit };
        let (up, down) = ((untold & UP != 0).then_some(up), (untold & DOWN != 0).then_some(down));
        // Both: what holds now came last.
        let over = self.over.load(Relaxed);
        let (first, last) = if over { (down, up) } else { (up, down) };
        first.into_iter().chain(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(soft: &SoftLimiter, now: u64) -> Vec<(bool, u64)> {
        soft.take(now).map(|crossing| (crossing.over, crossing.counted)).collect()
    }

    #[test]
    fn a_count_that_swings_is_one_crossing() {
        let news = Arc::new(AtomicBool::new(false));
        let soft = SoftLimiter::new(news.clone());
        soft.set(Some(1000), 0);
        soft.notice(1000);
        assert!(!news.load(Relaxed), "at the limit is not over it");
        for counted in [1001, 999, 1500, 951, 1001] {
            soft.notice(counted);
        }
        assert_eq!(told(&soft, 1001), [(true, 1001)]);
        assert_eq!(told(&soft, 1001), []);
        soft.notice(949);
        assert_eq!(told(&soft, 949), [(false, 949)]);
        soft.notice(2000);
        assert_eq!(told(&soft, 2000), [(true, 2000)], "again");
    }

    #[test]
    fn a_spike_between_two_looks_is_told() {
        let soft = SoftLimiter::new(Arc::default());
        soft.set(Some(100), 0);
        soft.notice(101);
        soft.notice(5);
        assert_eq!(told(&soft, 5), [(true, 101), (false, 5)]);
    }

    #[test]
    fn a_limit_that_moves() {
        let soft = SoftLimiter::new(Arc::default());
        soft.set(Some(100), 200);
        soft.set(Some(300), 200);
        assert_eq!(told(&soft, 200), [(true, 200), (false, 200)]);
        soft.set(None, 200);
        assert_eq!((told(&soft, 200), soft.limit()), (vec![], None));
    }
}
