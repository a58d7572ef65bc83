//! Directories in memory, for pages that only this user may access. In another user's directory that
//! user could change the cap; in a directory on a disk, a store into a page could wait for the disk.

use crate::runtime::errno;
use crate::runtime::fallible::TryPush;
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

/// An open file or directory; dropping this closes it.
pub struct Descriptor(i32);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: opened by us, and closed once.
        unsafe { libc::close(self.0) };
    }
}

impl Descriptor {
    pub fn number(&self) -> i32 {
        self.0
    }

    /// Opens a file in this directory, or creates it with mode 0600. Follows no link.
    pub fn open(&self, name: &CStr, flags: i32) -> Result<Descriptor, Wrong> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a C string; the result is ours.
        match unsafe { libc::openat(self.0, name.as_ptr(), flags, 0o600) } {
            -1 => Err(open_error(self.0, name)),
            file => Ok(Descriptor(file)),
        }
    }

    /// Removes a file from this directory.
    pub fn remove(&self, name: &CStr) -> Result<(), Wrong> {
        // SAFETY: a C string.
        match unsafe { libc::unlinkat(self.0, name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }
}

/// Opens a directory that must be this user's, not accessible to others, no link, and in memory.
/// Creates it if it does not exist.
pub fn directory(path: &[u8]) -> Result<Descriptor, Wrong> {
    let name = c_string(path)?;
    let descriptor = opened(libc::AT_FDCWD, &name)?;
    checked_stat(&descriptor)?;
    // SAFETY: a struct of our own, for which zeros are a value.
    unsafe {
        let mut fs: libc::statfs = std::mem::zeroed();
        match libc::fstatfs(descriptor.0, &mut fs) {
            0 if fs.f_type as u64 == TMPFS => Ok(descriptor),
            0 => Err(Wrong::NotInMemory),
            _ => Err(errno()),
        }
    }
}

/// As [`directory`], for a directory inside one that was checked.
pub fn directory_in(directory: &Descriptor, name: &CStr) -> Result<Descriptor, Wrong> {
    let descriptor = opened(directory.0, name)?;
    checked_stat(&descriptor)?;
    Ok(descriptor)
}

/// Follows no link at the end.
fn opened(directory: i32, name: &CStr) -> Result<Descriptor, Wrong> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: a C string.
    unsafe {
        let made = libc::mkdirat(directory, name.as_ptr(), 0o700);
        let why_not_made = errno();
        match libc::openat(directory, name.as_ptr(), flags) {
            -1 if made != 0 && errno() == Wrong::Errno(libc::ENOENT) => Err(why_not_made),
            -1 => Err(open_error(directory, name)),
            descriptor => Ok(Descriptor(descriptor)),
        }
    }
}

/// The names in an open directory. It must not be read elsewhere through this descriptor. `opendir` is
/// not used, because it would call the program's malloc. The path is not used, because it may lead
/// elsewhere by now.
pub fn names(directory: &Descriptor) -> Result<Vec<CString>, Wrong> {
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let (mut names, mut entries) = (Vec::new(), vec![0u8; 4096]);
    loop {
        let (to, room) = (entries.as_mut_ptr(), entries.len());
        // SAFETY: room for as many bytes.
        let got = unsafe { libc::syscall(libc::SYS_getdents64, directory.0, to, room) };
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
pub fn checked_stat(descriptor: &Descriptor) -> Result<libc::stat, Wrong> {
    // SAFETY: a struct of our own.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(descriptor.0, &mut stat) != 0 {
            return Err(errno());
        }
        if stat.st_uid != user() {
            return Err(Wrong::Owner(stat.st_uid));
        }
        match stat.st_mode & 0o077 {
            0 => Ok(stat),
            _ => Err(Wrong::Mode(stat.st_mode & 0o777)),
        }
    }
}

/// The reason of a failed open. Must be called right after it, while errno is that of the open.
fn open_error(directory: i32, name: &CStr) -> Wrong {
    let why = errno();
    if why != Wrong::Errno(libc::EACCES) {
        return why;
    }
    // SAFETY: a C string and a struct of our own.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        match libc::fstatat(directory, name.as_ptr(), &mut stat, flags) {
            0 if stat.st_uid != user() => Wrong::Owner(stat.st_uid),
            _ => why,
        }
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

    #[test]
    fn all_names_of_a_directory_are_reported() {
        let path = std::env::temp_dir().join(format!("vramtrace-names-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let mut expected: Vec<CString> =
            (0..300).map(|n| CString::new(format!("{n}{}", "x".repeat(n % 90))).unwrap()).collect();
        expected
            .iter()
            .for_each(|name| std::fs::write(path.join(name.to_str().unwrap()), "").unwrap());
        let opened = opened(libc::AT_FDCWD, &c_string(path.to_str().unwrap().as_bytes()).unwrap());
        let mut found = names(&opened.unwrap()).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert!(names(&Descriptor(-1)).is_err());
    }
}
