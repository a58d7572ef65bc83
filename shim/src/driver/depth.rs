//! The nesting depth of hooks on this thread. A hook that is reached from inside the driver (or from
//! the recorder's calls to it) only forwards the call; otherwise one allocation would be counted twice.
//!
//! A `longjmp` across a driver call (out of a callback, or out of a signal handler) runs no
//! destructors, so the depth would stay raised forever. So the outermost guard has a mark in its stack
//! frame, and a later call checks whether that frame still exists ([`Outermost::has_ended`]).
//!
//! A signal handler that ends its thread in the recorder's own code waits for the end of the hook
//! (`hooks/call/handler_exits.rs`). For this the thread's block also says whether the driver is being called.

use crate::runtime::errno;
use crate::runtime::escapes::{Escape, escaped};
use crate::runtime::handler_exit;
use crate::runtime::lock;
use crate::runtime::stack_pages;
use crate::runtime::tls::thread_cells;
use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

/// This thread's. Its signal handlers read and write it too: compiler fences keep the order.
#[repr(C)]
struct Slot {
    /// The depth in units of [`ONE`], and the bits below it. One word, so that a call tests both at once.
    state: Cell<u64>,
    outermost: Cell<Outermost>,
    /// Where the thread's errno is, once a hook has found it.
    errno: Cell<Option<errno::Here>>,
    /// The outermost hook is calling the driver for the program: no lock of the recorder is held.
    in_driver: Cell<bool>,
    /// A signal handler wants to leave the outermost hook, at the hook's end.
    is_requested: Cell<bool>,
    /// That the current call gets no memory is recorded.
    is_refused: Cell<bool>,
}

const ONE: u64 = 4;
/// The program has made this thread's cancellation asynchronous.
const ASYNCHRONOUS: u64 = 1;
/// It is deferred during a hook.
const DEFERRED: u64 = 2;

thread_cells!(fn slot() -> &Slot, 40 bytes of the block at 0);
thread_cells! {
    /// When the thread's last timed hook ended; 0: there was none.
    fn timed_ns() -> &Cell<u64>, 8 bytes of the block at 328
}

/// The guard that raised the depth from 0.
#[repr(C)]
#[derive(Clone, Copy)]
struct Outermost {
    /// Address of its mark.
    at: usize,
    /// The thread's guards are counted, so that no two have the same mark.
    mark: usize,
}

/// The guard of one outermost hook. [`Guard::settle`] raises the depth, [`Guard::leave`] lowers it again,
/// as dropping the guard does (also by unwinding).
pub struct Guard {
    slot: &'static Slot,
    /// 0: the depth is not raised.
    mark: Cell<usize>,
}

/// `None` inside a hook of the same thread: pass through.
#[inline]
pub fn enter() -> Option<Guard> {
    let slot = slot();
    (slot.state.get() < ONE || left_behind()).then(|| Guard::new(slot))
}

/// Whether a hook on this thread can begin at once, as nearly all do: it is not nested, and the thread is
/// not cancelled asynchronously. (After a `longjmp` across a driver call the answer is no.)
#[inline]
pub fn is_plain() -> bool {
    slot().state.get() == 0
}

/// Notes that the refusal of this thread's call is recorded. The end of the call takes it.
pub fn note_refusal() {
    slot().is_refused.set(true);
}

/// Whether it was noted.
pub fn take_refusal() -> bool {
    slot().is_refused.take()
}

/// Whether the frame of the outermost guard has ended: that hook was left without its end, and no call is in progress on this
/// thread.
#[cold]
fn left_behind() -> bool {
    let slot = slot();
    let (here, kept) = (0u8, errno::get());
    let ended = slot.outermost.get().has_ended(&raw const here as usize);
    errno::set(kept);
    if ended {
        if !slot.in_driver.get() {
            lock::thread_left();
        }
        escaped(Escape::LongJump);
        // If cancellation is still deferred, the end of the next hook makes it asynchronous again.
        slot.change(!ASYNCHRONOUS, 0);
    }
    ended
}

impl Slot {
    #[inline]
    fn change(&self, cleared: u64, set: u64) {
        self.state.set(self.state.get() & !cleared | set);
    }
}

impl Guard {
    fn new(slot: &'static Slot) -> Guard {
        Guard { slot, mark: Cell::new(0) }
    }

