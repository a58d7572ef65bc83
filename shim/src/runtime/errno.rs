//! errno as the program and the driver left it.

use core::ffi::c_int;

/// Where this thread's lies.
#[inline]
pub fn place() -> *mut c_int {
    // SAFETY: asks for an address.
    unsafe { libc::__errno_location() }
}

#[inline]
pub fn get() -> c_int {
    // SAFETY: this thread's own, there as long as it runs.
    unsafe { place().read() }
}

#[inline]
pub fn set(value: c_int) {
    // SAFETY: this thread's own, there as long as it runs.
    unsafe { place().write(value) }
}
