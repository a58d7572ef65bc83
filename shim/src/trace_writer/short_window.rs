//! The window where events are appended in their short form, without a look at the state of the recording.
//!
//! Who ends such a state changes it, then calls [`ShortWindow::end`]. Who has recorded an event with that look calls
//! [`ShortWindow::begin`], which looks again after its exchange. If that exchange comes after the one of `end`, it sees the
//! changed state, and ends what it began; else `end` does. `models/src/tests/short_window.rs` checks this.

use crate::runtime::atomics::{AtomicPtr, Ordering};
use std::ptr::{from_ref, null_mut};

pub struct ShortWindow<W: 'static>(AtomicPtr<W>);

impl<W> Default for ShortWindow<W> {
    fn default() -> Self {
        ShortWindow(AtomicPtr::new(null_mut()))
    }
}

impl<W> ShortWindow<W> {
    /// `None`: the event needs that look.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static W> {
        // SAFETY: null, or from a reference that lives as long.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// From now on events may go to the window that `allowed` returns, unless it returns `None`.
    pub fn begin(&self, allowed: impl Fn() -> Option<&'static W>) {
        let Some(window) = allowed() else { return };
        if self.get().is_some_and(|known| std::ptr::eq(known, window)) {
            return;
        }
        self.0.swap(from_ref(window).cast_mut(), Ordering::AcqRel);
        if allowed().is_none() {
            self.end();
        }
    }

    /// From now on no event goes to a window unseen. What `begin` is asked for has ended before.
    pub fn end(&self) {
        self.0.swap(null_mut(), Ordering::AcqRel);
    }
}
