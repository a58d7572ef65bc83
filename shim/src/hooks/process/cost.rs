//! The recorder's cost: time in hooks, measured on one call in
//! [`depth::SAMPLED_ONE_OF`](crate::driver::depth::SAMPLED_ONE_OF) of each thread. Other calls only
//! test a per-thread counter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub struct HookCost {
    calls: AtomicU64,
    ns: AtomicU64,
}

impl HookCost {
    /// Adds a timed call: its whole time, and the driver's part of it.
    #[cold]
    pub fn add(&self, whole_ns: u64, driver_ns: u64) {
        self.calls.fetch_add(1, Relaxed);
        self.ns.fetch_add(whole_ns.saturating_sub(driver_ns), Relaxed);
    }

    /// The number of timed calls, and their time without the driver's part.
    pub fn sampled(&self) -> (u64, u64) {
        (self.calls.load(Relaxed), self.ns.load(Relaxed))
    }
}
