//! Threads that read a pool's figures from the driver, and the pool's destruction, which waits for them: the driver may not be
//! asked for the figures of a pool while it destroys it.
//!
//! A reader is counted ([`Readers::begin`]), then checks whether the pool is being destroyed. The destroying thread marks the pool,
//! then checks for readers ([`Readers::any`]). These steps are sequentially consistent, so at least one of the two sees the other.
//! `models/src/tests/pool_readers.rs` checks it.

use crate::runtime::atomics::{AtomicU64, Ordering};

/// The threads that read one pool's figures now. Zero bytes are none.
pub struct Readers(AtomicU64);

impl Default for Readers {
    fn default() -> Readers {
        Readers(AtomicU64::new(0))
    }
}

/// A thread reads until this is dropped.
pub struct Reading<'a>(&'a Readers);

impl Readers {
    #[inline(always)]
    pub fn begin(&self) -> Reading<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Reading(self)
    }

    pub fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}
