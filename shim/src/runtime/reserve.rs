//! A reserve for small allocations when the kernel gives no more memory (limits of address space or
//! data, too many mappings, strict overcommit). It is part of the library's image, so it is always
//! there.
//!
//! Its first use ends the recording, see [`is_used`]; when little is left the hooks do only what is
//! necessary, see [`is_low`]. A freed block returns to the free list of its size only.

use crate::runtime::attention::{self, LOW, RAN_OUT};
use crate::runtime::fallible;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const BYTES: usize = 2 << 20;
/// The part for frees, contexts and everything else that must be followed until the process ends.
const LAST: usize = BYTES / 4;

#[repr(C, align(4096))]
struct Reserve {
    bytes: UnsafeCell<[u8; BYTES]>,
    taken: AtomicUsize,
}

// SAFETY: each byte is given out once.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve::new();

impl Reserve {
    const fn new() -> Reserve {
        Reserve { bytes: UnsafeCell::new([0; BYTES]), taken: AtomicUsize::new(0) }
    }

    fn take(&self, bytes: usize) -> *mut u8 {
        let align = bytes.next_power_of_two().min(4096);
        let next = |taken: usize| {
            taken.next_multiple_of(align).checked_add(bytes).filter(|end| *end <= BYTES)
        };
        match self.taken.fetch_update(Relaxed, Relaxed, next) {
            Ok(before) => {
                self.bytes.get().cast::<u8>().wrapping_add(before.next_multiple_of(align))
            }
            Err(_) => null_mut(),
        }
    }

    fn is_low(&self) -> bool {
        self.taken.load(Relaxed) > BYTES - LAST
    }

    #[inline]
    fn has(&self, block: *const u8) -> bool {
        (block as usize).wrapping_sub(self.bytes.get() as usize) < BYTES
    }
}

/// Returns zeroed bytes, aligned to their size up to a page. Null: too little is left, or the
/// allocation may fail (see [`super::fallible`]).
#[cold]
pub fn take(bytes: usize) -> *mut u8 {
    match fallible::may_fail() {
        true => null_mut(),
        false => {
            ran_out();
            let taken = RESERVE.take(bytes);
            if RESERVE.is_low() {
                attention::ask(LOW);
            }
            taken
        }
    }
}

/// A table of the recorder could not grow: recording ends as if the reserve were used.
#[cold]
pub fn ran_out() {
    attention::ask(RAN_OUT);
}

#[inline]
pub fn has(block: *const u8) -> bool {
    RESERVE.has(block)
}

/// Whether the kernel has ever refused memory for the recorder's tables.
#[inline]
pub fn is_used() -> bool {
    attention::is_asked(RAN_OUT)
}

/// Little is left: under a cap requests are refused, otherwise they are forwarded without recording.
#[inline]
pub fn is_low() -> bool {
    attention::is_asked(LOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_out_is_aligned_apart_and_ends() {
        static OWN: Reserve = Reserve::new();
        let first = OWN.take(48);
        assert!(OWN.has(first) && (first as usize).is_multiple_of(64));
        let page = OWN.take(10_000);
        assert!((page as usize).is_multiple_of(4096) && page as usize >= first as usize + 48);
        assert!(OWN.take(BYTES).is_null());
        assert!(!OWN.is_low());
        assert!(!OWN.take(BYTES - LAST).is_null());
        assert!(OWN.is_low());
        let outside = 0u8;
        assert!(!OWN.has(&raw const outside));
    }
}
