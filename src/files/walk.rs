//! Where a path leads to which something is written. Another user who may write a directory of the path can put a link
//! there at any time. So each part is opened in the directory that was opened before it, without following links; and
//! a link is followed only if root or this user made it. What was opened is not looked up again.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, fstatfs};
use rustix::io::Errno;

use super::directory::{Directory, link_text};

/// How many symbolic links are followed: as many as the kernel follows.
const LINKS: u32 = 40;

/// The end of a path.
#[derive(Debug)]
pub(super) enum End {
    /// A name in a directory.
    At(DirectoryEntry),
    /// A descriptor that is open in this process, such as `/dev/stdout`.
    Descriptor(RawFd),
}

#[derive(Debug)]
pub(super) struct DirectoryEntry {
    pub directory: Directory,
    pub name: OsString,
    /// What has this name, opened with O_PATH.
    pub there: Option<File>,
    /// The last part of the path is a link, and this is where it leads.
    pub is_link: bool,
}

impl End {
    pub(super) fn place(self) -> io::Result<DirectoryEntry> {
        match self {
            End::At(place) => Ok(place),
            End::Descriptor(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    /// Of a path that ends with `.`.
    pub(super) fn directory(self) -> io::Result<Directory> {
        self.place()?.there.map(Directory).ok_or_else(|| ErrorKind::NotFound.into())
    }
}

/// Whether root or this user owns it.
pub(super) fn is_trusted(about: &Metadata) -> bool {
    // SAFETY: has no arguments and always succeeds.
    about.uid() == 0 || about.uid() == unsafe { libc::geteuid() }
}

/// Follows a path. `make`: the mode of directories that are made where they are missing.
pub(super) fn walk(path: &Path, make: Option<Mode>) -> io::Result<End> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT.into());
    }
    let (mut at, mut rest) = (Directory::begin_of(path)?, reversed(path));
    let (mut links, mut is_link) = (0, false);
    loop {
        let name = rest.pop().unwrap_or_else(|| ".".into());
        let is_last = rest.is_empty();
        let mut found = match (find(&at, &name, is_last), make) {
            (Err(error), _) if error.kind() == ErrorKind::NotFound && is_last => {
                return Ok(End::At(DirectoryEntry { directory: at, name, there: None, is_link }));
            }
            (Err(error), Some(mode)) if error.kind() == ErrorKind::NotFound => {
                // Another process may make it at the same time.
                let _ = at.make_directory(&name, mode.bits());
                at.find(&name, OFlags::empty())?
            }
            (found, _) => found?,
        };
        let about = found.metadata()?;
        if about.is_symlink() {
            let of_proc = fstatfs(&found)?.f_type == PROC_SUPER_MAGIC;
            if let Some(number) = at.descriptor(&name).filter(|_| of_proc && is_last) {
                return Ok(End::Descriptor(number));
            }
            links += 1;
            if links > LINKS {
                return Err(Errno::LOOP.into());
            }
            if !is_trusted(&about) {
                return Err(io::Error::other(format!(
                    "leads through `{}`, a symbolic link of another user (uid {}): give the path behind it",
                    name.display(),
                    about.uid()
                )));
            }
            if !of_proc {
                let to = link_text(&found)?;
                at = if to.is_absolute() { Directory::begin_of(&to)? } else { at };
                is_link |= is_last;
                rest.extend(reversed(&to));
                continue;
            }
            // It may stand for a file without a path, and nobody can replace it.
            found = at.open_at(&name, OFlags::PATH)?;
        }
        if is_last {
            return Ok(End::At(DirectoryEntry {
                directory: at,
                name,
                there: Some(found),
                is_link,
            }));
        }
        at = Directory(found);
    }
}

/// The parts of a path, the last one first. An empty part is that of `/a`, `a//b` or `a/`.
fn reversed(path: &Path) -> Vec<OsString> {
    let name = |part: &[u8]| OsString::from_vec(if part.is_empty() { b"." } else { part }.to_vec());
    path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').map(name).collect()
}

/// What has this name. O_DIRECTORY makes an automounter mount it.
fn find(at: &Directory, name: &OsStr, is_last: bool) -> io::Result<File> {
    let flags = if is_last { OFlags::empty() } else { OFlags::DIRECTORY };
    at.find(name, flags).or_else(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::LOOP) => at.find(name, OFlags::empty()),
        _ => Err(error),
    })
}
