//! Finds the tail file of a trace: beside it, or in memory of this host (`format/src/memory.rs`).

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use vramtrace_format::{Header, TailPlace, memory, tail};

use crate::files::{Access, Directory};

/// A directory of traces and the names of its tails, which are read once.
pub(super) struct Beside {
    directory: Option<Directory>,
    tails: OnceCell<Vec<OsString>>,
    /// Whose files are opened, by their whole names only. `None`: anybody's.
    pub owner: Option<u32>,
}

/// An open tail.
pub(super) struct OpenTail<'d> {
    pub file: File,
    name: OsString,
    directory: FoundIn<'d>,
}

enum FoundIn<'d> {
    Beside(&'d Directory),
    Memory(Directory),
}

impl OpenTail<'_> {
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.directory, FoundIn::Memory(_))
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        match &self.directory {
            FoundIn::Beside(directory) => directory.remove(&self.name),
            FoundIn::Memory(directory) => directory.remove(&self.name),
        }
    }
}

impl Beside {
    /// Of the traces in a directory. Without the directory, they have no tails there.
    pub(super) fn at(directory: &Path) -> Beside {
        Beside { directory: Directory::at(directory).ok(), tails: OnceCell::new(), owner: None }
    }

    /// Of one trace, whose tail must be this user's too.
    pub(super) fn of_user(owner: u32, trace: &Path) -> Beside {
        Beside { owner: Some(owner), ..Beside::of(trace) }
    }

    /// Of one trace.
    pub(super) fn of(trace: &Path) -> Beside {
        Beside::at(trace.parent().unwrap_or(Path::new("")))
    }

    /// Of the traces in a directory that is open.
    pub(super) fn inside(directory: Directory) -> Beside {
        Beside { directory: Some(directory), tails: OnceCell::new(), owner: None }
    }

    /// Opens the tail of the trace with this name, file and header.
    pub(super) fn tail(&self, name: &OsStr, trace: &File, header: &Header) -> Option<OpenTail<'_>> {
        match header.tail? {
            TailPlace::Beside => self.tail_beside(name, header.file_tag()),
            TailPlace::Memory => in_memory(trace, header.file_tag()),
        }
    }

    /// By its whole name, else by the end of its name: the trace may have been renamed.
    fn tail_beside(&self, trace: &OsStr, tag: u64) -> Option<OpenTail<'_>> {
        let directory = self.directory.as_ref()?;
        let name = OsStr::from_bytes(&tail::name(trace.as_bytes(), tag)).to_os_string();
        let is_its = |file: &File| {
            self.owner.is_none_or(|owner| file.metadata().is_ok_and(|about| about.uid() == owner))
        };
        if let Some(file) = directory.open(&name, Access::Read).ok().filter(is_its) {
            return Some(OpenTail { file, name, directory: FoundIn::Beside(directory) });
        }
        let end = tail::name_end(tag);
        self.find(|name| name.ends_with(end.as_bytes()))
    }

    /// The tail with such a name, where no other owner is wanted.
    pub(super) fn find(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<OpenTail<'_>> {
        let directory = self.directory.as_ref().filter(|_| self.owner.is_none())?;
        let is_tail = |name: &OsString| name.as_bytes().ends_with(b".tail");
        let read = || directory.names().map(|names| names.filter(is_tail).collect());
        let tails = self.tails.get_or_init(|| read().unwrap_or_default());
        let name = tails.iter().find(|name| wanted(name.as_bytes()))?.clone();
        let file = directory.open(&name, Access::Read).ok()?;
        Some(OpenTail { file, name, directory: FoundIn::Beside(directory) })
    }
}

/// Opens the tail with this tag in memory of the trace's owner, else of this user: a server of NFS may name another
/// owner.
fn in_memory(trace: &File, tag: u64) -> Option<OpenTail<'static>> {
    let owner = trace.metadata().ok()?.uid();
    // SAFETY: has no arguments and always succeeds.
    let users = [owner, unsafe { libc::geteuid() }];
    users.into_iter().find_map(|user| in_directory(memory::directory(user).as_ref(), user, tag))
}

/// Opens the tail in a directory that must be this user's, with no access for others. So must the file be, with no
/// other name: then a process of that user wrote it.
fn in_directory(path: &Path, user: u32, tag: u64) -> Option<OpenTail<'static>> {
    let directory = Directory::not_through_link(path).ok()?;
    let closed = |file: &File| {
        let about = file.metadata().ok()?;
        (about.uid() == user && about.mode() & 0o077 == 0).then_some(about)
    };
    closed(directory.file())?;
    let name = OsString::from(tail::name_end(tag));
    let file = directory.open(&name, Access::Read).ok()?;
    closed(&file).filter(|about| about.nlink() == 1)?;
    Some(OpenTail { file, name, directory: FoundIn::Memory(directory) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_others_could_have_written_is_no_tail() {
        let place = tempfile::tempdir().unwrap();
        // SAFETY: has no arguments and always succeeds.
        let me = unsafe { libc::geteuid() };
        let (directory, tag) = (place.path().join("inner"), 0xAB);
        let file = directory.join(tail::name_end(tag));
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(&file, "").unwrap();
        let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let found = |path: &Path, user| in_directory(path, user, tag).is_some();
        mode(&directory, 0o700);
        mode(&file, 0o400);
        assert!(found(&directory, me));
        assert!(!found(&directory, me + 1));
        mode(&directory, 0o755);
        assert!(!found(&directory, me));
        mode(&directory, 0o700);
        mode(&file, 0o404);
        assert!(!found(&directory, me));
        mode(&file, 0o400);
        std::fs::hard_link(&file, directory.join("other")).unwrap();
        assert!(!found(&directory, me));
        std::fs::remove_file(directory.join("other")).unwrap();
        symlink(&directory, place.path().join("link")).unwrap();
        assert!(!found(&place.path().join("link"), me));
        assert!(found(&directory, me));
        in_directory(&directory, me, tag).unwrap().remove().unwrap();
        assert!(!file.exists());
    }
}
