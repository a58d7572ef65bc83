//! The lock on the live page's file, by which readers in any namespace see that this process lives.
//!
//! It is an open file description lock, and a mapping that nobody touches keeps the description: so there is no
//! descriptor in the program's table, and the kernel drops the lock when the process ends, however it ends, or calls
//! exec. Forked children do not get the mapping.

use crate::runtime::faults::pages_granted;
use crate::runtime::forked_child::{self, Range};
use crate::runtime::leaked::Leaked;
use crate::runtime::private_table::Opened;
use std::os::fd::{AsFd, AsRawFd};

/// One page is the least that can be mapped. It lies behind the end of an empty file, so it is never touched.
const BYTES: usize = 4096;

pub struct LiveLock {
    /// Where the mapping is.
    place: Leaked<Range>,
}

impl LiveLock {
    pub fn new() -> LiveLock {
        LiveLock { place: Leaked::NONE }
    }

    /// Takes the lock on the file that `open` opens for reading and writing, unless it is taken. False: the system
    /// gives none. Called by one thread at a time.
    pub fn hold<'t>(&self, open: impl Fn() -> Option<Opened<'t>>) -> bool {
        let Some(file) = open() else { return false };
        match is_locked(&file) {
            None => return false,
            Some(true) => return true,
            // The first time, or the file was removed and made again.
            Some(false) if !(lock(&file) && self.keep(&file)) => return false,
            Some(false) => drop(file),
        }
        // Only now: on some file systems (overlay) the mapping is of another file, and does not keep the lock.
        open().is_some_and(|again| is_locked(&again) == Some(true))
    }

    /// Maps the file in place of the one that was mapped before, whose lock is dropped.
    fn keep(&self, file: &Opened) -> bool {
        if !pages_granted("live") {
            return false;
        }
        let known = self.place.get().or_else(|| forked_child::reserve(BYTES));
        let Some(range) = known else { return false };
        self.place.set(range);
        let (flags, number) = (libc::MAP_SHARED | libc::MAP_FIXED, file.as_fd().as_raw_fd());
        // SAFETY: in place of our own mapping, to which there is no reference.
        let map = |at| unsafe { libc::mmap(at, BYTES, libc::PROT_NONE, flags, number, 0) };
        range.put(map) != libc::MAP_FAILED
    }
}

/// Whether somebody holds a lock; this process does so by another description. `None`: the system has no such locks.
pub fn is_locked(file: &Opened) -> Option<bool> {
    call(file, libc::F_OFD_GETLK).map(|found| found != libc::F_UNLCK)
}

fn lock(file: &Opened) -> bool {
    call(file, libc::F_OFD_SETLK).is_some()
}

/// A call about a lock for writing on the whole file. Returns the type of the lock that it answers with.
fn call(file: &Opened, command: i32) -> Option<i32> {
    let (l_type, l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
    let mut lock = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    let number = file.as_fd().as_raw_fd();
    // SAFETY: a structure of our own. The C library's wrapper of fcntl may be the program's.
    let done = unsafe { libc::syscall(libc::SYS_fcntl, number, command, &raw mut lock) };
    (done == 0).then_some(lock.l_type.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::private_table;
    use std::cell::Cell;
    use std::ffi::CString;

    /// As on an overlay file system, where the mapping keeps another file than the one that was opened.
    #[test]
    fn a_lock_that_does_not_outlive_the_descriptor_is_not_claimed() {
        let path = |n: u32| {
            std::env::temp_dir().join(format!("vramtrace-lock-{}-{n}", std::process::id()))
        };
        let names = [0, 1].map(|n| CString::new(path(n).to_str().unwrap()).unwrap());
        let is_held = |first: usize, later: usize| {
            private_table::run(|table| {
                let next = Cell::new(first);
                let flags = libc::O_RDWR | libc::O_CREAT;
                LiveLock::new().hold(|| table.open(&names[next.replace(later)], flags, 0o600).ok())
            })
        };
        assert_eq!((is_held(0, 1), is_held(1, 1)), (Ok(false), Ok(true)));
        [0, 1].into_iter().for_each(|n| std::fs::remove_file(path(n)).unwrap());
    }
}
