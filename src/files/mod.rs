//! Opens files whose names come from a directory, a trace or the command line, and makes the files that the command
//! writes: all of them (`cargo test --test architecture` checks it), because who writes the directory or the trace may
//! be somebody else:
//!
//! * A FIFO, a device, a socket or a file of a kernel file system ([`open`] and [`Directory::open`]) is an error before
//!   it is opened: opening a FIFO waits for a writer, and opening a device may act on it.
//! * Reading has a limit ([`read`], [`read_given`]), so that a sparse file or /dev/zero does not fill the memory.
//! * A mapped file that somebody makes shorter reads as zeros, and [`Map::cut_at`] says so.
//! * Nothing is made, replaced, truncated or given another mode outside of the directory that was opened for it
//!   ([`Directory::to_write`], [`Output`]), to which a path leads through links of root and this user alone. Who may
//!   write that directory may replace what is in it.

pub mod append;
mod directory;
mod gzip;
mod map;
mod output;
mod walk;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, fstatfs};
use rustix::io::Errno;
use tempfile::{NamedTempFile, TempDir};

pub use directory::Directory;
pub use gzip::{GZIP, unpack};
pub use map::Map;
pub use output::{Output, put};

/// Maximum size in bytes of a file of /proc or /sys. The mappings of a process have 10 MB where it has 65,530.
const MAX_KERNEL_FILE_BYTES: u64 = 1 << 30;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// For reading and writing.
    Write,
}

/// Opens a regular file for reading. Links are followed.
pub fn open(path: &Path) -> io::Result<File> {
    // O_PATH opens neither a FIFO nor a device.
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    match reopen(&found, Access::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open_same(&found, path),
        opened => opened,
    }
}

/// Opens a regular file of this user for reading. A link as the last part of the path is an error.
pub fn open_of(owner: u32, path: &Path) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file =
        reopen(&OpenOptions::new().read(true).custom_flags(flags).open(path)?, Access::Read)?;
    match file.metadata()?.uid() == owner {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "belongs to another user")),
    }
}

/// Where /proc is not mounted: opens the path again, if it still leads to this file.
fn open_same(found: &File, path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match identity(found)? == identity(&opened)? {
        true => Ok(opened),
        false => Err(io::Error::other("was replaced while it was opened")),
    }
}

/// All bytes of a regular file. An error if there are more than `most`.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    bounded(open(path)?, most)
}

/// All bytes of a file that the command line names: also of a pipe, such as `<(zcat FILE)`. An error if there are more
/// than `most`.
pub fn read_given(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    bounded(File::open(path)?, most)
}

/// As [`read_given`], for text.
pub fn read_given_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read_given(path, most)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// All bytes of a file of /proc or /sys.
pub fn read_kernel(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    debug_assert!(path.starts_with("/proc") || path.starts_with("/sys"), "{}", path.display());
    bounded(File::open(path)?, MAX_KERNEL_FILE_BYTES)
}

/// As [`read_kernel`], for text. `None`: it cannot be read.
pub fn kernel_text(path: impl AsRef<Path>) -> Option<String> {
    Some(String::from_utf8_lossy(&read_kernel(path).ok()?).into_owned())
}

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn bounded(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("has more than {}", crate::units::size(most)))),
        false => Ok(bytes),
    }
}

/// Opens what an O_PATH descriptor refers to, if it is a regular file.
fn reopen(found: &File, access: Access) -> io::Result<File> {
    let kind = found.metadata()?.file_type();
    let what = match () {
        // As the kernel says it.
        () if kind.is_symlink() => return Err(io::Error::from_raw_os_error(libc::ELOOP)),
        () if kind.is_dir() => "is a directory, not a regular file",
        () if kind.is_fifo() => "is a FIFO, not a regular file",
        () if kind.is_socket() => "is a socket, not a regular file",
        () if !kind.is_file() => "is a device, not a regular file",
        () if is_of_kernel(found) => "is a file of the kernel, not on a disk",
        () => {
            let mut options = OpenOptions::new();
            options.read(true).write(access == Access::Write);
            // A lease of another process would make the open wait.
            return options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path_of(found));
        }
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// What stays the same as long as the file is open.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|about| (about.dev(), about.ino()))
}

/// A path that leads to what is open.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Gives an open file this mode.
pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// A new file in the temporary directory, mode 0600, which goes when this is dropped.
pub fn temporary_file() -> io::Result<NamedTempFile> {
    NamedTempFile::new()
}

/// A new directory in the temporary directory or another place, mode 0700, which goes when this is dropped; with
/// symbolic links in it.
pub fn temporary_directory(
    prefix: &str,
    place: Option<&Path>,
    links: &[(&str, &Path)],
) -> io::Result<TempDir> {
    let place = place.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(place)?;
    let (above, name) = Directory::of(made.path())?;
    let inside = above.own_directory(name)?;
    links.iter().try_for_each(|(name, to)| inside.make_link(name.as_ref(), to))?;
    Ok(made)
}

/// Whether the file is on a file system of the kernel, in which regular files may wait, act or have no end.
fn is_of_kernel(file: &File) -> bool {
    const SYSTEMS: [u64; 11] = [
        0x9FA0,      // proc
        0x6265_6572, // sysfs
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0x7363_6673, // securityfs
        0xCAFE_4A11, // bpf
        0x6267_7270, // cgroup2
        0x0027_E0EB, // cgroup
        0x6165_676C, // pstore
        0xF97C_FF8C, // selinuxfs
        0xDE5E_81E4, // efivarfs
    ];
    fstatfs(file).is_ok_and(|about| SYSTEMS.contains(&(about.f_type as u64 & 0xFFFF_FFFF)))
}

/// Takes the lock on a file or directory (flock) if nobody has it. It ends with the last descriptor that shares this
/// opening: at the latest with the process.
pub fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes the lock, and waits for others at most so long. `Ok(false)`: one of them still has it.
pub fn lock_within(file: &File, time: Duration) -> io::Result<bool> {
    let until = Instant::now() + time;
    loop {
        match try_lock(file) {
            Ok(false) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    pub(super) fn fifo(path: &Path) {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn only_a_regular_file_is_opened() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let why = |path: &Path| open(path).unwrap_err().to_string();
        std::fs::write(at("file"), "text").unwrap();
        symlink("file", at("link")).unwrap();
        assert_eq!(read(&at("link"), 4).unwrap(), b"text");
        assert!(read(&at("file"), 3).unwrap_err().to_string().contains("more than 3 B"));
        fifo(&at("fifo"));
        assert!(why(&at("fifo")).contains("a FIFO"));
        symlink("/dev/zero", at("zero")).unwrap();
        assert!(why(&at("zero")).contains("a device"));
        assert!(why(place.path()).contains("a directory"));
        assert!(why(Path::new("/proc/self/maps")).contains("of the kernel"));
        symlink("loop", at("loop")).unwrap();
        assert_eq!(open(&at("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(open(&at("gone")).unwrap_err().kind(), io::ErrorKind::NotFound);
        // What the user names may be a device; its bytes are counted all the same.
        assert!(read_given(&at("zero"), 100).is_err());
        assert!(!read_kernel("/proc/self/maps").unwrap().is_empty());
    }
}
