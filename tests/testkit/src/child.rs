//! Children that a test forks from itself, and calls of the system that only tests make.

use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `run` in a forked child. Returns its result (false if it panics), or the signal that killed the
/// child. No destructor and no exit handler runs there.
pub fn in_child(run: impl FnOnce() -> bool) -> Result<bool, i32> {
    // SAFETY: the child has a copy of this thread's memory, runs the closure on it and ends.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let good = catch_unwind(AssertUnwindSafe(run)).unwrap_or(false);
        // SAFETY: ends the child; nothing runs after it.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and room for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if libc::WIFSIGNALED(status) { Err(libc::WTERMSIG(status)) } else { Ok(status == 0) }
}

/// Redirects the descriptor `number` to `to`.
pub fn redirect(number: RawFd, to: &impl AsRawFd) {
    // SAFETY: `to` is open. The file that `number` referred to is closed: tests do not use it any more.
    assert!(unsafe { libc::dup2(to.as_raw_fd(), number) } >= 0);
}

/// The effective user id.
pub fn user() -> u32 {
    // SAFETY: has no arguments and always succeeds.
    unsafe { libc::geteuid() }
}
