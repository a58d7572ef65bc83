//! Directories in memory, for pages that only this user may access. In another user's directory that
//! user could change the cap; in a directory on a disk, a store into a page could wait for the disk.

use crate::runtime::errno;
use crate::runtime::fallible::TryPush;
use crate::runtime::private_table::{Opened, Table};
use crate::runtime::system;
use std::ffi::{CStr, CString};
use std::fmt;
use vramtrace_format::size::Bytes;

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
    /// It is not a regular file, or has more than one hard link.
    NotPlain,
    /// For shared memory.
    OtherSize,
}

impl Wrong {
    /// Whether a user can correct it: the place exists, with wrong properties. If the system lacks the
    /// place, nothing is reported.
    pub fn is_correctable(&self) -> bool {
        match self {
            Wrong::Errno(errno) => matches!(*errno, libc::ELOOP | libc::ENOTDIR),
            Wrong::Owner(_) | Wrong::Mode(_) | Wrong::NotPlain => true,
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
            Wrong::Errno(libc::ENOSPC) => write!(f, "cannot be created: {}", Full),
            Wrong::Errno(errno) => write!(f, "cannot be used: errno {errno}"),
            Wrong::Owner(owner) => {
                write!(f, "belongs to user {owner}, not to you; that user or root must remove it")
            }
            Wrong::Mode(mode) => write!(f, "is open to others (mode {mode:o}); chmod go-rwx it"),
            Wrong::NotInMemory => write!(f, "is not on a tmpfs; mount a tmpfs at /dev/shm"),
            Wrong::NotPlain => {
                write!(f, "is not a regular file with a single hard link; remove it")
            }
            Wrong::OtherSize => write!(f, "has an unexpected size"),
        }
    }
}

/// The text `/dev/shm is full (64.00 MiB, 16384 files)`. 64 MiB is the default size in Docker.
struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        // SAFETY: a C string and a struct of our own.
        let (result, fs) = unsafe {
            let mut fs: libc::statvfs = std::mem::zeroed();
            (libc::statvfs(c"/dev/shm".as_ptr(), &mut fs), fs)
        };
        match result {
            0 => write!(
                f,
                "/dev/shm is full ({}, {} files); remove files from it, or enlarge it",
                Bytes(fs.f_blocks.saturating_mul(fs.f_frsize)),
                fs.f_files
            ),
            _ => write!(f, "/dev/shm is full"),
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
    let opened = table.open_in(directory, name, flags, 0o600);
    opened.map_err(|errno| open_error(Some(directory), name, errno))
}

/// Removes a file from a directory.
pub fn remove(directory: &Opened, name: &CStr) -> Result<(), Wrong> {
    // SAFETY: a C string.
    match unsafe { libc::unlinkat(directory.number(), name.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

/// Opens a directory that must be this user's, not accessible to others, no link, and in memory.
/// Creates it if it does not exist.
pub fn directory<'t>(table: &'t Table, path: &[u8]) -> Result<Opened<'t>, Wrong> {
    let opened = opened(table, None, &c_string(path)?)?;
    checked_stat(&opened)?;
    match system::fstatfs(opened.number()) {
        Some(fs) if fs.f_type as u64 == TMPFS => Ok(opened),
        Some(_) => Err(Wrong::NotInMemory),
        None => Err(errno()),
    }
}

/// As [`directory`], for a directory inside one that was checked.
pub fn directory_in<'t>(
    table: &'t Table,
    directory: &Opened,
    name: &CStr,
) -> Result<Opened<'t>, Wrong> {
    let opened = opened(table, Some(directory), name)?;
    checked_stat(&opened)?;
    Ok(opened)
}

/// Follows no link at the end.
fn opened<'t>(
    table: &'t Table,
    directory: Option<&Opened>,
    name: &CStr,
) -> Result<Opened<'t>, Wrong> {
    // SAFETY: a C string.
    let made = unsafe { libc::mkdirat(number(directory), name.as_ptr(), 0o700) };
    let why_not_made = errno();
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let opened = match directory {
        Some(directory) => table.open_in(directory, name, flags, 0),
        None => table.open(name, flags, 0),
    };
    opened.map_err(|errno| match errno {
        libc::ENOENT if made != 0 => why_not_made,
        _ => open_error(directory, name, errno),
    })
}

fn number(directory: Option<&Opened>) -> i32 {
    directory.map_or(libc::AT_FDCWD, Opened::number)
}

/// The names in an open directory. It must not be read elsewhere through this descriptor. `opendir` is
/// not used, because it would call the program's malloc. The path is not used, because it may lead
/// elsewhere by now.
pub fn names(directory: &Opened) -> Result<Vec<CString>, Wrong> {
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let (mut names, mut entries) = (Vec::new(), vec![0u8; 4096]);
    loop {
        let (to, room) = (entries.as_mut_ptr(), entries.len());
        // SAFETY: room for as many bytes.
        let got = unsafe { libc::syscall(libc::SYS_getdents64, directory.number(), to, room) };
        let mut rest = match usize::try_from(got) {
            Ok(0) => return Ok(names),
            Ok(got) => &entries[..got],
            Err(_) => return Err(errno()),
        };
        while let Some([low, high]) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
            let (entry, next) = rest.split_at(u16::from_ne_bytes([*low, *high]).into());
            let name = CStr::from_bytes_until_nul(&entry[NAME_AT..]).unwrap_or_default();
            if name != c"." && name != c".." {
                names.try_push(name.into()).map_err(|_| Wrong::Errno(libc::ENOMEM))?;
            }
            rest = next;
        }
    }
}

/// The attributes of an open file or directory, if owner and mode are right.
pub fn checked_stat(opened: &Opened) -> Result<libc::stat, Wrong> {
    let stat = system::fstat(opened.number()).ok_or_else(errno)?;
    if stat.st_uid != user() {
        return Err(Wrong::Owner(stat.st_uid));
    }
    match stat.st_mode & 0o077 {
        0 => Ok(stat),
        _ => Err(Wrong::Mode(stat.st_mode & 0o777)),
    }
}

/// The reason of a failed open.
fn open_error(directory: Option<&Opened>, name: &CStr, errno: i32) -> Wrong {
    let why = Wrong::Errno(errno);
    if errno != libc::EACCES {
        return why;
    }
    match system::stat_of_name(number(directory), name) {
        Some(stat) if stat.st_uid != user() => Wrong::Owner(stat.st_uid),
        _ => why,
    }
}

/// The effective user.
pub fn user() -> u32 {
    // SAFETY: has no arguments and always succeeds.
    unsafe { libc::geteuid() }
}

pub fn errno() -> Wrong {
    Wrong::Errno(errno::get())
}

pub fn c_string(text: &[u8]) -> Result<CString, Wrong> {
    CString::new(text).map_err(|_| Wrong::Errno(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::private_table;

    #[test]
    fn all_names_of_a_directory_are_reported() {
        let path = std::env::temp_dir().join(format!("vramtrace-names-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let mut expected: Vec<CString> =
            (0..300).map(|n| CString::new(format!("{n}{}", "x".repeat(n % 90))).unwrap()).collect();
        expected
            .iter()
            .for_each(|name| std::fs::write(path.join(name.to_str().unwrap()), "").unwrap());
        let name = c_string(path.to_str().unwrap().as_bytes()).unwrap();
        let read = |table: &Table| names(&opened(table, None, &name).unwrap());
        let mut found = private_table::run(read).unwrap().unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
}
