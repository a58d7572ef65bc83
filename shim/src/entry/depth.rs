//! How deep this thread is in our hooks: a hook that is reached from inside the driver (or from
//! our own calls to it) passes straight through, or one allocation would be counted twice.
//!
//! The counter is initial-exec thread-local storage made by hand: `thread_local!` in a cdylib goes
//! through `__tls_get_addr`, which may allocate on a thread's first touch. A preloaded library is
//! there at start-up, so a place in the static block is certain.

use core::marker::PhantomData;

core::arch::global_asm!(
    ".pushsection .tbss.vramtrace_depth,\"awT\",@nobits",
    ".globl vramtrace_depth",
    ".hidden vramtrace_depth",
    ".type vramtrace_depth, @object",
    ".size vramtrace_depth, 4",
    ".balign 4",
    "vramtrace_depth:",
    ".zero 4",
    ".popsection",
);

#[inline(always)]
fn slot() -> *mut u32 {
    let address: *mut u32;
    unsafe {
        core::arch::asm!(
            "mov {address}, qword ptr fs:[0]",
            "add {address}, qword ptr [rip + vramtrace_depth@GOTTPOFF]",
            address = out(reg) address,
            options(nostack, pure, readonly),
        );
    }
    address
}

/// The guard of one hook; dropping it (also by unwinding) lowers the depth again.
pub struct Guard(PhantomData<*mut ()>);

/// `None` inside a hook of the same thread: pass through.
#[inline]
pub fn enter() -> Option<Guard> {
    unsafe {
        let slot = slot();
        if *slot != 0 {
            return None;
        }
        *slot = 1;
    }
    Some(Guard(PhantomData))
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        unsafe {
            let slot = slot();
            *slot -= 1;
        }
    }
}

/// Runs `f` with the guard up: hooks reached from within pass through.
pub fn inside<R>(f: impl FnOnce() -> R) -> R {
    unsafe {
        let slot = slot();
        *slot += 1;
    }
    let _guard = Guard(PhantomData);
    f()
}

/// Runs `f` with the guard up, unless it is up: this thread is in a hook.
pub fn outermost(f: impl FnOnce()) {
    if let Some(_guard) = enter() {
        f();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
