//! A reference to something that is never freed, which threads may read at any time.

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Empty at first. What is replaced stays where it is, since it may be in use.
pub struct Leaked<T: 'static>(AtomicPtr<T>);

impl<T> Leaked<T> {
    #[allow(clippy::declare_interior_mutable_const)] // for statics
    pub const NONE: Leaked<T> = Leaked(AtomicPtr::new(null_mut()));
}

impl<T: Sync> Leaked<T> {
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or from a reference that lives as long as the process.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    pub fn set(&self, value: &'static T) {
        self.0.store(from_ref(value).cast_mut(), Ordering::Release);
    }

    /// Moves the value to a place that is never freed.
    pub fn put(&self, value: T) -> &'static T {
        let value = Box::leak(Box::new(value));
        self.set(value);
        value
    }

    pub fn take(&self) -> Option<&'static T> {
        // SAFETY: as of `get`.
        unsafe { self.0.swap(null_mut(), Ordering::AcqRel).as_ref() }
    }
}
