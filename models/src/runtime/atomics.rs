//! Loom's atomics. Loom treats a SeqCst load, store or exchange as AcqRel; it supports SeqCst for fences
//! only. So each such access of 64 bits is between two fences here.
//!
//! Loom searches for other interleavings from the last access to a location only: of two loads before a
//! store it tries the store before the second load only. So a SeqCst load is an addition of 0 here. If all
//! accesses are SeqCst, as in the group page, the result is the same.

pub use loom::hint::spin_loop;
use loom::sync::atomic::fence;
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

#[derive(Debug)]
pub struct AtomicU64 {
    word: loom::sync::atomic::AtomicU64,
    /// Each store to it must be SeqCst: as loads are additions here, no model would show a weaker one.
    is_ordered: bool,
}

impl AtomicU64 {
    pub fn new(value: u64) -> AtomicU64 {
        AtomicU64 { word: loom::sync::atomic::AtomicU64::new(value), is_ordered: false }
    }

    /// A word that members of a group share.
    pub fn of_group(value: u64) -> AtomicU64 {
        AtomicU64 { is_ordered: true, ..AtomicU64::new(value) }
    }

    fn stored<T>(
        &self,
        order: Ordering,
        access: impl FnOnce(&loom::sync::atomic::AtomicU64) -> T,
    ) -> T {
        let in_order = order == Ordering::SeqCst;
        assert!(in_order || !self.is_ordered, "a store of order {order:?} to a group's word");
        if in_order {
            fence(Ordering::SeqCst);
        }
        let result = access(&self.word);
        if in_order {
            fence(Ordering::SeqCst);
        }
        result
    }

    pub fn load(&self, order: Ordering) -> u64 {
        match order {
            Ordering::SeqCst => self.fetch_add(0, order),
            _ => self.word.load(order),
        }
    }

    pub fn store(&self, value: u64, order: Ordering) {
        self.stored(order, |word| word.store(value, order));
    }

    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.stored(order, |word| word.swap(value, order))
    }

    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.stored(order, |word| word.fetch_add(value, order))
    }

    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.stored(order, |word| word.fetch_sub(value, order))
    }

    pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.stored(order, |word| word.fetch_max(value, order))
    }

    pub fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.stored(success, |word| word.compare_exchange(old, new, success, failure))
    }

    pub fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.stored(success, |word| word.compare_exchange_weak(old, new, success, failure))
    }

    pub fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        update: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        self.stored(set, |word| word.fetch_update(set, fetch, update))
    }
}