    /// This thread's errno, which lies in one place as long as the thread runs: found by its first hook.
    #[inline]
    pub fn errno(&self) -> errno::Here {
        self.slot.errno.get().unwrap_or_else(|| {
            let here = errno::here();
            self.slot.errno.set(Some(here));
            here
        })
    }

    /// Raises the depth. The guard must not be moved from now on.
    #[inline]
    pub fn settle(&self) {
        let slot = self.slot;
        let mark = slot.outermost.get().mark.wrapping_add(1);
        self.mark.set(mark);
        slot.outermost.set(Outermost { at: self.mark.as_ptr() as usize, mark });
        slot.in_driver.set(false);
        compiler_fence(Ordering::SeqCst);
        slot.change(0, ONE);
        compiler_fence(Ordering::SeqCst);
    }

    /// The driver is called for the program until [`Guard::left_driver`]. The caller holds no lock. Returns
    /// whether cancellation is asynchronous, and deferred during this hook.
    #[inline]
    pub fn enters_driver(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        self.slot.in_driver.set(true);
        self.slot.state.get() & DEFERRED != 0
    }

    #[inline]
    pub fn left_driver(&self) {
        self.slot.in_driver.set(false);
        compiler_fence(Ordering::SeqCst);
    }

    /// Ends the hook. If a signal handler wants to leave it, this does so, and does not return.
    #[inline]
    pub fn leave(self) {
        self.lower();
        let slot = self.slot;
        core::mem::forget(self);
        if slot.is_requested.get() {
            slot.is_requested.set(false);
            handler_exit::perform();
        }
    }

    #[inline]
    fn lower(&self) {
        compiler_fence(Ordering::SeqCst);
        // A guard that was wrongly considered ended lowers nothing.
        if self.slot.outermost.get().mark == self.mark.get() {
            self.slot.change(!(ONE - 1), 0);
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Whether this hook is timed.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        self.mark.get().is_multiple_of(SAMPLED_ONE_OF)
    }
}

/// One of this many guards of a thread is timed.
pub const SAMPLED_ONE_OF: usize = 256;

/// Notes the end of this thread's timed hook. Returns that of the one before; 0: there was none.
pub fn timed(now_ns: u64) -> u64 {
    timed_ns().replace(now_ns)
}

/// Whether this thread's outermost hook is timed.
pub fn is_outermost_sampled() -> bool {
    let slot = slot();
    slot.state.get() >= ONE && slot.outermost.get().mark.is_multiple_of(SAMPLED_ONE_OF)
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if self.mark.get() != 0 {
            self.lower();
        }
    }
}

/// Whether this thread's outermost hook waits: for the driver, or for its own end. `sp`: the caller's stack pointer.
pub fn waits(sp: usize) -> bool {
    let slot = slot();
    let waits = slot.in_driver.get() || slot.is_requested.get();
    waits && slot.state.get() >= ONE && !slot.outermost.get().has_ended(sp)
}

/// The outermost hook on this thread is to be left at its end: see [`Guard::leave`].
pub fn ask_to_leave() {
    slot().is_requested.set(true);
}

/// Whether the program has made the cancellation of this thread asynchronous.
pub fn is_asynchronous() -> bool {
    slot().state.get() & (ASYNCHRONOUS | DEFERRED) == ASYNCHRONOUS
}

/// Whether asynchronous cancellation is deferred now.
pub fn is_deferring() -> bool {
    slot().state.get() & DEFERRED != 0
}

/// The program has set the type of this thread's cancellation.
pub fn set_asynchronous(on: bool) {
    slot().change(ASYNCHRONOUS | DEFERRED, if on { ASYNCHRONOUS } else { 0 });
}

pub fn set_deferring(on: bool) {
    slot().change(DEFERRED, if on { DEFERRED } else { 0 });
}

impl Outermost {
    /// Whether its frame has ended, seen from a call at `sp`. Only what is certain counts: the frame
    /// lies below the stack pointer on the same stack, or something else lies in its place.
    #[cold]
    fn has_ended(&self, sp: usize) -> bool {
        let Outermost { at, mark } = *self;
        match stack_pages::signal_stack() {
            // A signal handler runs on its own stack, on top of a call on the other stack.
            Some(stack) if stack.contains(&sp) => stack.contains(&at) && at < sp,
            // The signal handler that made the call has returned.
            Some(stack) if stack.contains(&at) => true,
            _ => match stack_pages::are_joined(at.min(sp), at.max(sp)) {
                true if at < sp => true,
                // SAFETY: the pages from `sp` to there can be read.
                true if unsafe { stack_pages::word_of_ended_frame(at) } != mark => true,
                // A loop calls again from the same frame: the word is still there. (In a unit test every frame
                // is this library's.)
                true => !cfg!(test) && handler_exit::is_in_our_frames(sp, at),
                // Another stack, for example a fiber's: unknown.
                false => false,
            },
        }
    }
}

