//! Waits for a word to change, and wakes waiting threads.

use crate::runtime::atomics::AtomicU32;
use core::time::Duration;

/// Sleeps until the word differs from `value`, another thread wakes this one, a signal comes, or
/// `longest` has passed. It changes errno, which each hook saves and restores.
#[cold]
pub fn wait(word: &AtomicU32, value: u32, longest: Duration) {
    wait_with(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, word, value, longest);
}

/// As `wait`, for a word that the kernel clears at the end of a task: that wakes one thread, of any process.
#[cold]
pub fn wait_for_kernel(word: &AtomicU32, value: u32, longest: Duration) {
    wait_with(libc::FUTEX_WAIT, word, value, longest);
}

fn wait_with(operation: i32, word: &AtomicU32, value: u32, longest: Duration) {
    let longest = libc::timespec {
        tv_sec: longest.as_secs() as i64,
        tv_nsec: i64::from(longest.subsec_nanos()),
    };
    // SAFETY: the word and the time outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const longest) };
}

pub fn wake_all(word: &AtomicU32) {
    wake(word, i32::MAX);
}

#[cold]
#[inline(never)]
pub fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

fn wake(word: &AtomicU32, most: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel looks at the address only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, most) };
}
