//! The directories of one user that hold pages. Each is checked: owned by the user, mode 0700, no symbolic link.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use vramtrace_format::LivePage;
use vramtrace_format::live::LIVE_WORDS;
use vramtrace_format::member::Namespaces;
use vramtrace_format::name::PageName;
use vramtrace_format::proc::Life;
use vramtrace_reader::files::{Access, Directory};

use super::PageProblem;
use super::places::PageLocations;
use super::segment::{self, Segment};

pub struct PageDirectory {
    path: PathBuf,
    opened: Directory,
    owner: u32,
}

/// An opened page.
pub struct PageFile {
    path: PathBuf,
    memory: Memory,
}

enum Memory {
    Segment(Segment),
    /// A copy that the process writes at most once a second. At the same time it reads orders from it. It is never
    /// mapped: a truncated mapping raises SIGBUS.
    Copy(File),
}

impl PageDirectory {
    /// The directories in which processes of this user put their pages. Those that are not there
    /// are left out.
    pub fn all_of(owner: u32, places: &PageLocations) -> Vec<Result<PageDirectory, PageProblem>> {
        let open = |path: PathBuf| match PageDirectory::open(&path, owner) {
            Err(problem) if problem.is_not_found() => None,
            other => Some(other),
        };
        places.of(owner).into_iter().filter_map(open).collect()
    }

    /// The user whose directory it is.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The live pages by their files, wherever their processes are.
    pub fn pages(&self) -> Result<impl Iterator<Item = (String, PageName)>, PageProblem> {
        let names = self.opened.names();
        let names = names.map_err(|error| PageProblem::Io(self.path.clone(), error))?;
        let names = names.filter_map(|name| name.into_string().ok());
        Ok(names.filter_map(|file| PageName::parse(&file).map(|name| (file, name))))
    }

    /// The page of a process in its segment. `None`: it cannot be attached from here.
    pub fn segment(&self, name: &PageName, write: bool) -> Option<PageFile> {
        let id = name.segment(Namespaces::of_this_process())?;
        let memory = Memory::Segment(Segment::attach(id, self.owner, write)?);
        let page = PageFile { path: self.path.join(name.to_string()), memory };
        page.live(|_| ()).is_ok().then_some(page)
    }

    /// Where the live pages are of processes without a runtime directory.
    pub fn shared_path(owner: u32) -> PathBuf {
        PathBuf::from(vramtrace_format::memory::directory(owner))
    }

    pub fn open(path: &Path, owner: u32) -> Result<PageDirectory, PageProblem> {
        let opened = Directory::not_through_link(path);
        let opened = opened.map_err(|error| not_opened(path, owner, error))?;
        check_owner_and_mode(path, opened.file(), owner)?;
        Ok(PageDirectory { path: path.into(), opened, owner })
    }

    /// Whether the page's process lives.
    pub(super) fn life(&self, name: &PageName, here: Namespaces) -> Life {
        name.life(here, |id| segment::is_attached(id, self.owner, 0), segment::pid_exists)
    }

    /// The pid of the page's process in this pid namespace, from the segment's creator if namespaces differ.
    pub(super) fn pid_here(&self, name: &PageName, here: Namespaces) -> Option<u32> {
        if name.same_pids(here) {
            return Some(name.pid);
        }
        // 0: the creator has none here.
        let creator = segment::facts(name.segment(here)?, self.owner)?.shm_cpid;
        u32::try_from(creator).ok().filter(|pid| *pid != 0)
    }

    /// The file of a page, which is the page or a copy of it. `write`: for storing orders.
    pub fn page(&self, name: &str, write: bool) -> Result<PageFile, PageProblem> {
        let path = self.path.join(name);
        let access = if write { Access::Write } else { Access::Read };
        let file =
            self.opened.open(OsStr::new(name), access).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidInput => PageProblem::NotPlain(path.clone()),
                _ => not_opened(&path, self.owner, error),
            })?;
        let about = check_owner_and_mode(&path, &file, self.owner)?;
        match about.is_file() && about.nlink() == 1 {
            true => Ok(PageFile { path, memory: Memory::Copy(file) }),
            false => Err(PageProblem::NotPlain(path)),
        }
    }
}

impl PageFile {
    /// Copies the page. Orders may follow it in its file.
    pub fn words(&self) -> Result<Box<[AtomicU64; LIVE_WORDS]>, PageProblem> {
        let words = match &self.memory {
            Memory::Segment(segment) => segment.copy(),
            Memory::Copy(file) => self.read(file)?,
        };
        let words: Vec<_> = words.into_iter().map(Into::into).collect();
        words.into_boxed_slice().try_into().map_err(|_| self.unknown())
    }

