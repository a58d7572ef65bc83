//! Places for pages that only this user may change: a cap could be anybody's otherwise, and a store
//! into a page could wait for a disk.

use std::ffi::{CStr, CString};
use std::fmt;

const TMPFS: u64 = 0x0102_1994;

/// Why a place is not used; after its path, a sentence that says what would be right.
#[derive(Debug, PartialEq, Eq)]
pub enum Wrong {
    Errno(i32),
    Owner(u32),
    Mode(u32),
    NotInMemory,
    NotPlain,
}

impl Wrong {
    /// Somebody made it so; it is not just a system without such a place.
    pub fn is_somebodys_doing(&self) -> bool {
        match self {
            Wrong::Errno(errno) => matches!(*errno, libc::ELOOP | libc::ENOTDIR),
            Wrong::Owner(_) | Wrong::Mode(_) | Wrong::NotPlain => true,
            Wrong::NotInMemory => false,
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Wrong::Errno(errno @ (libc::ELOOP | libc::ENOTDIR)) => {
                write!(f, "is a link or no directory (errno {errno}); remove it")
            }
            Wrong::Errno(errno) => write!(f, "cannot be used: errno {errno}"),
            Wrong::Owner(owner) => {
                write!(f, "belongs to user {owner}; remove it, or have it removed")
            }
            Wrong::Mode(mode) => write!(f, "is open to others (mode {mode:o}); chmod go-rwx it"),
            Wrong::NotInMemory => write!(f, "is not in memory; mount a tmpfs at /dev/shm"),
            Wrong::NotPlain => write!(f, "is no plain file of one name; remove it"),
        }
    }
}

/// Ours, closed to others, no link, in memory; made if need be.
pub fn directory(path: &[u8]) -> Result<i32, Wrong> {
    let name = c_string(path)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: C strings and structs of our own; the descriptor is closed unless it is returned.
    unsafe {
        libc::mkdir(name.as_ptr(), 0o700);
        let descriptor = libc::open(name.as_ptr(), flags);
        if descriptor < 0 {
            return Err(not_opened(libc::AT_FDCWD, &name));
        }
        let mut fs: libc::statfs = std::mem::zeroed();
        let judged = judged(descriptor).and_then(|_| match libc::fstatfs(descriptor, &mut fs) {
            0 if fs.f_type as u64 == TMPFS => Ok(descriptor),
            0 => Err(Wrong::NotInMemory),
            _ => Err(errno()),
        });
        if judged.is_err() {
            libc::close(descriptor);
        }
        judged
    }
}

/// Owner and mode are as they must be.
pub fn judged(descriptor: i32) -> Result<libc::stat, Wrong> {
    // SAFETY: a struct of our own.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(descriptor, &mut stat) != 0 {
            return Err(errno());
        }
        if stat.st_uid != libc::geteuid() {
            return Err(Wrong::Owner(stat.st_uid));
        }
        match stat.st_mode & 0o077 {
            0 => Ok(stat),
            _ => Err(Wrong::Mode(stat.st_mode & 0o777)),
        }
    }
}

/// Why an open failed, where errno has just been set by it.
pub fn not_opened(directory: i32, name: &CStr) -> Wrong {
    let why = errno();
    if why != Wrong::Errno(libc::EACCES) {
        return why;
    }
    // SAFETY: a C string and a struct of our own.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        match libc::fstatat(directory, name.as_ptr(), &mut stat, flags) {
            0 if stat.st_uid != libc::geteuid() => Wrong::Owner(stat.st_uid),
            _ => why,
        }
    }
}

pub fn errno() -> Wrong {
    // SAFETY: this thread's own.
    Wrong::Errno(unsafe { *libc::__errno_location() })
}

pub fn c_string(text: &[u8]) -> Result<CString, Wrong> {
    CString::new(text).map_err(|_| Wrong::Errno(libc::EINVAL))
}
