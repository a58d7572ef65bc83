//! errno as the program and the driver left it.

use core::ffi::c_int;

#[inline]
pub fn get() -> c_int {
    unsafe { *libc::__errno_location() }
}

#[inline]
pub fn set(value: c_int) {
    unsafe { *libc::__errno_location() = value }
}
