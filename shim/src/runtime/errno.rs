//! errno as the program and the driver left it.

use core::ffi::c_int;
use core::ptr::NonNull;

/// This thread's errno. It stays on its thread, since a raw pointer is not `Send`.
#[derive(Clone, Copy)]
pub struct Here(NonNull<c_int>);

/// Finds this thread's errno. Later reads through the result are cheaper.
#[inline]
pub fn here() -> Here {
    // SAFETY: has no arguments, and gives the address of this thread's errno, which is not null.
    Here(unsafe { NonNull::new_unchecked(libc::__errno_location()) })
}

impl Here {
    #[inline]
    pub fn get(self) -> c_int {
        // SAFETY: this thread's own, there as long as it runs.
        unsafe { self.0.read() }
    }

    #[inline]
    pub fn set(self, value: c_int) {
        // SAFETY: this thread's own, there as long as it runs.
        unsafe { self.0.write(value) }
    }

    /// The address, which is the same for all calls on a thread.
    pub fn address(self) -> usize {
        self.0.as_ptr() as usize
    }
}

#[inline]
pub fn get() -> c_int {
    here().get()
}

#[inline]
pub fn set(value: c_int) {
    here().set(value);
}
