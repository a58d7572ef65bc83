//! System calls on file descriptors, each in one place.

use std::mem::MaybeUninit;

pub(crate) fn close(fd: i32) {
    // SAFETY: touches no memory; a descriptor that is not open is refused.
    unsafe { libc::close(fd) };
}

pub(crate) fn stat(fd: i32) -> Option<libc::stat> {
    let mut stat = MaybeUninit::uninit();
    // SAFETY: the buffer has the size of a `stat`, which a successful call fills.
    unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }
}

/// A copy that programs which are executed do not get, numbered from `lowest` on.
pub(crate) fn duplicate(fd: i32, lowest: i32) -> Option<i32> {
    // SAFETY: touches no memory; a descriptor that is not open is refused.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) };
    (copy >= 0).then_some(copy)
}