    /// What a live page of this version says.
    pub fn live<T>(&self, of: impl FnOnce(&LivePage) -> T) -> Result<T, PageProblem> {
        let words = self.words()?;
        LivePage::open(&words).map(|page| of(&page)).ok_or_else(|| self.unknown())
    }

    fn read(&self, file: &File) -> Result<Vec<u64>, PageProblem> {
        let mut bytes = vec![0; LIVE_WORDS * 8];
        file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.unknown(),
            _ => PageProblem::Io(self.path.clone(), error),
        })?;
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
        Ok(bytes.chunks_exact(8).map(word).collect())
    }

    /// Stores a word at this byte.
    pub fn store(&self, at: u64, word: u64) -> Result<(), PageProblem> {
        match &self.memory {
            Memory::Segment(segment) if segment.store(at, word) => Ok(()),
            Memory::Segment(_) => Err(self.unknown()),
            Memory::Copy(file) => {
                let stored = file.write_all_at(&word.to_ne_bytes(), at);
                stored.map_err(|error| PageProblem::Io(self.path.clone(), error))
            }
        }
    }

    /// Whether somebody holds the lock on the page's file. `None`: the system does not say, or it is a segment.
    pub fn is_locked(&self) -> Option<bool> {
        let Memory::Copy(file) = &self.memory else { return None };
        // SAFETY: a structure for which zeros are a value.
        let mut found: libc::flock = unsafe { std::mem::zeroed() };
        found.l_type = libc::F_WRLCK as i16;
        // SAFETY: a structure of our own, and an open file.
        let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut found) };
        (asked == 0).then_some(found.l_type != libc::F_UNLCK as i16)
    }

    /// Length of the page's file. `None`: it is a segment.
    pub fn bytes(&self) -> Option<u64> {
        let Memory::Copy(file) = &self.memory else { return None };
        file.metadata().ok().map(|about| about.len())
    }

    /// Its process looks at it once a second, while it makes calls.
    pub fn is_copy(&self) -> bool {
        matches!(self.memory, Memory::Copy(_))
    }

    pub fn unknown(&self) -> PageProblem {
        PageProblem::Unknown(self.path.clone())
    }
}

/// For "permission denied" the error names the owner of the file, and a link is named as such.
fn not_opened(path: &Path, owner: u32, error: io::Error) -> PageProblem {
    match path.symlink_metadata() {
        // With O_DIRECTORY a link fails as "not a directory".
        Ok(about) if about.is_symlink() => {
            PageProblem::Io(path.into(), io::Error::from_raw_os_error(libc::ELOOP))
        }
        Ok(about) if error.kind() == io::ErrorKind::PermissionDenied && about.uid() != owner => {
            PageProblem::Owner(path.into(), about.uid())
        }
        _ => PageProblem::Io(path.into(), error),
    }
}

fn check_owner_and_mode(
    path: &Path,
    opened: &File,
    owner: u32,
) -> Result<std::fs::Metadata, PageProblem> {
    let about = opened.metadata().map_err(|error| PageProblem::Io(path.into(), error))?;
    match (about.uid(), about.mode() & 0o077) {
        (found, _) if found != owner => Err(PageProblem::Owner(path.into(), found)),
        (_, 0) => Ok(about),
        _ => Err(PageProblem::Mode(path.into(), about.mode() & 0o777)),
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
        let why = |path: &Path, owner| PageDirectory::open(path, owner).err().unwrap().to_string();
        assert!(why(&inner, me).contains("open to others (mode 711)"));
        mode(&inner, 0o700);
        assert!(why(&inner, me + 1).contains(&format!("belongs to user {me}")));
        let link = place.path().join("link");
        symlink(&inner, &link).unwrap();
        assert!(why(&link, me).contains("is a link"));

        let directory = PageDirectory::open(&inner, me).unwrap();
        let page = |name: &str| directory.page(name, true).err().unwrap().to_string();
        std::fs::write(inner.join("7.8"), [0; LIVE_WORDS * 8]).unwrap();
        assert!(page("7.8").contains("open to others"));
        mode(&inner.join("7.8"), 0o600);
        let good = directory.page("7.8", true).unwrap();
        good.store(8, 77).unwrap();
        assert_eq!(good.words().unwrap()[1].load(std::sync::atomic::Ordering::Relaxed), 77);
        std::fs::write(inner.join("7.8"), [0; LIVE_WORDS * 8 - 1]).unwrap();
        assert!(good.words().is_err());
        symlink("7.8", inner.join("7.9")).unwrap();
        assert!(page("7.9").contains("is a link"));
        std::fs::hard_link(inner.join("7.8"), inner.join("7.10")).unwrap();
        assert!(page("7.8").contains("not a regular file"));
    }
}
