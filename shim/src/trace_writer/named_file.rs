//! A file that is opened again by its name each time, since no descriptor is kept
//! (`runtime/private_table.rs`). It is identified by device and inode: a name that leads to another file
//! by now is not used.

use super::failure::Failure;
use crate::runtime::directory;
use crate::runtime::errno;
use crate::runtime::lock::Lock;
use crate::runtime::private_table::{Opened, Table};
use crate::runtime::system::{self, Part, WORKING_DIRECTORY};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vramtrace_format::StopReason;

/// Device and inode.
type Id = (u64, u64);

pub struct NamedFile {
    id: Id,
    path: PathBuf,
    directory: Id,
    /// Where it was found last, if not at its path.
    moved_to: Lock<Option<CString>>,
    mode: libc::mode_t,
}

/// It is gone from its directory.
const LOST: Failure = Failure { reason: StopReason::DescriptorLost, errno: libc::ENOENT };
/// Its directory is not there for this thread, which may have another root.
const UNSEEN: Failure = Failure { reason: StopReason::WriteFailed, errno: libc::ENOENT };

impl NamedFile {
    /// Creates a file of this name. The failure has errno EEXIST if the name is taken.
    pub fn create<'t>(
        table: &'t Table,
        path: PathBuf,
        mode: libc::mode_t,
    ) -> Result<(NamedFile, Opened<'t>), Failure> {
        let name = c_string(path.as_os_str().as_bytes())?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let opened = table.open(&name, flags, mode).map_err(cannot_open)?;
        let Some(stat) = system::fstat(&opened) else {
            return Err(Failure::last(StopReason::WriteFailed));
        };
        let directory = id_of_name(&c_string(&of_directory(parent(&path)))?).unwrap_or_default();
        let (id, moved_to) = (id(&stat), Lock::new(None));
        Ok((NamedFile { id, path, directory, moved_to, mode }, opened))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unlinks the file. If the name leads to another file by now, that one stays.
    pub fn remove(&self) {
        if let Ok(name) = c_string(self.path.as_os_str().as_bytes())
            && id_of_name(&name) == Some(self.id)
        {
            system::unlink(WORKING_DIRECTORY, &name);
        }
    }

    /// Opens the file for reading and writing, regardless of its mode. Also returns its length.
    pub fn open<'t>(&self, table: &'t Table) -> Result<(Opened<'t>, u64), Failure> {
        let name = c_string(self.path.as_os_str().as_bytes())?;
        match self.open_at(table, &name) {
            Err(LOST) => self.search(table),
            other => other,
        }
    }

    /// Fails with [`LOST`] if the name leads nowhere, or to another file.
    fn open_at<'t>(&self, table: &'t Table, name: &CStr) -> Result<(Opened<'t>, u64), Failure> {
        match table.open(name, libc::O_RDWR, 0) {
            Ok(opened) => self.checked(opened),
            // Its mode keeps its owner from writing to it: the tail's.
            Err(libc::EACCES) => self.open_protected(table, name),
            Err(libc::ENOENT | libc::ELOOP | libc::ENOTDIR) => Err(LOST),
            Err(errno) => Err(cannot_open(errno)),
        }
    }

    /// Opens the file for writing though its mode forbids that. The mode is changed on the open file,
    /// since the name may lead elsewhere at any time.
    fn open_protected<'t>(
        &self,
        table: &'t Table,
        name: &CStr,
    ) -> Result<(Opened<'t>, u64), Failure> {
        let (readable, _) =
            self.checked(table.open(name, libc::O_RDONLY, 0).map_err(cannot_open)?)?;
        system::fchmod(&readable, self.mode | libc::S_IWUSR);
        let opened = table.open_again(&readable, libc::O_RDWR);
        system::fchmod(&readable, self.mode);
        self.checked(opened.map_err(cannot_open)?)
    }

    /// The file, if it was renamed in its directory, or if its directory was renamed and is the working
    /// directory.
    fn search<'t>(&self, table: &'t Table) -> Result<(Opened<'t>, u64), Failure> {
        let mut moved_to = self.moved_to.lock();
        if let Some(name) = &*moved_to
            && let Ok(found) = self.open_at(table, name)
        {
            return Ok(found);
        }
        let name = self.path.file_name().unwrap_or_default().as_bytes();
        let mut failure = UNSEEN;
        for directory in [parent(&self.path), b"."] {
            let beside = c_string(&[directory, b"/", name].concat())?;
            let found = match self.open_at(table, &beside) {
                Ok(found) => Some((beside, found)),
                Err(_) => self.search_in(table, directory, &mut failure),
            };
            if let Some((name, found)) = found {
                *moved_to = Some(name);
                return Ok(found);
            }
        }
        Err(failure)
    }

    fn search_in<'t>(
        &self,
        table: &'t Table,
        directory: &[u8],
        failure: &mut Failure,
    ) -> Option<(CString, (Opened<'t>, u64))> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let entries = table.open(&c_string(&of_directory(directory)).ok()?, flags, 0).ok()?;
        if system::fstat(&entries).is_some_and(|stat| id(&stat) == self.directory) {
            *failure = LOST;
        }
        let mut found = None;
        let _ = directory::each_name(&entries, |name, inode| {
            if found.is_none() && inode == self.id.1 {
                let path = c_string(&[directory, b"/", name.to_bytes()].concat());
                found = path.ok().and_then(|path| Some((self.open_at(table, &path).ok()?, path)));
            }
        });
        found.map(|(opened, path)| (path, opened))
    }

    fn checked<'t>(&self, opened: Opened<'t>) -> Result<(Opened<'t>, u64), Failure> {
        match system::fstat(&opened) {
            Some(stat) if id(&stat) == self.id => Ok((opened, stat.st_size as u64)),
            _ => Err(LOST),
        }
    }
}

