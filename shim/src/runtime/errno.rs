//! errno as the program and the driver left it.

use core::ffi::c_int;

/// Where this thread's lies.
#[inline]
pub fn place() -> *mut c_int {
    unsafe { libc::__errno_location() }
}

#[inline]
pub fn get() -> c_int {
    unsafe { *libc::__errno_location() }
}

#[inline]
pub fn set(value: c_int) {
    unsafe { *libc::__errno_location() = value }
}
