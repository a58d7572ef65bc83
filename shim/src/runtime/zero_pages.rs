//! A value on zero pages from the kernel: made at its first use, and never unmapped. Pages that nothing touches take no memory.

use crate::runtime::hash_table::pages;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// # Safety
/// Zero bytes are a valid value.
pub unsafe trait Zeroed: Sync {}

// SAFETY: of each element they are.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}

pub struct ZeroPages<T>(AtomicPtr<T>);

impl<T> Default for ZeroPages<T> {
    fn default() -> Self {
        ZeroPages::NONE
    }
}

impl<T> ZeroPages<T> {
    /// Not made yet.
    #[allow(clippy::declare_interior_mutable_const)] // for arrays of such
    pub const NONE: ZeroPages<T> = ZeroPages(AtomicPtr::new(null_mut()));
}

impl<T: Zeroed + 'static> ZeroPages<T> {
    /// Makes it now, if the kernel gives pages.
    pub fn new() -> ZeroPages<T> {
        let made = ZeroPages::NONE;
        made.get_or_make();
        made
    }

    /// `None`: it was not made yet.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or pages that hold a valid value, and stay.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// `None`: the kernel gives no pages.
    #[inline(always)]
    pub fn get_or_make(&self) -> Option<&'static T> {
        self.get().or_else(|| self.make())
    }

    #[cold]
    fn make(&self) -> Option<&'static T> {
        let fresh = pages(size_of::<T>()).ok()?.cast();
        // The pages of the thread that lost a race at the first use are leaked.
        let _ = self.0.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Relaxed);
        self.get()
    }
}
