//! The trace file. An existing file is never changed. The file is opened for each piece of work
//! (`runtime/private_table.rs`). It is never mapped: otherwise another process that truncates it would
//! end the program (SIGBUS). Windows reach it by `pwrite`.

use super::failure::Failure;
use super::name::numbered;
use super::named_file::{NamedFile, ZEROS, allocate, within_limit, write};
use crate::runtime::errno;
use crate::runtime::private_table::{Opened, Table};
use crate::runtime::system::{self, Part};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vramtrace_format::StopReason;

/// Names tried before giving up.
const NAMES: u32 = 10_000;

pub struct File {
    file: NamedFile,
    /// The length that it must have; if it is shorter, it was truncated.
    length: AtomicU64,
    /// It was shorter at the last write.
    pub(super) cut: AtomicBool,
    /// Whether blocks can be allocated in advance.
    allocates: AtomicBool,
    /// Whether a range can be punched. Tests turn this off.
    punches: AtomicBool,
}

/// The file during a task.
pub struct OpenFile<'f, 't> {
    file: &'f File,
    opened: Opened<'t>,
    table: &'t Table,
}

impl File {
    /// Creates a file of this name, or of the first free name with a number.
    pub fn create(table: &Table, path: &Path, punches: bool) -> Result<File, Failure> {
        for number in 1..=NAMES {
            match NamedFile::create(table, numbered(path, number), 0o600) {
                Err(Failure { errno: libc::EEXIST, .. }) => {}
                Err(failure) => return Err(failure),
                Ok((file, _)) => {
                    return Ok(File {
                        file,
                        length: AtomicU64::new(0),
                        cut: AtomicBool::new(false),
                        allocates: AtomicBool::new(true),
                        punches: AtomicBool::new(punches),
                    });
                }
            }
        }
        Err(Failure { reason: StopReason::WriteFailed, errno: libc::EEXIST })
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Removes the file, as nothing was recorded.
    pub fn discard(self) {
        self.file.remove();
    }

    pub fn open<'f, 't>(&'f self, table: &'t Table) -> Result<OpenFile<'f, 't>, Failure> {
        let (opened, length) = self.file.open(table)?;
        self.check_length(length);
        Ok(OpenFile { file: self, opened, table })
    }

    /// Notes a truncation, by the file's length now.
    fn check_length(&self, length: u64) {
        if length < self.length.load(Ordering::Relaxed) {
            self.cut.store(true, Ordering::Relaxed);
        }
    }
}

impl<'t> OpenFile<'_, 't> {
    /// The table of the task in which it is open.
    pub fn table(&self) -> &'t Table {
        self.table
    }

    /// Extends the file to at least this length, with blocks if the filesystem can allocate them in
    /// advance, so that later writes find room.
    pub fn reserve(&self, offset: u64, bytes: u64) -> Result<(), Failure> {
        let end = offset + bytes;
        within_limit(end)?;
        let length = self.look()?;
        if self.file.allocates.load(Ordering::Relaxed) {
            match allocate(&self.opened, 0, offset, bytes) {
                Err(Failure { errno: libc::EOPNOTSUPP | libc::ENOSYS, .. }) => {
                    self.file.allocates.store(false, Ordering::Relaxed);
                }
                other => {
                    other?;
                    self.file.length.fetch_max(end, Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
        self.file.length.fetch_max(end, Ordering::Relaxed);
        self.stretch(length)
    }

    /// Writes all parts, one behind the other.
    pub fn write(&self, parts: &[Part], offset: u64) -> Result<(), Failure> {
        let bytes: usize = parts.iter().map(Part::size).sum();
        let end = offset + bytes as u64;
        within_limit(end)?;
        self.look()?;
        write(&self.opened, parts, offset)?;
        self.file.length.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    pub fn write_bytes(&self, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        self.write(&[Part::Bytes(bytes)], offset)
    }

    /// Whether the file was truncated since the last call. It is extended to its length again, with
    /// zeros.
    pub fn mend(&self) -> Result<bool, Failure> {
        if !self.file.cut.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        within_limit(self.file.length.load(Ordering::Relaxed))?;
        self.stretch(self.length()?)?;
        Ok(true)
    }

    /// Cuts off what was reserved behind the last window.
    pub fn shorten(&self, length: u64) {
        if length >= self.file.length.load(Ordering::Relaxed) {
            return;
        }
        // Nothing stands behind the last window.
        if system::ftruncate(&self.opened, length) {
            self.file.length.store(length, Ordering::Relaxed);
        }
    }

    /// The file's length; a truncation is noted.
    fn look(&self) -> Result<u64, Failure> {
        let length = self.length()?;
        self.file.check_length(length);
        Ok(length)
    }

    fn length(&self) -> Result<u64, Failure> {
        let stat = system::fstat(&self.opened);
        stat.map(|stat| stat.st_size as u64).ok_or_else(|| Failure::last(StopReason::WriteFailed))
    }

    fn stretch(&self, length: u64) -> Result<(), Failure> {
        let wanted = self.file.length.load(Ordering::Relaxed);
        if length < wanted && !system::ftruncate(&self.opened, wanted) {
            return Err(Failure::last(StopReason::WriteFailed));
        }
        Ok(())
    }

    /// Reads what was written; zeros behind the end of the file.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), Failure> {
        let mut done = 0;
        while done < bytes.len() {
            let (rest, at) = (&mut bytes[done..], (offset + done as u64) as i64);
            match system::pread(&self.opened, rest, at) {
                0 => {
                    rest.fill(0);
                    return Ok(());
                }
                got if got > 0 => done += got as usize,
                _ if errno::get() == libc::EINTR => {}
                _ => return Err(Failure::last(StopReason::WriteFailed)),
            }
        }
        Ok(())
    }

    /// Zeroes a range of slots, and frees its blocks if the filesystem can.
    pub fn erase(&self, offset: u64, bytes: u64) -> Result<(), Failure> {
        if self.file.punches.load(Ordering::Relaxed) {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            match allocate(&self.opened, mode, offset, bytes) {
                Err(Failure { errno: libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM, .. }) => {
                    self.file.punches.store(false, Ordering::Relaxed);
                }
                other => return other,
            }
        }
        let mut places = (offset..offset + bytes).step_by(ZEROS.len());
        places.try_for_each(|at| self.write_bytes(&ZEROS, at))
    }
}
