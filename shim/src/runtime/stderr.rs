//! Writes to stderr without delaying the program: what cannot be written at once is dropped, and no
//! signal is raised.
//!
//! The flags of stderr's open file are shared with other processes, so O_NONBLOCK is left as it is.

use crate::runtime::errno;
use crate::runtime::system;
use crate::runtime::task::change_mask;
use crate::runtime::uncancelled::uncancelled;
use std::ffi::c_void;
use std::io::stderr;
use std::ptr::null_mut;

const STDERR: i32 = 2;
/// A pipe that poll reports as writable takes this many bytes.
const PIPE_BUF: usize = 4096;

/// Signals that a write can raise: a pipe without a reader, the limit of file sizes, a terminal that
/// stops background writers.
const RAISED: [i32; 3] = [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGTTOU];

pub fn write(bytes: &[u8]) {
    uncancelled(|| unsignalled(|| write_now(bytes)));
}

fn write_now(mut rest: &[u8]) {
    let Some(about) = system::fstat(stderr()) else { return };
    let once = match about.st_mode & libc::S_IFMT {
        // A write to a regular file does not wait for a reader.
        libc::S_IFREG => plain,
        libc::S_IFSOCK => socket,
        _ => stream,
    };
    while !rest.is_empty() {
        match usize::try_from(once(rest)) {
            Ok(wrote) if wrote > 0 => rest = &rest[wrote.min(rest.len())..],
            // Interrupted by a signal whose handler has run: try again.
            Err(_) if errno::get() == libc::EINTR => {}
            _ => return,
        }
    }
}

/// As write(2), like the next two.
fn plain(bytes: &[u8]) -> isize {
    system::write(stderr(), bytes)
}

fn socket(bytes: &[u8]) -> isize {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the slice is readable.
    unsafe { libc::send(STDERR, bytes.as_ptr().cast(), bytes.len(), flags) }
}

/// Without waiting, if the kernel supports that (pipes from Linux 6.5 on). Otherwise after poll: then
/// the write waits only if another writer fills the pipe in between.
fn stream(bytes: &[u8]) -> isize {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the slice is readable.
    let wrote = unsafe { libc::pwritev2(STDERR, &part, 1, -1, libc::RWF_NOWAIT) };
    if wrote >= 0 || errno::get() == libc::EAGAIN {
        return wrote;
    }
    let mut ready = libc::pollfd { fd: STDERR, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor.
    match unsafe { libc::poll(&mut ready, 1, 0) } {
        1 if ready.revents & libc::POLLOUT != 0 => plain(&bytes[..bytes.len().min(PIPE_BUF)]),
        _ => 0,
    }
}

/// Runs `work` with these signals blocked on this thread. A signal that it raised is discarded; one
/// that was pending before stays pending.
pub fn unsignalled<R>(work: impl FnOnce() -> R) -> R {
    let own = RAISED.iter().fold(0, |all, signal| all | 1u64 << (signal - 1));
    let mut pending = 0u64;
    // SAFETY: room for a mask of the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, 8) };
    let raised = own & !pending;
    let before = change_mask(libc::SIG_BLOCK, own);
    let result = work();
    let (now, none) = (libc::timespec { tv_sec: 0, tv_nsec: 0 }, null_mut::<c_void>());
    // SAFETY: a mask of the kernel's size, and a time; nothing is written.
    let take = || unsafe {
        libc::syscall(libc::SYS_rt_sigtimedwait, &raw const raised, none, &raw const now, 8)
    };
    while take() >= 0 || errno::get() == libc::EINTR {}
    if let Some(before) = before {
        change_mask(libc::SIG_SETMASK, before);
    }
    result
}
