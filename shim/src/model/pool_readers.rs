//! Threads that read a pool's figures from the driver, and the pool's destruction, which waits for them: the driver may not be
//! asked for the figures of a pool while it destroys it.
//!
//! A reader stores which pool it reads ([`Readers::begin`]), then checks whether that pool is being destroyed. The destroying
//! thread marks the pool, then checks for readers ([`Readers::any`]). These steps are sequentially consistent, so at least one of
//! the two sees the other. `models/src/tests/pool_readers.rs` checks it. Each of the first threads has a word on a line of its
//! own: under a cap a reading follows each request.

use crate::runtime::atomics::{AtomicU64, Ordering};

/// The number of the pool that a thread reads; 0: none.
#[repr(C, align(64))]
struct Own(AtomicU64);

/// The words of `N` threads.
pub struct Readers<const N: usize>([Own; N]);

impl<const N: usize> Default for Readers<N> {
    fn default() -> Self {
        Readers(std::array::from_fn(|_| Own(AtomicU64::new(0))))
    }
}

/// A thread reads a pool until this is dropped.
pub struct Reading<'a> {
    own: Option<&'a Own>,
    others: &'a AtomicU64,
}

impl<const N: usize> Readers<N> {
    /// `others`: the pool's count of readers for threads that have no word, or whose word is in use.
    #[inline(always)]
    pub fn begin<'a>(&'a self, thread: usize, pool: u64, others: &'a AtomicU64) -> Reading<'a> {
        // One in its place: a reading within a reading, or one that the thread has left.
        let own = self.0.get(thread).filter(|own| own.0.load(Ordering::Relaxed) == 0);
        match own {
            Some(own) => own.0.swap(pool, Ordering::SeqCst),
            None => others.fetch_add(1, Ordering::SeqCst),
        };
        Reading { own, others }
    }

    pub fn any(&self, pool: u64, others: &AtomicU64) -> bool {
        others.load(Ordering::SeqCst) != 0
            || self.0.iter().any(|own| own.0.load(Ordering::SeqCst) == pool)
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.own {
            Some(own) => own.0.store(0, Ordering::Release),
            None => {
                self.others.fetch_sub(1, Ordering::Release);
            }
        }
    }
}
