//! Runs work during which this thread is not cancelled.
//!
//! Opening and writing files are cancellation points: a thread that the program cancels would end
//! there, with a lock of the recorder held. A request to cancel takes effect at the next cancellation
//! point outside.

use crate::runtime::loader::{self, Real};
use core::ffi::c_int;

/// Sets whether this thread can be cancelled. Returns the state before.
fn set_state(state: c_int) -> c_int {
    unsafe extern "C" {
        safe fn pthread_setcancelstate(state: c_int, old: &mut c_int) -> c_int;
    }
    let mut before = 0;
    pthread_setcancelstate(state, &mut before);
    before
}
const DISABLE: c_int = 1;

/// Sets the type of this thread's cancellation by the real function, which this library interposes. A
/// request that is pending takes effect here if the type becomes asynchronous.
pub fn set_cancel_type(kind: c_int) {
    type Set = extern "C-unwind" fn(c_int, *mut c_int) -> c_int;
    let real = loader::real(Real::SetCancelType);
    if real != 0 {
        // SAFETY: the C library's function; null is no room for an answer.
        unsafe { core::mem::transmute::<usize, Set>(real)(kind, core::ptr::null_mut()) };
    }
}

/// For code that may make a system call that is a cancellation point. Costs a few nanoseconds.
pub fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(c_int);
    impl Drop for Restore {
        fn drop(&mut self) {
            set_state(self.0);
        }
    }
    let _restore = Restore(set_state(DISABLE));
    work()
}
