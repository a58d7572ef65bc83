//! The lock on the live page's file, by which readers in any namespace see that this process lives.
//!
//! It is an open file description lock, and a mapping that nobody touches keeps the description: so there is no
//! descriptor in the program's table, and the kernel drops the lock when the process ends, however it ends, or calls
//! exec. Forked children do not get the mapping.

use crate::runtime::faults::{Site, pages_granted};
use crate::runtime::private_table::Opened;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::c_void;

/// One page is the least that can be mapped. It lies behind the end of an empty file, so it is never touched.
const BYTES: usize = 4096;

pub struct LiveLock {
    /// The mapping; null before the first lock.
    mapping: AtomicPtr<c_void>,
}

impl LiveLock {
    pub fn new() -> LiveLock {
        LiveLock { mapping: AtomicPtr::new(null_mut()) }
    }

    /// Takes the lock on this file, which is opened for reading and writing, unless it is taken. False: the system
    /// gives none. Called by one thread at a time.
    pub fn hold(&self, file: &Opened) -> bool {
        match is_locked(file) {
            None => false,
            Some(true) => true,
            // The first time, or the file was removed and made again.
            Some(false) => lock(file) && self.keep(file),
        }
    }

    /// Maps the file in place of the one that was mapped before, whose lock is dropped.
    fn keep(&self, file: &Opened) -> bool {
        if !pages_granted(Site::Live) {
            return false;
        }
        let before = self.mapping.load(Ordering::Relaxed);
        let place = if before.is_null() { 0 } else { libc::MAP_FIXED };
        let flags = libc::MAP_SHARED | place;
        // SAFETY: a fresh mapping, or one in place of our own, to which there is no reference.
        unsafe {
            let at = libc::mmap(before, BYTES, libc::PROT_NONE, flags, file.number(), 0);
            if at == libc::MAP_FAILED {
                return false;
            }
            // A child that keeps the description would keep the lock.
            libc::madvise(at, BYTES, libc::MADV_DONTFORK);
            self.mapping.store(at, Ordering::Relaxed);
        }
        true
    }
}

fn whole_file() -> libc::flock {
    // SAFETY: a structure for which zeros are a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock
}

/// Whether somebody holds a lock; this process does so by another description. `None`: the system has no such locks.
pub fn is_locked(file: &Opened) -> Option<bool> {
    let mut found = whole_file();
    // SAFETY: a structure of our own. The C library's wrapper of fcntl may be the program's.
    let asked =
        unsafe { libc::syscall(libc::SYS_fcntl, file.number(), libc::F_OFD_GETLK, &raw mut found) };
    (asked == 0).then_some(found.l_type != libc::F_UNLCK as i16)
}

fn lock(file: &Opened) -> bool {
    let wanted = whole_file();
    // SAFETY: as above.
    unsafe {
        libc::syscall(libc::SYS_fcntl, file.number(), libc::F_OFD_SETLK, &raw const wanted) == 0
    }
}
