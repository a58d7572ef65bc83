//! A set of handles that hooks have seen. A query takes a few nanoseconds: no lock, no call, two loads.
//! The set may lose members; it never contains a handle that was not added.

use crate::runtime::hash_table::spread;
use crate::runtime::zero_pages::{ZeroPages, Zeroed};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Programs launch some hundred functions.
const SLOTS: usize = 1 << 14;
/// At more members than this the set is cleared.
const FULL: usize = SLOTS / 2;
const EMPTY: usize = 0;
/// A removed member; probing continues past it. No handle is 1.
const REMOVED: usize = 1;

/// The table is mapped at the first handle; the kernel allocates its pages when they are touched.
#[derive(Default)]
pub struct HandleSet {
    slots: ZeroPages<HandleSlots>,
    /// Slots that are not empty.
    used: AtomicUsize,
}

#[inline(always)]
fn home(handle: usize) -> usize {
    (spread(handle as u64) >> (64 - SLOTS.trailing_zeros())) as usize
}

/// The slots of a set, for one look.
#[repr(transparent)]
pub struct HandleSlots([AtomicUsize; SLOTS]);

// SAFETY: zero bytes are empty slots.
unsafe impl Zeroed for HandleSlots {}

impl HandleSlots {
    /// Whether the handle is in the set, at the first place where it is looked for. Of 0 and 1, which are no handles, it may
    /// say so.
    #[inline(always)]
    pub fn has_at_home(&self, handle: usize) -> bool {
        self.0[home(handle)].load(Relaxed) == handle
    }

    /// The slots where the handle may be, in order. About half of all are empty, so that few are looked at.
    #[inline(always)]
    fn places(&self, handle: usize) -> impl Iterator<Item = &AtomicUsize> {
        let home = home(handle);
        (0..SLOTS).map(move |further| &self.0[(home + further) % SLOTS])
    }
}

impl HandleSet {
    /// Where the members are; `None`: there was none yet.
    #[inline(always)]
    pub fn in_memory(&self) -> Option<&'static HandleSlots> {
        self.slots.get()
    }

    #[inline(always)]
    pub fn has(&self, handle: usize) -> bool {
        let Some(slots) = self.in_memory() else { return false };
        for slot in slots.places(handle) {
            match slot.load(Relaxed) {
                known if known == handle => return known > REMOVED,
                EMPTY => return false,
                _ => {}
            }
        }
        false
    }

    pub fn add(&self, handle: usize) {
        if handle <= REMOVED || self.has(handle) {
            return;
        }
        if self.used.fetch_add(1, Relaxed) >= FULL {
            self.forget();
        }
        let Some(slots) = self.slots.get_or_make() else { return };
        for slot in slots.places(handle) {
            match slot.compare_exchange(EMPTY, handle, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(known) if known == handle => return,
                Err(_) => {}
            }
        }
    }

    /// Removes a handle that the driver may reuse.
    pub fn remove(&self, handle: usize) {
        let Some(slots) = self.in_memory().filter(|_| handle > REMOVED) else { return };
        for slot in slots.places(handle) {
            match slot.compare_exchange(handle, REMOVED, Relaxed, Relaxed) {
                Ok(_) | Err(EMPTY) => return,
                Err(_) => {}
            }
        }
    }

    /// Clears the set: the driver may reuse any handle.
    pub fn forget(&self) {
        if self.used.swap(0, Relaxed) == 0 {
            return;
        }
        for slot in self.in_memory().iter().flat_map(|slots| &slots.0) {
            slot.store(EMPTY, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_it_was_reported() {
        let seen = HandleSet::default();
        let handle = |n: usize| 0x5555_0000_0000 + n * 16;
        assert!(!seen.has(handle(1)) && !seen.has(0) && !seen.has(1));
        assert!(seen.in_memory().is_none());
        for n in 0..5000 {
            seen.add(handle(n));
            seen.add(handle(n));
        }
        let slots = seen.in_memory().unwrap();
        let at_home = (0..5000).filter(|n| slots.has_at_home(handle(*n))).count();
        assert!(at_home > 2500, "{at_home}");
        assert!((5000..9000).all(|n| !slots.has_at_home(handle(n))));
        assert!((0..5000).all(|n| seen.has(handle(n))));
        assert!((5000..9000).all(|n| !seen.has(handle(n))));
        (0..5000).step_by(2).for_each(|n| seen.remove(handle(n)));
        assert!((0..5000).all(|n| seen.has(handle(n)) == (n % 2 == 1)));
        seen.forget();
        assert!((0..5000).all(|n| !seen.has(handle(n))));
        seen.add(0);
        seen.add(1);
        assert!(!seen.has(0) && !seen.has(1));
    }

    #[test]
    fn a_full_set_begins_anew() {
        let seen = HandleSet::default();
        for n in 1..200_000usize {
            seen.add(n * 64);
            assert!(seen.has(n * 64));
        }
    }

    #[test]
    fn threads_lose_nothing() {
        let seen = HandleSet::default();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let seen = &seen;
                scope.spawn(move || (1..1000).for_each(|n| seen.add((n * 4 + thread) * 16)));
            }
        });
        assert!((4..4000).all(|n| seen.has(n * 16)));
    }
}
