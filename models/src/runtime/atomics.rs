//! Loom's atomics. Loom takes SeqCst of a load, a store or an exchange for AcqRel, and knows SeqCst of
//! fences alone: here each such access of 64 bits stands between two fences.
//!
//! Loom looks for other orders by the last access to a location alone: of two loads before a store it
//! tries the store before the second one only. So a SeqCst load is an addition of 0 here. Where all
//! accesses are SeqCst, as in the page of a group, that is the same.

pub use loom::hint::spin_loop;
use loom::sync::atomic::fence;
pub use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[derive(Debug)]
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
        match order {
            Ordering::SeqCst => self.fetch_add(0, order),
            _ => self.0.load(order),
        }
    }

    pub fn store(&self, value: u64, order: Ordering) {
        fenced(order, || self.0.store(value, order));
    }

    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        fenced(order, || self.0.swap(value, order))
    }

    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        fenced(order, || self.0.fetch_add(value, order))
    }

    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        fenced(order, || self.0.fetch_sub(value, order))
    }

    pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        fenced(order, || self.0.fetch_max(value, order))
    }

    pub fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        fenced(success, || self.0.compare_exchange(old, new, success, failure))
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