/// Runs `f` with the guard up: hooks reached from within pass through.
#[inline(always)]
pub fn inside<R>(f: impl FnOnce() -> R) -> R {
    struct Nested(&'static Slot);
    impl Drop for Nested {
        fn drop(&mut self) {
            let state = self.0.state.get();
            if state >= ONE {
                self.0.state.set(state - ONE);
            }
        }
    }
    let slot = slot();
    let state = slot.state.get();
    if state < ONE {
        return alone(f);
    }
    slot.state.set(state + ONE);
    let _nested = Nested(slot);
    f()
}

/// The same outside of a hook.
#[cold]
fn alone<R>(f: impl FnOnce() -> R) -> R {
    let guard = Guard::new(slot());
    guard.settle();
    let result = f();
    guard.leave();
    result
}

/// Runs `f` with the guard up, unless it is up: this thread is in a hook.
pub fn outermost(f: impl FnOnce()) {
    if let Some(guard) = enter() {
        guard.settle();
        f();
        guard.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::escapes::escapes;

    #[test]
    fn only_the_outermost_enters() {
        // As after the report of another test's panic: the unwinder is there.
        drop(std::backtrace::Backtrace::force_capture());
        let guard = enter().unwrap();
        guard.settle();
        assert!(enter().is_none());
        std::thread::spawn(|| assert!(enter().is_some())).join().unwrap();
        drop(guard);
        inside(|| {
            assert!(enter().is_none());
            inside(|| assert!(enter().is_none()));
            assert!(enter().is_none());
        });
        assert!(enter().is_some());
    }

    #[test]
    fn a_panic_lowers_it() {
        let result = std::panic::catch_unwind(|| {
            let guard = enter().unwrap();
            guard.settle();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(result.is_err());
        assert!(enter().is_some());
    }

    /// In a separate frame; its guard is never dropped, as after a longjmp.
    #[inline(never)]
    fn leave_a_guard(deep: usize) -> usize {
        let room = [0u8; 512];
        if deep > 0 {
            return leave_a_guard(deep - 1) + usize::from(std::hint::black_box(&room)[3]);
        }
        let guard = core::mem::ManuallyDrop::new(enter().unwrap());
        guard.settle();
        assert!(enter().is_none(), "its frame stands");
        0
    }

    #[inline(never)]
    fn enter_below(deep: usize) -> bool {
        let room = [deep as u8; 512];
        match deep {
            0 => enter().is_some(),
            _ => enter_below(deep - 1) & (std::hint::black_box(&room)[3] == deep as u8),
        }
    }

    #[test]
    #[cfg_attr(sanitized, ignore = "a sanitizer's frames are larger, with other contents")]
    fn a_frame_that_is_gone_is_noticed_from_above_and_from_below() {
        leave_a_guard(8);
        assert!(enter().is_some(), "from above");
        assert!(escapes() & Escape::LongJump as u8 != 0);
        leave_a_guard(8);
        assert!(enter_below(100), "from below, where other frames lie in its place");
        assert!(enter().is_some());
    }

    #[test]
    fn a_handlers_stack_above_the_call_is_no_longjmp() {
        extern "C" fn handler(_: i32) {
            assert!(enter().is_none());
        }
        let guard = enter().unwrap();
        guard.settle();
        // As large as a test's stack and above it, as a mapping of the main thread's would be.
        let mut stack = vec![0u8; 64 << 10];
        // SAFETY: the stack outlives its use, which ends before this block; the handler only looks at
        // this thread's depth.
        unsafe {
            let new = libc::stack_t {
                ss_sp: stack.as_mut_ptr().cast(),
                ss_flags: 0,
                ss_size: stack.len(),
            };
            let mut old = core::mem::zeroed();
            assert_eq!(libc::sigaltstack(&new, &mut old), 0);
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(libc::SIGUSR2, &action, core::ptr::null_mut());
            libc::raise(libc::SIGUSR2);
            assert_eq!(libc::sigaltstack(&old, core::ptr::null_mut()), 0);
        }
        drop(guard);
        assert!(enter().is_some());
    }
}
