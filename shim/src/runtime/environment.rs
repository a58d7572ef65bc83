//! The environment. `std::env` takes a lock for it that may be held for ever in a forked child. The program may change it in
//! another thread, a risk of every library that calls `getenv`: what is read here is used at once.

use core::ffi::{CStr, c_char};

/// The value of a variable.
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a C string.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a text of the environment.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// All of it, as `NAME=value`.
pub fn all() -> impl Iterator<Item = &'static CStr> {
    unsafe extern "C" {
        /// Null, or an array that ends in null.
        static environ: *const *const c_char;
    }
    // SAFETY: the C library's variable.
    let mut next = unsafe { environ };
    core::iter::from_fn(move || {
        // SAFETY: null, or an element of the array.
        let text = unsafe { next.as_ref() }.filter(|text| !text.is_null())?;
        next = next.wrapping_add(1);
        // SAFETY: a text of the environment.
        Some(unsafe { CStr::from_ptr(*text) })
    })
}
