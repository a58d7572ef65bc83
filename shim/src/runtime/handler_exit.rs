//! Ending a thread in a signal handler, later: `pthread_exit`.
//!
//! A handler that interrupts the recorder's own code and leaves it would keep the recorder's locks
//! for ever. So the request is kept ([`keep`]), the handler is made to return at once
//! ([`SignalReturn::make`]), and the request is carried out when the hook is done ([`perform`]): for the
//! program the signal came a little later.

use super::mapped_modules;
use super::panic_boundary::Context;
use super::task::change_mask;
use super::tls::thread_cells;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{Ordering, compiler_fence};

pub type Exit = unsafe extern "C-unwind" fn(*mut c_void) -> !;

/// All zeros: nothing is kept.
#[derive(Clone, Copy)]
struct Slot {
    /// The real function.
    exit: Option<Exit>,
    /// The thread's result.
    result: *mut c_void,
    /// The signal mask in the handler.
    mask: u64,
}

thread_cells!(fn slot() -> &Cell<Slot>, 24 bytes of the block at 296);

/// Keeps a call of `exit` for [`perform`].
pub fn keep(exit: Exit, result: *mut c_void) {
    let mask = change_mask(libc::SIG_BLOCK, 0).unwrap_or(0);
    slot().set(Slot { exit: Some(exit), result, mask });
    compiler_fence(Ordering::SeqCst);
}

/// Ends the thread, if that was kept.
#[cold]
pub fn perform() {
    let kept = slot().get();
    if let Some(exit) = kept.exit {
        slot().set(Slot { exit: None, ..kept });
        // As the handler left it.
        change_mask(libc::SIG_SETMASK, kept.mask);
        // SAFETY: the C library's function, for the program's own call.
        unsafe { exit(kept.result) }
    }
}

/// Whether an address above `here` on this stack lies in the frames of this library that are being run now,
/// so that no earlier frame can be there.
pub fn is_in_our_frames(here: usize, at: usize) -> bool {
    /// More than the frames of a hook's beginning.
    const MOST: usize = 16 << 10;
    if at < here || at - here > MOST {
        return false;
    }
    let Some(ours) = ours().filter(|_| has_unwinder()) else { return false };
    let mut caller = None;
    walk(&mut |frame, _| {
        caller = (!ours.contains(&frame.code)).then_some(frame.sp);
        caller.is_some()
    });
    caller.is_some_and(|caller| at < caller)
}

/// The addresses of this library's code.
fn ours() -> Option<Range<usize>> {
    let ours = mapped_modules::holding(ours as *const () as usize)?;
    Some(ours.start..ours.end)
}

/// A place on this thread's stack: the address of the code, and the stack pointer there.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    code: usize,
    sp: usize,
}

/// The way back from a signal handler: the code to which it returns makes the system call `rt_sigreturn`.
pub struct SignalReturn(Frame);

impl SignalReturn {
    /// Of the handler that interrupted this library's own instructions, or with `also_called` a function
    /// that it called; the first one if handlers interrupted each other. `None`: there is none, or the stack cannot be
    /// unwound that far.
    pub fn into_us(also_called: bool) -> Option<SignalReturn> {
        let ours = ours()?;
        let (mut inner, mut last, mut is_complete) = (None, None, false);
        walk(&mut |frame, was_interrupted| {
            if was_interrupted {
                // What it was reached from is the way back from a handler.
                last = inner;
            }
            inner = Some(frame);
            let is_it = was_interrupted || also_called && last.is_some();
            is_complete = is_it && ours.contains(&frame.code);
            is_complete
        });
        last.filter(|_| is_complete).map(SignalReturn)
    }

    /// Returns from the signal handler.
    ///
    /// # Safety
    /// No frame between here and the interrupted code is needed.
    pub unsafe fn make(self) -> ! {
        // SAFETY: the state in which the handler's own return arrives there.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!("mov rsp, {sp}", "jmp {code}", sp = in(reg) self.0.sp,
                code = in(reg) self.0.code, options(noreturn))
        }
        // SAFETY: as above. By `ret`, which may arrive anywhere.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            core::arch::asm!("mov sp, {sp}", "ret {code}", sp = in(reg) self.0.sp,
                code = in(reg) self.0.code, options(noreturn))
        }
    }
}

/// Whether the unwinder was found already: to load it calls the program's malloc.
fn has_unwinder() -> bool {
    #[cfg(not(any(miri, sanitized)))]
    return super::late_binding::has_unwinder();
    #[cfg(any(miri, sanitized))]
    true
}

#[expect(improper_ctypes, reason = "the unwinder passes the reference on")]
unsafe extern "C" {
    safe fn _Unwind_Backtrace(
        step: extern "C" fn(&Context, &mut Visit<'_>) -> c_int,
        visit: &mut Visit<'_>,
    ) -> c_int;
    safe fn _Unwind_GetIPInfo(context: &Context, is_exact: &mut c_int) -> usize;
    safe fn _Unwind_GetCFA(context: &Context) -> usize;
}

/// Called with a frame, and whether a signal interrupted its code. True ends the walk.
pub(super) type Visit<'a> = &'a mut dyn FnMut(Frame, bool) -> bool;

/// Visits the frames of this thread, from the innermost out.
pub(super) fn walk(mut visit: Visit<'_>) {
    extern "C" fn step(context: &Context, visit: &mut Visit<'_>) -> c_int {
        const GO_ON: c_int = 0;
        const STOP: c_int = 5;
        let mut is_exact = 0;
        let code = _Unwind_GetIPInfo(context, &mut is_exact);
        let sp = _Unwind_GetCFA(context);
        if visit(Frame { code, sp }, is_exact != 0) { STOP } else { GO_ON }
    }
    _Unwind_Backtrace(step, &mut visit);
}
