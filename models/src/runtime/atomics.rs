//! Loom's atomics. Loom takes SeqCst of a load, a store or an exchange for AcqRel, and knows SeqCst of
//! fences alone: here each such access of 64 bits stands between two fences.

pub use loom::hint::spin_loop;
use loom::sync::atomic::fence;
pub use loom::sync::atomic::{AtomicU32, Ordering};

pub struct AtomicU64(loom::sync::atomic::AtomicU64);

fn fenced<T>(order: Ordering, access: impl FnOnce() -> T) -> T {
    let is_ordered = order == Ordering::SeqCst;
    if is_ordered {
        fence(Ordering::SeqCst);
    }
    let result = access();
    if is_ordered {
        fence(Ordering::SeqCst);
    }
    result
}

impl AtomicU64 {
    pub fn new(value: u64) -> AtomicU64 {
        AtomicU64(loom::sync::atomic::AtomicU64::new(value))
    }

    pub fn load(&self, order: Ordering) -> u64 {
        fenced(order, || self.0.load(order))
    }

    pub fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        fenced(success, || self.0.compare_exchange_weak(old, new, success, failure))
    }

    pub fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        update: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        fenced(set, || self.0.fetch_update(set, fetch, update))
    }
}
