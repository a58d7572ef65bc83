//! System calls on descriptors of a task ([`crate::runtime::private_table`]), made directly. The C library's functions may
//! be wrapped: a preloaded library would run its code in the task, and ThreadSanitizer takes the task's numbers for those
//! of the program and sees races where two tasks use one stack after the other.

use core::ffi::{CStr, c_int, c_long};
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU64;
use libc::syscall;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The working directory, for the calls that take a directory.
// SAFETY: a number by which the kernel knows it, and which is never another file's.
pub const WORKING_DIRECTORY: BorrowedFd = unsafe { BorrowedFd::borrow_raw(libc::AT_FDCWD) };

fn number(file: impl AsFd) -> c_int {
    file.as_fd().as_raw_fd()
}

pub fn openat(directory: impl AsFd, name: &CStr, flags: c_int, mode: libc::mode_t) -> c_int {
    let directory = number(directory);
    // SAFETY: a C string.
    unsafe { syscall(libc::SYS_openat, directory, name.as_ptr(), flags, mode) as c_int }
}

pub fn close(number: c_int) -> c_int {
    // SAFETY: takes no pointers.
    unsafe { syscall(libc::SYS_close, number) as c_int }
}

/// `None`: errno says why.
pub fn fstat(file: impl AsFd) -> Option<libc::stat> {
    // SAFETY: fills the structure: on machines of 64 bits the C library's is the kernel's.
    filled(|stat| unsafe { syscall(libc::SYS_fstat, number(file), stat) })
}

/// A structure that a system call fills.
fn filled<T>(call: impl FnOnce(*mut T) -> c_long) -> Option<T> {
    let mut about = MaybeUninit::zeroed();
    // SAFETY: these are structures of numbers, for which zeros are a value.
    (call(about.as_mut_ptr()) == 0).then(|| unsafe { about.assume_init() })
}

pub fn ftruncate(file: impl AsFd, length: u64) -> bool {
    // SAFETY: takes no pointers.
    unsafe { syscall(libc::SYS_ftruncate, number(file), length) == 0 }
}

pub fn fchmod(file: impl AsFd, mode: libc::mode_t) -> bool {
    // SAFETY: takes no pointers.
    unsafe { syscall(libc::SYS_fchmod, number(file), mode) == 0 }
}

pub fn flock(file: impl AsFd, how: c_int) -> bool {
    // SAFETY: takes no pointers.
    unsafe { syscall(libc::SYS_flock, number(file), how) == 0 }
}

pub fn unlink(directory: impl AsFd, name: &CStr) -> bool {
    // SAFETY: a C string.
    unsafe { syscall(libc::SYS_unlinkat, number(directory), name.as_ptr(), 0) == 0 }
}

/// Whether a process, or one that has ended and was not waited for, has this pid.
pub fn exists(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    // SAFETY: takes no pointers; signal 0 only checks that the pid exists.
    unsafe { syscall(libc::SYS_kill, pid, 0) == 0 || super::errno::get() != libc::ESRCH }
}

/// Of the name itself, if it is a link. `None`: errno says why.
pub fn stat_of_name(directory: impl AsFd, name: &CStr) -> Option<libc::stat> {
    let (directory, flags) = (number(directory), libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: a C string, and a structure as above.
    filled(|stat| unsafe { syscall(libc::SYS_newfstatat, directory, name.as_ptr(), stat, flags) })
}

/// A limit of this process's. `None`: it is not known.
pub fn limit(of: libc::__rlimit_resource_t) -> Option<u64> {
    unsafe extern "C" {
        safe fn getrlimit(of: libc::__rlimit_resource_t, limit: &mut libc::rlimit) -> c_int;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    (getrlimit(of, &mut limit) == 0).then_some(limit.rlim_cur)
}

pub fn fstatfs(file: impl AsFd) -> Option<libc::statfs> {
    // SAFETY: as above.
    filled(|stat| unsafe { syscall(libc::SYS_fstatfs, number(file), stat) })
}

/// What the kernel answers about a shared segment: a number, and for some commands a record. `None`: errno says why.
pub fn segment_control(id: c_int, command: c_int) -> Option<(c_int, libc::shmid_ds)> {
    let mut number = -1;
    let stat = filled(|stat: *mut libc::shmid_ds| {
        // SAFETY: there is room for each command's answer, which is no longer than this one.
        number = unsafe { syscall(libc::SYS_shmctl, id, command, stat) } as c_int;
        c_long::from(number.min(0))
    })?;
    Some((number, stat))
}

pub fn read(file: impl AsFd, into: &mut [u8]) -> isize {
    // SAFETY: the slice is writable.
    unsafe { syscall(libc::SYS_read, number(file), into.as_mut_ptr(), into.len()) as isize }
}

pub fn write(file: impl AsFd, from: &[u8]) -> isize {
    // SAFETY: the slice is readable.
    unsafe { syscall(libc::SYS_write, number(file), from.as_ptr(), from.len()) as isize }
}

pub fn pread(file: impl AsFd, into: &mut [u8], at: i64) -> isize {
    // SAFETY: the slice is writable.
    unsafe { syscall(libc::SYS_pread64, number(file), into.as_mut_ptr(), into.len(), at) as isize }
}

/// What is written. While other threads store words, old or new ones are written.
#[derive(Clone, Copy)]
pub enum Part<'a> {
    Bytes(&'a [u8]),
    Words(&'a [AtomicU64]),
}

impl Part<'_> {
    pub fn size(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Words(words) => size_of_val(*words),
        }
    }
}

/// Writes what is behind the first `done` bytes of the part.
pub fn pwrite(file: impl AsFd, part: Part, done: usize, at: i64) -> isize {
    let from: *const u8 = match part {
        Part::Bytes(bytes) => bytes.as_ptr(),
        Part::Words(words) => words.as_ptr().cast(),
    };
    let (from, rest) = (from.wrapping_add(done), part.size().saturating_sub(done));
    // SAFETY: the rest of the part is readable.
    unsafe { syscall(libc::SYS_pwrite64, number(file), from, rest, at) as isize }
}
