//! The tail file: memory for the windows that are being filled, which outlives a kill.
//!
//! Mapped memory of a file that is made shorter is a SIGBUS at the next store. So the trace, which
//! people handle, is not mapped: this file is. It has a hidden name and a mode that keeps even its
//! owner from making it shorter by mistake. Its windows are used again as soon as they are in the
//! trace, and it goes at the orderly end.

use super::descriptor::{Descriptor, allocate, within_limit, write};
use super::failure::{Failure, errno};
use crate::runtime::fallible::TryPush;
use crate::runtime::faults::{Site, pages_granted};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::tail::{TAIL_START, name};
use vramtrace_format::{HEADER_BYTES, SLOT, StopReason};

const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const TMPFS: u64 = 0x0102_1994;
const OVERLAY: u64 = 0x794C_7630;

pub struct Tail {
    descriptor: Descriptor,
    length: u64,
    /// Whether a page is cheaper to write first than to touch: on a disk, a touch of a page that
    /// has blocks and no contents goes through the filesystem by itself (5 us; written in bulk
    /// before, 1 us).
    write_first: bool,
    /// Mapped ranges that hold no window.
    free: Vec<Range>,
}

#[derive(Clone, Copy)]
struct Range {
    memory: *mut u8,
    bytes: usize,
}

impl Tail {
    /// Beside the trace. `None`: the filesystem has no memory that a store cannot fail in.
    pub fn create(trace: &Path, page: &[u8; HEADER_BYTES], tag: u64) -> Option<Tail> {
        let file = trace.file_name().unwrap_or_default();
        let path = trace.with_file_name(OsStr::from_bytes(&name(file.as_bytes(), tag)));
        // Only reading: nobody can make it shorter by mistake.
        let descriptor = Descriptor::create(path, 0o400).ok()?;
        let made = descriptor.with(|number, _| {
            let why = Failure { reason: StopReason::MapFailed, errno: libc::EOPNOTSUPP };
            let write_first = is_mappable(number).ok_or(why)?;
            within_limit(HEADER_BYTES as u64)?;
            // SAFETY: the page is readable. The lock is a sign for others that this process lives.
            unsafe {
                libc::flock(number, libc::LOCK_EX | libc::LOCK_NB);
                write(number, &[(page.as_ptr(), page.len())], 0)?;
            }
            Ok(write_first)
        });
        let Ok(write_first) = made else {
            descriptor.remove();
            return None;
        };
        let mut tail =
            Tail { descriptor, length: TAIL_START as u64, write_first, free: Vec::new() };
        match tail.grow(SLOT) {
            Ok(memory) => tail.give(memory, SLOT),
            Err(_) => {
                tail.remove();
                return None;
            }
        }
        Some(tail)
    }

    /// Zeroed memory for a window.
    pub fn take(&mut self, bytes: usize) -> Result<*mut u8, Failure> {
        let Some(at) = self.free.iter().position(|range| range.bytes == bytes) else {
            return self.grow(bytes);
        };
        let range = self.free.swap_remove(at);
        // SAFETY: nobody uses a range that was given back.
        unsafe { range.memory.write_bytes(0, range.bytes) };
        Ok(range.memory)
    }

    /// Memory of a window that is in the trace: from here on it is none of the tail's.
    pub fn give(&mut self, memory: *mut u8, bytes: usize) {
        // SAFETY: our mapping, aligned to a page. What comes before a kill must come in order: no
        // window, then other contents.
        unsafe { &*memory.cast::<AtomicU64>() }.store(0, Ordering::SeqCst);
        // Without memory for it the range is used no more: the tail grows instead.
        let _ = self.free.try_push(Range { memory, bytes });
    }

    /// The name goes; what is mapped stays.
    pub fn remove(self) {
        self.descriptor.remove();
    }

    /// Blocks at the end, mapped and touched: from here on stores to it cannot fail.
    fn grow(&mut self, bytes: usize) -> Result<*mut u8, Failure> {
        let offset = self.length;
        within_limit(offset + bytes as u64)?;
        let memory = self.descriptor.with(|number, _| {
            allocate(number, 0, offset, bytes as u64)?;
            if self.write_first {
                write_zeros(number, offset, bytes);
            }
            map(number, offset, bytes)
        })?;
        self.length = offset + bytes as u64;
        Ok(memory)
    }
}

fn map(number: i32, offset: u64, bytes: usize) -> Result<*mut u8, Failure> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    if !pages_granted(Site::Tail) {
        return Err(Failure { reason: StopReason::MapFailed, errno: libc::ENOMEM });
    }
    // SAFETY: a fresh mapping; touches nothing that exists.
    unsafe {
        let shared = libc::MAP_SHARED;
        let at = libc::mmap(null_mut(), bytes, access, shared, number, offset as libc::off_t);
        if at == libc::MAP_FAILED {
            return Err(Failure::last(StopReason::MapFailed));
        }
        if let Err(failure) = populate(at.cast(), bytes) {
            libc::munmap(at, bytes);
            return Err(failure);
        }
        Ok(at.cast())
    }
}

/// Mapping is for filesystems where blocks given ahead stay: a store can then not run into a full
/// disk. Those that copy on write need new blocks for a page that was written back (btrfs, also
/// below an overlay: it alone tells of no inodes), and a store would be a SIGBUS.
///
/// True: on a disk.
fn is_mappable(number: i32) -> Option<bool> {
    // SAFETY: fstatfs fills what it is given.
    unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(number, &mut info) != 0 {
            return None;
        }
        match info.f_type as u64 & 0xFFFF_FFFF {
            TMPFS => Some(false),
            EXT | XFS => Some(true),
            OVERLAY if info.f_files != 0 => Some(true),
            _ => None,
        }
    }
}

/// Fills a range that was given blocks and that nobody has written: makes its pages in bulk.
/// Where that does not succeed, they are made one by one when they are touched.
fn write_zeros(number: i32, offset: u64, bytes: usize) {
    static ZEROS: [u8; 16 << 10] = [0; 16 << 10];
    let one = libc::iovec { iov_base: ZEROS.as_ptr() as *mut _, iov_len: ZEROS.len() };
    let parts = [one; 64];
    let mut done = 0;
    while done < bytes {
        let count = ((bytes - done) / ZEROS.len()).min(parts.len());
        let at = (offset + done as u64) as libc::off_t;
        // SAFETY: only reads the zeros, and stays inside the range.
        let wrote = unsafe { libc::pwritev(number, parts.as_ptr(), count as i32, at) };
        // Whole parts only; a signal's interruption is not worth another try.
        if wrote <= 0 || !(wrote as usize).is_multiple_of(ZEROS.len()) {
            return;
        }
        done += wrote as usize;
    }
}

/// Touches every page for writing, so that an error shows here and not as a SIGBUS at a store.
///
/// # Safety
/// The range is a mapping of ours.
unsafe fn populate(at: *mut u8, bytes: usize) -> Result<(), Failure> {
    loop {
        // SAFETY: as the caller says; the contents stay.
        if unsafe { libc::madvise(at.cast(), bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        match errno() {
            libc::EINTR | libc::EAGAIN => {}
            // Before Linux 5.14: the blocks are there, which is what a store needs.
            libc::EINVAL => return Ok(()),
            libc::EFAULT => {
                return Err(Failure { reason: StopReason::DiskFull, errno: libc::EFAULT });
            }
            errno => return Err(Failure::of(errno, StopReason::MapFailed)),
        }
    }
}
