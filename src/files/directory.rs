//! An opened directory, in which files are found and opened by their names. The names may change meanwhile, and who
//! may write the path may replace a part of it: so all calls are relative to the descriptor.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Access, owned, reopen};

#[derive(Debug)]
pub struct Directory(File);

impl Directory {
    /// Opens a directory. Links are followed.
    pub fn at(path: &Path) -> io::Result<Directory> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        opened(libc::AT_FDCWD, path.as_os_str(), 0)
    }

    /// Opens a directory. A link as the last part of the path is an error.
    pub fn not_through_link(path: &Path) -> io::Result<Directory> {
        opened(libc::AT_FDCWD, path.as_os_str(), libc::O_NOFOLLOW)
    }

    /// Opens a directory of this one. A link is an error.
    pub fn directory(&self, name: &OsStr) -> io::Result<Directory> {
        opened(self.0.as_raw_fd(), name, libc::O_NOFOLLOW)
    }

    pub fn file(&self) -> &File {
        &self.0
    }

    /// The directory of a file, and the file's name in it.
    pub fn of(file: &Path) -> io::Result<(Directory, &OsStr)> {
        let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((Directory::at(file.parent().unwrap_or(Path::new("")))?, name))
    }

    /// Opens a regular file of this directory. A link is an error.
    pub fn open(&self, name: &OsStr, access: Access) -> io::Result<File> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let name = CString::new(name.as_bytes())?;
        // SAFETY: a C string, and an open directory.
        let found = owned(unsafe { libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags) })?;
        reopen(&found, access)
    }

    /// Makes a file of mode 0600. An error if something has this name.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let name = CString::new(name.as_bytes())?;
        // SAFETY: a C string, an open directory, and the mode that O_CREAT wants.
        owned(unsafe { libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags, 0o600) })
    }

    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        let name = CString::new(name.as_bytes())?;
        // SAFETY: a C string, and an open directory.
        match unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// All entries, one after the other, in the order of the file system.
    pub fn entries(&self) -> io::Result<impl Iterator<Item = DirEntry>> {
        // The path of the descriptor: that of the directory may have been replaced.
        Ok(std::fs::read_dir(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?.flatten())
    }

    pub fn names(&self) -> io::Result<impl Iterator<Item = OsString>> {
        Ok(self.entries()?.map(|entry| entry.file_name()))
    }
}

fn opened(directory: i32, path: &OsStr, flags: i32) -> io::Result<Directory> {
    let path = CString::new(path.as_bytes())?;
    let flags = flags | libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a C string; the directory is open, or stands for the working directory.
    owned(unsafe { libc::openat(directory, path.as_ptr(), flags) }).map(Directory)
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
