//! The C library's functions by which a thread ends: `pthread_exit`, and asynchronous cancellation.
//!
//! In the middle of the recorder's own code they would leave locks held, and entries half made. So these
//! functions are interposed. A signal handler that interrupted the recorder's code, and calls `pthread_exit`,
//! ends the thread at the end of the hook (`runtime/handler_exit.rs`). In the driver's code, and
//! everywhere else, nothing changes.
//!
//! A thread's asynchronous cancellation is deferred during hooks, but not while the driver is called for
//! the program in a function that may wait. Frames with destructors cannot be unwound from any instruction: so [`deferred`] and
//! [`undeferred`] stand in frames of their own, which have none.
//!
//! A jump out of a handler (`longjmp`, `setcontext`) is noticed by the locks (`runtime/lock.rs`).

use crate::driver::depth;
use crate::runtime::handler_exit::{self, SignalReturn};
use crate::runtime::loader::{self, Real};
use crate::runtime::trampoline::{Verdict, trampoline};
use crate::runtime::uncancelled::set_cancel_type;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;

const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

/// Runs a hook, `work`, during which this thread is not cancelled asynchronously.
#[cold]
#[inline(never)]
pub fn deferred<R>(work: impl FnOnce() -> R) -> R {
    if !depth::is_asynchronous() {
        return work();
    }
    set_cancel_type(DEFERRED);
    depth::set_deferring(true);
    let result = work();
    if depth::is_deferring() {
        depth::set_deferring(false);
        set_cancel_type(ASYNCHRONOUS);
    }
    result
}

/// Calls the driver for the program in a hook that is [`deferred`]: here the thread can be cancelled at once.
#[cold]
#[inline(never)]
pub fn undeferred<R>(call: impl FnOnce() -> R) -> R {
    depth::set_deferring(false);
    set_cancel_type(ASYNCHRONOUS);
    let result = call();
    if depth::is_asynchronous() {
        set_cancel_type(DEFERRED);
        depth::set_deferring(true);
    }
    result
}

extern "C" fn ending(result: *mut c_void) -> Verdict {
    let jump = loader::real(Real::PthreadExit);
    let here = 0u8;
    // Where no lock is held frames of this library cannot be unwound from any instruction, but others can.
    if let Some(back) = SignalReturn::into_us(!depth::waits(&raw const here as usize)) {
        depth::ask_to_leave();
        // SAFETY: the real function, for the program's own call.
        handler_exit::keep(unsafe { transmute::<usize, handler_exit::Exit>(jump) }, result);
        // SAFETY: the frames from here to the interrupted code end with the thread.
        unsafe { back.make() }
    }
    Verdict { jump, answer: null_mut() }
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_exit(result: *mut c_void) -> *mut c_void {
    trampoline!(ending)
}

extern "C" fn setting_type(kind: c_int, before: *mut c_int) -> Verdict {
    if depth::is_deferring() {
        // A signal handler in the middle of a hook: the type stays deferred to the end of the hook.
        if kind == DEFERRED {
            depth::set_asynchronous(false);
        }
        // SAFETY: null, or the program's room for the answer.
        if let Some(before) = unsafe { before.as_mut() } {
            *before = ASYNCHRONOUS;
        }
        return Verdict { jump: 0, answer: null_mut() };
    }
    if kind == DEFERRED || kind == ASYNCHRONOUS {
        depth::set_asynchronous(kind == ASYNCHRONOUS);
    }
    Verdict { jump: loader::real(Real::SetCancelType), answer: null_mut() }
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> *mut c_void {
    trampoline!(setting_type)
}
