//! An opened directory, in which files are found, opened, made and named. The names may change meanwhile, and who
//! may write the path may replace a part of it: so all calls are relative to the descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self as system, AtFlags, CWD, Mode, OFlags, RenameFlags};

use super::walk::{is_trusted, walk};
use super::{Access, identity, path_of, reopen};

#[derive(Debug)]
pub struct Directory(pub(super) File);

impl Directory {
    /// Opens a directory. Links are followed.
    pub fn at(path: &Path) -> io::Result<Directory> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        opened(CWD, path.as_os_str(), OFlags::empty())
    }

    /// Opens a directory. A link as the last part of the path is an error.
    pub fn not_through_link(path: &Path) -> io::Result<Directory> {
        opened(CWD, path.as_os_str(), OFlags::NOFOLLOW)
    }

    /// Opens a directory to write into it: links of other users are an error. It cannot be listed, as it may be one
    /// that this user may only write.
    pub fn to_write(path: &Path) -> io::Result<Directory> {
        walk(&path.join("."), None)?.directory()
    }

    /// The same; it is made where it is missing, and those above it.
    pub fn made(path: &Path) -> io::Result<Directory> {
        walk(&path.join("."), Some(Mode::from(0o777)))?.directory()
    }

    /// Where a path leads to which something is written: the directory, the name in it, and the directory that has this
    /// name. Something else that has it cannot be listed.
    pub fn end_of(path: &Path) -> io::Result<(Directory, OsString, Option<Directory>)> {
        // Without a slash at its end: the directory need not exist.
        let mut place = walk(path.components().as_path(), None)?.place()?;
        if let Some(there) = &place.there
            && (place.name == "." || place.name == "..")
        {
            // By the path that it has now.
            place = walk(&std::fs::read_link(path_of(there))?, None)?.place()?;
        }
        Ok((place.directory, place.name, place.there.map(Directory)))
    }

    /// The root or the working directory, from which a path begins.
    pub(super) fn begin_of(path: &Path) -> io::Result<Directory> {
        opened(CWD, if path.is_absolute() { "/" } else { "." }.as_ref(), OFlags::PATH)
    }

    /// Opens a directory of this one. A link is an error.
    pub fn directory(&self, name: &OsStr) -> io::Result<Directory> {
        opened(&self.0, name, OFlags::NOFOLLOW)
    }

    /// Makes a directory here and opens it, or the one that is there. It must be this user's: another user who may write
    /// this directory can put one there.
    pub fn own_directory(&self, name: &OsStr) -> io::Result<Directory> {
        self.make_directory(name, 0o700).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        })?;
        let directory = self.directory(name)?;
        let about = directory.0.metadata()?;
        match is_trusted(&about) {
            true => Ok(directory),
            false => Err(io::Error::other(format!(
                "the directory `{}` in it is another user's (uid {})",
                name.display(),
                about.uid()
            ))),
        }
    }

    /// An error if something has this name.
    pub fn make_directory(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        Ok(system::mkdirat(&self.0, name, Mode::from(mode))?)
    }

    pub fn file(&self) -> &File {
        &self.0
    }

    /// Whether nobody but root and this user may put something into it.
    fn is_closed(&self) -> bool {
        self.0.metadata().is_ok_and(|about| is_trusted(&about) && about.mode() & 0o022 == 0)
    }

    /// The directory of a file, opened to write into it, and the file's name in it.
    pub fn of(file: &Path) -> io::Result<(Directory, &OsStr)> {
        let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((Directory::to_write(file.parent().unwrap_or(Path::new("")))?, name))
    }

    /// What has this name, opened with O_PATH, which acts on nothing. A link is not followed.
    pub(super) fn find(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        self.open_at(name, OFlags::PATH | OFlags::NOFOLLOW | flags)
    }

    pub(super) fn open_at(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        open_at(&self.0, name, flags)
    }

    /// Opens a regular file of this directory. A link is an error.
    pub fn open(&self, name: &OsStr, access: Access) -> io::Result<File> {
        reopen(&self.find(name, OFlags::empty())?, access)
    }

    /// Makes a file of mode 0600. An error if something has this name.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        self.open_at(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW)
    }

    /// Gives an open file this name too. An error if something has it.
    pub(super) fn link(&self, file: &File, name: &OsStr) -> io::Result<()> {
        Ok(system::linkat(CWD, path_of(file), &self.0, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Renames an entry. `replace`: in place of what has the other name; else that is an error.
    pub fn rename(&self, from: &OsStr, to: &OsStr, replace: bool) -> io::Result<()> {
        Ok(match replace {
            true => system::renameat(&self.0, from, &self.0, to),
            false => system::renameat_with(&self.0, from, &self.0, to, RenameFlags::NOREPLACE),
        }?)
    }

    /// Whether this name is that of the open file.
    pub fn has(&self, name: &OsStr, file: &File) -> bool {
        let found = self.find(name, OFlags::empty()).and_then(|found| identity(&found)).ok();
        found.is_some() && found == identity(file).ok()
    }

    /// An error if this name is not that of the open file: who may write the directory may have put another one there.
    pub fn check(&self, name: &OsStr, file: &File) -> io::Result<()> {
        match self.is_closed() || self.has(name, file) {
            true => Ok(()),
            false => Err(io::Error::other("another user replaced it while it was written")),
        }
    }

    /// Makes a symbolic link.
    pub fn make_link(&self, name: &OsStr, to: &Path) -> io::Result<()> {
        Ok(system::symlinkat(to, &self.0, name)?)
    }

    /// The number, if this is the directory of the descriptors of this process: opening the path again would write from
    /// offset 0.
    pub(super) fn descriptor(&self, name: &OsStr) -> Option<RawFd> {
        let number = name.to_str()?.parse().ok()?;
        let own = Directory::at(Path::new("/proc/self/fd")).ok()?;
        (identity(&own.0).ok()? == identity(&self.0).ok()?).then_some(number)
    }

    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(system::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// The path of an entry that leads through this descriptor, whatever happens to the directory's own path.
    pub fn path_to(&self, name: &OsStr) -> PathBuf {
        path_of(&self.0).join(name)
    }

    /// All entries, one after the other, in the order of the file system.
    pub fn entries(&self) -> io::Result<impl Iterator<Item = DirEntry>> {
        // The path of the descriptor: that of the directory may have been replaced.
        Ok(std::fs::read_dir(path_of(&self.0))?.flatten())
    }

    pub fn names(&self) -> io::Result<impl Iterator<Item = OsString>> {
        Ok(self.entries()?.map(|entry| entry.file_name()))
    }
}

/// The text of an open link.
pub(super) fn link_text(link: &File) -> io::Result<PathBuf> {
    let text = system::readlinkat(link, "", Vec::new())?;
    Ok(OsString::from_vec(text.into_bytes()).into())
}

fn opened(at: impl AsFd, path: &OsStr, flags: OFlags) -> io::Result<Directory> {
    open_at(at, path, flags | OFlags::DIRECTORY | OFlags::NONBLOCK).map(Directory)
}

/// A file that is made has the mode 0600.
fn open_at(at: impl AsFd, path: &OsStr, flags: OFlags) -> io::Result<File> {
    Ok(system::openat(at, path, flags | OFlags::CLOEXEC, Mode::from(0o600))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_are_of_the_directory_that_was_opened() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (place.path().join("first"), place.path().join("second"));
        for (directory, text) in [(&first, "1"), (&second, "2")] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("file"), text).unwrap();
        }
        symlink("file", first.join("link")).unwrap();
        let path = first.join("file");
        symlink("first", place.path().join("to")).unwrap();
        let (opened, name) = Directory::of(&path).unwrap();
        std::fs::rename(&first, place.path().join("moved")).unwrap();
        std::fs::rename(&second, &first).unwrap();
        let mut names: Vec<_> = opened.names().unwrap().collect();
        names.sort();
        assert_eq!(names, ["file", "link"]);
        let text = std::io::read_to_string(opened.open(name, Access::Read).unwrap()).unwrap();
        assert_eq!(text, "1");
        let link = opened.open(OsStr::new("link"), Access::Write).unwrap_err();
        assert_eq!(link.raw_os_error(), Some(libc::ELOOP));
        assert!(Directory::at(&place.path().join("to")).is_ok());
        assert!(Directory::not_through_link(&place.path().join("to")).is_err());
        opened.remove(name).unwrap();
        assert!(path.exists());
    }
}
