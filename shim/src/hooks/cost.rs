//! What the recorder costs the program: time in hooks, of one call in
//! [`depth::SAMPLED_ONE_OF`](crate::driver::depth::SAMPLED_ONE_OF) of each thread. The other calls
//! pay a look at a number that they have at hand.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub struct HookCost {
    calls: AtomicU64,
    ns: AtomicU64,
}

impl HookCost {
    /// A call of the sample took so long, the driver in it so long.
    #[cold]
    pub fn took(&self, whole_ns: u64, driver_ns: u64) {
        self.calls.fetch_add(1, Relaxed);
        self.ns.fetch_add(whole_ns.saturating_sub(driver_ns), Relaxed);
    }

    /// Calls whose time was taken, and their time without the driver's.
    pub fn sampled(&self) -> (u64, u64) {
        (self.calls.load(Relaxed), self.ns.load(Relaxed))
    }
}
