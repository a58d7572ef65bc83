//! The nesting depth of hooks on this thread. A hook that is reached from inside the driver (or from
//! the recorder's calls to it) only forwards the call; otherwise one allocation would be counted twice.
//!
//! A `longjmp` across a driver call (out of a callback, or out of a signal handler) runs no
//! destructors, so the depth would stay raised forever. So the outermost guard has a mark in its stack
//! frame, and a later call checks whether that frame still exists ([`Outermost::is_gone`]).

use crate::runtime::errno;
use crate::runtime::escapes::{Escape, escaped};
use crate::runtime::stack_pages;
use crate::runtime::tls::thread_block;
use core::cell::Cell;
use core::marker::PhantomData;

/// This thread's.
#[repr(C)]
struct Slot {
    depth: usize,
    outermost: Outermost,
    /// Counts guards, so that no two have the same mark.
    marks: usize,
}

thread_block!(fn slot() -> *mut Slot = "vramtrace_depth", 32, align 16);

/// The guard that raised the depth from 0.
#[repr(C)]
#[derive(Clone, Copy)]
struct Outermost {
    /// Address of its mark; 0: not known yet.
    at: usize,
    mark: usize,
}

/// The guard of one hook; dropping it (also by unwinding) lowers the depth again.
pub struct Guard {
    /// 0: not the outermost.
    mark: Cell<usize>,
    /// Not `Send`: it stays on its thread.
    _local: PhantomData<*mut ()>,
}

/// `None` inside a hook of the same thread: pass through.
#[inline]
pub fn enter() -> Option<Guard> {
    // SAFETY: this thread's own.
    let slot = unsafe { &mut *slot() };
    if slot.depth != 0 && !slot.left_behind() {
        return None;
    }
    Some(slot.raise())
}

impl Slot {
    #[inline]
    fn raise(&mut self) -> Guard {
        self.depth = 1;
        self.marks = self.marks.wrapping_add(1).max(1);
        self.outermost = Outermost { at: 0, mark: self.marks };
        Guard { mark: Cell::new(self.marks), _local: PhantomData }
    }

    /// Whether the frame of the outermost guard is gone. Then no call is in progress on this thread.
    #[cold]
    fn left_behind(&mut self) -> bool {
        let (here, kept) = (0u8, errno::get());
        let gone = self.outermost.is_gone(&raw const here as usize);
        errno::set(kept);
        if !gone {
            return false;
        }
        escaped(Escape::LongJump);
        self.depth = 0;
        true
    }
}

impl Guard {
    /// Stores the guard's address. It must not be moved from now on.
    #[inline]
    pub fn settle(&self) {
        // SAFETY: this thread's own.
        let slot = unsafe { &mut *slot() };
        if slot.outermost.mark == self.mark.get() {
            slot.outermost.at = self.mark.as_ptr() as usize;
        }
    }
}

/// One of this many guards of a thread is timed.
pub const SAMPLED_ONE_OF: usize = 64;

impl Guard {
    /// Whether this hook is timed.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        self.mark.get().is_multiple_of(SAMPLED_ONE_OF)
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this thread's own.
        let slot = unsafe { &mut *slot() };
        let mark = self.mark.replace(0);
        if mark == 0 {
            slot.depth = slot.depth.saturating_sub(1);
        } else if slot.outermost.mark == mark {
            // A guard that was wrongly considered gone lowers nothing.
            slot.depth = 0;
        }
    }
}

impl Outermost {
    /// Whether its frame is gone, seen from a call at `sp`. Only what is certain counts: the frame
    /// lies below the stack pointer on the same stack, or something else lies in its place.
    #[cold]
    fn is_gone(&self, sp: usize) -> bool {
        let Outermost { at, mark } = *self;
        if at == 0 {
            return false;
        }
        match stack_pages::signal_stack() {
            // A signal handler runs on its own stack, on top of a call on the other stack.
            Some(stack) if stack.contains(&sp) => stack.contains(&at) && at < sp,
            // The signal handler that made the call has returned.
            Some(stack) if stack.contains(&at) => true,
            _ => match stack_pages::are_joined(at.min(sp), at.max(sp)) {
                true if at < sp => true,
                // SAFETY: the pages from `sp` to there can be read.
                true => unsafe { stack_pages::word_of_ended_frame(at) != mark },
                // Another stack, for example a fiber's: unknown.
                false => false,
            },
        }
    }
}

/// Runs `f` with the guard up: hooks reached from within pass through.
pub fn inside<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: this thread's own.
    let slot = unsafe { &mut *slot() };
    let guard = match slot.depth {
        0 => slot.raise(),
        _ => {
            slot.depth += 1;
            Guard { mark: Cell::new(0), _local: PhantomData }
        }
    };
    guard.settle();
    f()
}

/// Runs `f` with the guard up, unless it is up: this thread is in a hook.
pub fn outermost(f: impl FnOnce()) {
    if let Some(guard) = enter() {
        guard.settle();
        f();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::escapes::escapes;

    #[test]
    fn only_the_outermost_enters() {
        let guard = enter();
        assert!(guard.is_some());
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
            let _guard = enter().unwrap();
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
