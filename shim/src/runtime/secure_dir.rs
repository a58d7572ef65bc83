//! Directories in memory, for pages that only this user may access. In another user's directory that
//! user could change the cap; in a directory on a disk, a store into a page could wait for the disk.

use crate::runtime::errno;
use crate::runtime::private_table::{Opened, Table};
use crate::runtime::system;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::AsFd;

const TMPFS: u64 = 0x0102_1994;

/// Why a directory, file or segment is not used. The message follows its path, and says what would be
/// right.
#[derive(Debug, PartialEq, Eq)]
pub enum Wrong {
    Errno(i32),
    /// It belongs to this other user.
    Owner(u32),
    /// Others may access it.
    Mode(u32),
    NotInMemory,
    /// For shared memory.
    OtherSize,
}

impl Wrong {
    /// Whether a user can correct it: the place exists, with wrong properties. If the system lacks the
    /// place, nothing is reported.
    pub fn is_correctable(&self) -> bool {
        match self {
            Wrong::Errno(errno) => matches!(*errno, libc::ELOOP | libc::ENOTDIR),
            Wrong::Owner(_) | Wrong::Mode(_) => true,
            Wrong::NotInMemory | Wrong::OtherSize => false,
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Wrong::Errno(errno @ (libc::ELOOP | libc::ENOTDIR)) => {
                write!(f, "is a link, or not a directory (errno {errno}); remove it")
            }
            Wrong::Owner(owner) => {
                write!(f, "belongs to user {owner}, not to you; that user or root must remove it")
            }
            Wrong::Mode(mode) => write!(f, "is open to others (mode {mode:o}); chmod go-rwx it"),
            // Not reported: see `is_correctable`.
            Wrong::Errno(_) | Wrong::NotInMemory | Wrong::OtherSize => write!(f, "cannot be used"),
        }
    }
}

/// Opens a file in a directory, or creates it with mode 0600. Follows no link.
pub fn open<'t>(
    table: &'t Table,
    directory: &Opened,
    name: &CStr,
    flags: i32,
) -> Result<Opened<'t>, Wrong> {
    let opened = table.open_from(directory, name, flags | libc::O_NOFOLLOW, 0o600);
    opened.map_err(|errno| open_error(directory, name, errno))
}

/// Opens a directory that must be this user's, not accessible to others, no link, and in memory.
/// Creates it if it does not exist.
pub fn directory<'t>(table: &'t Table, path: &[u8]) -> Result<Opened<'t>, Wrong> {
    let path = c_string(path)?;
    // SAFETY: a C string.
    let made = unsafe { libc::mkdir(path.as_ptr(), 0o700) };
    let why_not_made = errno();
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let opened = table.open(&path, flags, 0).map_err(|errno| match errno {
        libc::ENOENT if made != 0 => why_not_made,
        _ => open_error(system::WORKING_DIRECTORY, &path, errno),
    })?;
    checked_stat(&opened)?;
    match system::fstatfs(&opened).ok_or_else(errno)?.f_type as u64 {
        TMPFS => Ok(opened),
        _ => Err(Wrong::NotInMemory),
    }
}

/// The attributes of an open file or directory, if owner and mode are right.
pub fn checked_stat(opened: &Opened) -> Result<libc::stat, Wrong> {
    let stat = system::fstat(opened).ok_or_else(errno)?;
    match stat.st_mode & 0o777 {
        _ if stat.st_uid != user() => Err(Wrong::Owner(stat.st_uid)),
        mode if mode & 0o077 != 0 => Err(Wrong::Mode(mode)),
        _ => Ok(stat),
    }
}

/// The reason of a failed open.
fn open_error(directory: impl AsFd, name: &CStr, errno: i32) -> Wrong {
    let stat = match errno {
        libc::EACCES => system::stat_of_name(directory, name),
        _ => None,
    };
    match stat {
        Some(stat) if stat.st_uid != user() => Wrong::Owner(stat.st_uid),
        _ => Wrong::Errno(errno),
    }
}

/// The effective user.
pub fn user() -> u32 {
    unsafe extern "C" {
        safe fn geteuid() -> u32;
    }
    geteuid()
}

pub fn errno() -> Wrong {
    Wrong::Errno(errno::get())
}

pub fn c_string(text: &[u8]) -> Result<CString, Wrong> {
    CString::new(text).map_err(|_| Wrong::Errno(libc::EINVAL))
}
