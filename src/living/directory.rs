//! A private directory with pages: of one user, closed to others, reached by no link.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Problem;

pub struct Directory {
    path: PathBuf,
    opened: File,
    owner: u32,
}

/// One page's file.
pub struct Page {
    path: PathBuf,
    file: File,
}

impl Directory {
    /// The directories in which processes of this user put their pages. Those that are not there
    /// are left out.
    pub fn all_of(owner: u32, runtime: Option<&Path>) -> Vec<Result<Directory, Problem>> {
        let own = runtime.map(|runtime| runtime.join("vramtrace"));
        let places = own.into_iter().chain([Directory::shared_path(owner)]);
        let open = |path: PathBuf| match Directory::open(&path, owner) {
            Err(Problem::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other),
        };
        places.filter_map(open).collect()
    }

    /// Where groups are, and the live pages of processes without a runtime directory.
    pub fn shared_path(owner: u32) -> PathBuf {
        PathBuf::from(format!("/dev/shm/vramtrace-{owner}"))
    }

    pub fn open(path: &Path, owner: u32) -> Result<Directory, Problem> {
        let wrong = |error| not_opened(path, owner, error);
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let opened = open_at(libc::AT_FDCWD, path, flags).map_err(|error| {
            // With O_DIRECTORY a link is told as "not a directory".
            let link = path.symlink_metadata().is_ok_and(|about| about.is_symlink());
            wrong(if link { io::Error::from_raw_os_error(libc::ELOOP) } else { error })
        })?;
        judge(path, &opened, owner)?;
        Ok(Directory { path: path.into(), opened, owner })
    }

    pub fn names(&self) -> Result<Vec<String>, Problem> {
        // By its descriptor, whatever its path leads to by now.
        let entries = std::fs::read_dir(format!("/proc/self/fd/{}", self.opened.as_raw_fd()))
            .map_err(|error| Problem::Io(self.path.clone(), error))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    pub fn page(&self, name: &str, write: bool) -> Result<Page, Problem> {
        let path = self.path.join(name);
        let flags = if write { libc::O_RDWR } else { libc::O_RDONLY };
        let file = open_at(self.opened.as_raw_fd(), Path::new(name), flags)
            .map_err(|error| not_opened(&path, self.owner, error))?;
        let about = judge(&path, &file, self.owner)?;
        match about.is_file() && about.nlink() == 1 {
            true => Ok(Page { path, file }),
            false => Err(Problem::NotPlain(path)),
        }
    }
}

impl Page {
    /// All of it, as `WORDS` words.
    pub fn words<const WORDS: usize>(
        &self,
    ) -> Result<Box<[std::sync::atomic::AtomicU64; WORDS]>, Problem> {
        let mut bytes = vec![0; WORDS * 8];
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Problem::Unknown(self.path.clone()),
            _ => Problem::Io(self.path.clone(), error),
        })?;
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap_or_default()).into();
        let words: Vec<_> = bytes.chunks_exact(8).map(word).collect();
        words.into_boxed_slice().try_into().map_err(|_| Problem::Unknown(self.path.clone()))
    }

    /// Stores a word at this byte.
    pub fn store(&self, at: u64, word: u64) -> Result<(), Problem> {
        let stored = self.file.write_all_at(&word.to_ne_bytes(), at);
        stored.map_err(|error| Problem::Io(self.path.clone(), error))
    }

    pub fn unknown(&self) -> Problem {
        Problem::Unknown(self.path.clone())
    }
}

/// Follows no link at the end, and never becomes another program's.
fn open_at(directory: i32, path: &Path, flags: i32) -> io::Result<File> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a C string, and a descriptor that is ours at once.
    match unsafe { libc::openat(directory, name.as_ptr(), flags) } {
        -1 => Err(io::Error::last_os_error()),
        descriptor => Ok(unsafe { File::from_raw_fd(descriptor) }),
    }
}

/// What nobody but its owner may open is told by its owner.
fn not_opened(path: &Path, owner: u32, error: io::Error) -> Problem {
    match path.symlink_metadata() {
        Ok(about) if error.kind() == io::ErrorKind::PermissionDenied && about.uid() != owner => {
            Problem::Owner(path.into(), about.uid())
        }
        _ => Problem::Io(path.into(), error),
    }
}

fn judge(path: &Path, opened: &File, owner: u32) -> Result<std::fs::Metadata, Problem> {
    let about = opened.metadata().map_err(|error| Problem::Io(path.into(), error))?;
    match (about.uid(), about.mode() & 0o077) {
        (found, _) if found != owner => Err(Problem::Owner(path.into(), found)),
        (_, 0) => Ok(about),
        _ => Err(Problem::Mode(path.into(), about.mode() & 0o777)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_others_could_change_is_refused() {
        let place = tempfile::tempdir().unwrap();
        // SAFETY: always succeeds.
        let me = unsafe { libc::geteuid() };
        let inner = place.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
        };
        mode(&inner, 0o711);
        let why = |path: &Path, owner| Directory::open(path, owner).err().unwrap().to_string();
        assert!(why(&inner, me).contains("open to others (mode 711)"));
        mode(&inner, 0o700);
        assert!(why(&inner, me + 1).contains(&format!("belongs to user {me}")));
        let link = place.path().join("link");
        symlink(&inner, &link).unwrap();
        assert!(why(&link, me).contains("is a link"));

        let directory = Directory::open(&inner, me).unwrap();
        let page = |name: &str| directory.page(name, true).err().unwrap().to_string();
        std::fs::write(inner.join("7.8"), [0; 16]).unwrap();
        assert!(page("7.8").contains("open to others"));
        mode(&inner.join("7.8"), 0o600);
        let good = directory.page("7.8", true).unwrap();
        good.store(8, 77).unwrap();
        assert_eq!(good.words::<2>().unwrap()[1].load(std::sync::atomic::Ordering::Relaxed), 77);
        assert!(good.words::<3>().is_err());
        symlink("7.8", inner.join("7.9")).unwrap();
        assert!(page("7.9").contains("is a link"));
        std::fs::hard_link(inner.join("7.8"), inner.join("7.10")).unwrap();
        assert!(page("7.8").contains("no plain file"));
    }
}
