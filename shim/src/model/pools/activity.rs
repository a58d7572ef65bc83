//! The pools that may hold memory, and those in which a block was freed since the last synchronisation.

use super::pool::Pool;
use super::{CHUNK, Pools};
use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::PoolOrigin;

/// The numbers of the bits of a word.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.checked_sub(1)?;
        Some(bit as usize)
    }
}

impl Pools {
    /// Before a block of the pool is allocated.
    #[inline]
    pub fn takes(&self, pool: &Pool) {
        if !pool.active.load(Ordering::Relaxed) {
            self.note_active(pool);
        }
    }

    #[cold]
    pub(super) fn note_active(&self, pool: &Pool) {
        pool.active.store(true, Ordering::Relaxed);
        let (word, bit) = self.active_bit(pool);
        word.fetch_or(bit, Ordering::Release);
    }

    fn active_bit(&self, pool: &Pool) -> (&AtomicU64, u64) {
        static NONE: AtomicU64 = AtomicU64::new(0);
        let index = pool.number() as usize - 1;
        let chunk = self.chunk(index / CHUNK);
        (chunk.map_or(&NONE, |chunk| &chunk.active[index % CHUNK / 64]), 1 << (index % 64))
    }

    /// After a reading: a pool without blocks for which the driver holds nothing is not read again until it
    /// is used. (If a block is allocated meanwhile, the pool's figures are those of that allocation until
    /// the next one.)
    pub fn rests(&self, pool: &Pool) {
        let is_created = pool.origin() == PoolOrigin::Created;
        if is_created && pool.growth.known() == (0, 0) && pool.growth.is_unused() {
            let (word, bit) = self.active_bit(pool);
            word.fetch_and(!bit, Ordering::AcqRel);
            pool.active.store(false, Ordering::Relaxed);
        }
    }

    /// The pools that may hold memory.
    pub fn active(&self) -> impl Iterator<Item = &Pool> {
        let count = self.count.load(Ordering::Acquire) as usize;
        let words = (0..count.div_ceil(64)).map(|word| word * 64);
        words.flat_map(move |first| {
            let chunk = self.chunk(first / CHUNK);
            let word =
                chunk.map_or(0, |chunk| chunk.active[first % CHUNK / 64].load(Ordering::Acquire));
            Bits(word).filter_map(move |bit| self.at(first + bit))
        })
    }

    /// Notes that a block of the pool was freed. Usually only a load, so that threads do not contend for
    /// cache lines.
    #[inline]
    pub fn freed_one(&self, pool: &Pool) {
        if !pool.freed.load(Ordering::Relaxed) {
            self.note_freed(pool);
        }
    }

    #[cold]
    fn note_freed(&self, pool: &Pool) {
        if pool.freed.swap(true, Ordering::AcqRel) {
            return;
        }
        let number = pool.number();
        let _ = self.freed.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |first| {
            pool.next_freed.store(first, Ordering::Relaxed);
            Some(number)
        });
    }

    /// Whether a block of any pool was freed since [`Pools::take_freed`].
    #[inline]
    pub fn any_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) != 0
    }

    /// Those pools, each once.
    pub fn take_freed(&self) -> impl Iterator<Item = &Pool> {
        let mut next = self.freed.swap(0, Ordering::AcqRel);
        std::iter::from_fn(move || {
            let pool = self.by_number(next)?;
            next = pool.next_freed.load(Ordering::Relaxed);
            // From here on another thread may note it again.
            pool.freed.store(false, Ordering::Release);
            Some(pool)
        })
    }
}