fn id(stat: &libc::stat) -> Id {
    (stat.st_dev, stat.st_ino)
}

fn id_of_name(name: &CStr) -> Option<Id> {
    system::stat_of_name(WORKING_DIRECTORY, name).as_ref().map(id)
}

fn parent(path: &Path) -> &[u8] {
    path.parent().unwrap_or(Path::new("/")).as_os_str().as_bytes()
}

/// Names the directory itself, also behind a link.
fn of_directory(path: &[u8]) -> Vec<u8> {
    [path, b"/."].concat()
}

fn c_string(name: &[u8]) -> Result<CString, Failure> {
    CString::new(name).map_err(|_| cannot_open(libc::EINVAL))
}

fn cannot_open(errno: i32) -> Failure {
    Failure::of(errno, StopReason::WriteFailed)
}

/// Growing a file beyond RLIMIT_FSIZE raises SIGXFSZ, which would end the program: checked before.
pub fn within_limit(end: u64) -> Result<(), Failure> {
    // Of which the largest number is none.
    match system::limit(libc::RLIMIT_FSIZE) {
        Some(limit) if end > limit => {
            Err(Failure { reason: StopReason::FileSizeLimit, errno: libc::EFBIG })
        }
        _ => Ok(()),
    }
}

/// Allocates or frees the blocks of a range.
pub fn allocate(file: &Opened, mode: i32, offset: u64, bytes: u64) -> Result<(), Failure> {
    loop {
        let (number, bytes) = (file.as_fd().as_raw_fd(), bytes as libc::off_t);
        // SAFETY: takes no pointers; the number is of the recorder's file.
        let done = unsafe { libc::fallocate(number, mode, offset as libc::off_t, bytes) };
        if done == 0 {
            return Ok(());
        }
        if errno::get() != libc::EINTR {
            return Err(Failure::last(StopReason::WriteFailed));
        }
    }
}

/// A part of a slot.
pub static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Writes all parts consecutively.
pub fn write(file: &Opened, parts: &[Part], mut at: u64) -> Result<(), Failure> {
    for part in parts {
        let mut done = 0;
        while done < part.size() {
            match system::pwrite(file, *part, done, at as i64) {
                0 => return Err(Failure { reason: StopReason::WriteFailed, errno: libc::EIO }),
                wrote if wrote > 0 => (done, at) = (done + wrote as usize, at + wrote as u64),
                _ if errno::get() == libc::EINTR => {}
                _ => return Err(Failure::last(StopReason::WriteFailed)),
            }
        }
    }
    Ok(())
}
