//! The C library's functions by which a thread leaves what it is doing: `longjmp`, `pthread_exit`, and
//! asynchronous cancellation.
//!
//! In the middle of the recorder's own code they would leave locks held, and entries half made. So these
//! functions are interposed. A signal handler that interrupted the recorder's code, and leaves it by one
//! of them, leaves it at the end of the hook (`runtime/handler_exit.rs`). In the driver's code, and
//! everywhere else, nothing changes. A jump within the handler is none of this.
//!
//! A thread's asynchronous cancellation is deferred during hooks, but not while the driver is called for
//! the program in a function that may wait. Frames with destructors cannot be unwound from any instruction: so [`deferred`] and
//! [`undeferred`] stand in frames of their own, which have none.
//!
//! What no function shows (`setcontext` out of a handler) is noticed by the locks (`runtime/lock.rs`).

use crate::driver::depth::{self, Raised};
use crate::interpose::trampoline::{Verdict, trampoline};
use crate::runtime::handler_exit::{self, JumpBuffer, Request, SignalReturn};
use crate::runtime::loader::{self, ThreadEnd};
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

/// If this is a signal handler that interrupted the recorder's code, which `request` leaves: keeps the
/// request, and returns from the handler.
///
/// # Safety
/// The request's arguments fulfil its function's contract.
#[cold]
unsafe fn leave_later(back: SignalReturn, request: Request) {
    // SAFETY: a jump's target lies above the hook's frame. The frames from here to the interrupted code
    // are those that the request ends.
    unsafe {
        handler_exit::keep(request);
        depth::ask_to_leave();
        back.make()
    }
}

fn jumping(real: ThreadEnd, to: *mut JumpBuffer, value: c_int) -> Verdict {
    let jump = loader::thread_end(real);
    let here = 0u8;
    if let Some(Raised { frame, must_end }) = depth::raised(&raw const here as usize)
        // SAFETY: the program's own call, so that the buffer was filled.
        && unsafe { JumpBuffer::leaves(to, frame) }
    {
        if must_end && let Some(back) = SignalReturn::below(frame) {
            // SAFETY: the program's own call.
            unsafe {
                let real = transmute::<usize, handler_exit::Jump>(jump);
                leave_later(back, Request::Jump { real, to, value });
            }
        }
        depth::left();
    }
    Verdict { jump, answer: null_mut() }
}

macro_rules! jumps {
    ($($name:ident $filter:ident $real:ident)*) => { $(
        extern "C" fn $filter(to: *mut JumpBuffer, value: c_int) -> Verdict {
            jumping(ThreadEnd::$real, to, value)
        }

        /// # Safety
        /// The contract of the C library's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(to: *mut JumpBuffer, value: c_int) -> *mut c_void {
            trampoline!($filter)
        }
    )* };
}
jumps! {
    longjmp longjmp_filter Longjmp
    _longjmp underscore_longjmp_filter UnderscoreLongjmp
    siglongjmp siglongjmp_filter Siglongjmp
    __longjmp_chk longjmp_chk_filter LongjmpChk
}

extern "C" fn ending(result: *mut c_void) -> Verdict {
    let jump = loader::thread_end(ThreadEnd::PthreadExit);
    let here = 0u8;
    let back = match depth::raised(&raw const here as usize) {
        Some(Raised { frame, must_end: true }) => SignalReturn::below(frame),
        // No lock is held, but frames of this library cannot be unwound from any instruction.
        raised => SignalReturn::into_us(raised.is_none()),
    };
    if let Some(back) = back {
        // SAFETY: the program's own call.
        unsafe {
            let real = transmute::<usize, handler_exit::Exit>(jump);
            leave_later(back, Request::Exit { real, result });
        }
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
    Verdict { jump: loader::thread_end(ThreadEnd::SetCancelType), answer: null_mut() }
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> *mut c_void {
    trampoline!(setting_type)
}
