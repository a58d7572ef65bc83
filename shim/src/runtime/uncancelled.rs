//! Work of ours during which this thread is not cancelled.
//!
//! A file is opened and written at cancellation points: a thread that the program cancels would
//! end there, with a lock of ours held. The request waits for the program's own next point.

use core::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
const DISABLE: c_int = 1;

/// For what may make a system call that is a cancellation point; a few nanoseconds.
pub fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(c_int);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: this thread's own state, as it was.
            unsafe { pthread_setcancelstate(self.0, core::ptr::null_mut()) };
        }
    }
    let mut before = 0;
    // SAFETY: room for the answer.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    let _restore = Restore(before);
    work()
}
