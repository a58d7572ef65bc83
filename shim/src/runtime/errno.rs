//! errno as the program and the driver left it.

use core::cell::Cell;
use core::ffi::c_int;

/// This thread's errno. It stays on its thread, since a cell is not shared.
#[derive(Clone, Copy)]
pub struct Here(&'static Cell<c_int>);

/// Finds this thread's errno. Later reads through the result are cheaper.
#[inline]
pub fn here() -> Here {
    unsafe extern "C" {
        /// Stays as long as the thread runs.
        safe fn __errno_location() -> &'static Cell<c_int>;
    }
    Here(__errno_location())
}

impl Here {
    #[inline]
    pub fn get(self) -> c_int {
        self.0.get()
    }

    #[inline]
    pub fn set(self, value: c_int) {
        self.0.set(value);
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
