//! What runs in a forked child.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// Calls `clear` in each child that the process forks from now on, before `fork` returns there. Does nothing
/// where there is no memory. The parent may have many threads: `clear` makes system calls, and changes atomics and cells.
pub fn in_child(clear: extern "C" fn()) {
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        /// What `pthread_atfork` calls. That is libpthread's own before glibc 2.34.
        fn __register_atfork(
            prepare: Handler,
            parent: Handler,
            child: Handler,
            library: *mut c_void,
        ) -> c_int;
    }
    // SAFETY: functions of this library. Without a handle the handler stays to the end, as this library does.
    unsafe { __register_atfork(None, None, Some(clear), null_mut()) };
}
