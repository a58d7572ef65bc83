//! The peaks of a device's live bytes, by number (the *epoch*), and what a kind held at the last. Threads
//! that hold the locks of different shards change them at the same time; `models/` checks every order.

use crate::runtime::atomics::{AtomicU32, AtomicU64, Ordering::*, spin_loop};

/// Twice the number of peaks; bit 0: no block was allocated since the last.
#[derive(Default)]
pub struct Peaks(AtomicU32);

impl Peaks {
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.0.load(Relaxed) >> 1
    }

    /// A new peak. Each has a number of its own, also of those that two threads reach at once.
    #[inline]
    pub fn reached(&self) {
        let mut peaks = self.0.load(Relaxed);
        while let Err(seen) =
            self.0.compare_exchange_weak(peaks, (peaks | 1).wrapping_add(2), Relaxed, Relaxed)
        {
            peaks = seen;
        }
    }

    /// The epoch for an allocation or a free, and whether it is the first block that was allocated since
    /// the peak.
    #[inline]
    pub fn epoch_for(&self, is_new_block: bool) -> (u32, bool) {
        let mut peaks = self.0.load(Relaxed);
        while is_new_block && peaks & 1 == 1 {
            match self.0.compare_exchange_weak(peaks, peaks & !1, Relaxed, Relaxed) {
                Ok(_) => return (peaks >> 1, true),
                Err(seen) => peaks = seen,
            }
        }
        (peaks >> 1, false)
    }
}

/// How often a thread looks whether another one has kept the bytes: longer than that takes, unless it is
/// interrupted.
const TRIES: u32 = 1000;

/// The epoch for which the bytes of a kind were kept: before their first change after a peak. Bit 0: they
/// are being kept.
#[derive(Default)]
pub struct KeptEpoch(AtomicU32);

impl KeptEpoch {
    /// Before a change: keeps the bytes, if they were not changed since the peak. A thread that is late does
    /// not replace what was kept for a later peak.
    #[inline]
    pub fn keep(&self, epoch: u32, kept: &AtomicU64, now: &AtomicU64) {
        if self.0.load(Acquire) != epoch << 1 {
            self.keep_first(epoch, kept, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn keep_first(&self, epoch: u32, kept: &AtomicU64, now: &AtomicU64) {
        let wanted = epoch << 1;
        for _ in 0..TRIES {
            let known = self.0.load(Acquire);
            let is_later = wanted.wrapping_sub(known) as i32 > 0;
            if known & 1 == 1 {
                // Another thread is between the two stores below.
                spin_loop();
            } else if !is_later {
                return;
            } else if self.0.compare_exchange(known, wanted | 1, AcqRel, Relaxed).is_ok() {
                kept.store(now.load(Relaxed), Relaxed);
                self.0.store(wanted, Release);
                return;
            }
        }
    }

    /// Whether the kept bytes are those of this peak; otherwise they have not changed since.
    pub fn is_of(&self, epoch: u32) -> bool {
        self.0.load(Acquire) == epoch << 1
    }
}
