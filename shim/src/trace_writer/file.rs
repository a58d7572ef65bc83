//! The trace file. An existing file is never changed, and the file is found again if the program closes
//! its descriptor. It is never mapped: otherwise another process that truncates it would end the
//! program (SIGBUS). Windows reach it by `pwrite`.

use super::descriptor::{Descriptor, allocate, within_limit, write};
use super::failure::{Failure, errno};
use super::name::numbered;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vramtrace_format::StopReason;

/// Names tried before giving up.
const NAMES: u32 = 10_000;

pub struct File {
    descriptor: Descriptor,
    /// The length that it must have; if it is shorter, it was truncated.
    length: AtomicU64,
    /// It was shorter at the last write.
    cut: AtomicBool,
    /// Whether blocks can be allocated in advance.
    allocates: AtomicBool,
    /// Whether a range can be punched. Tests turn this off.
    punches: AtomicBool,
}

impl File {
    /// Creates a file of this name, or of the first free name with a number.
    pub fn create(path: &Path, punches: bool) -> Result<File, Failure> {
        for number in 1..=NAMES {
            match Descriptor::create(numbered(path, number), 0o600) {
                Err(Failure { errno: libc::EEXIST, .. }) => {}
                Err(failure) => return Err(failure),
                Ok(descriptor) => {
                    return Ok(File {
                        descriptor,
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
        self.descriptor.path()
    }

    /// Removes the file, as nothing was recorded.
    pub fn discard(self) {
        self.descriptor.remove();
    }

    /// Extends the file to at least this length, with blocks if the filesystem can allocate them in
    /// advance, so that later writes find room.
    pub fn reserve(&self, offset: u64, bytes: u64) -> Result<(), Failure> {
        let end = offset + bytes;
        within_limit(end)?;
        self.descriptor.with(|number, length| {
            self.check_length(length);
            if self.allocates.load(Ordering::Relaxed) {
                match allocate(number, 0, offset, bytes) {
                    Err(Failure { errno: libc::EOPNOTSUPP | libc::ENOSYS, .. }) => {
                        self.allocates.store(false, Ordering::Relaxed);
                    }
                    other => {
                        other?;
                        self.length.fetch_max(end, Ordering::Relaxed);
                        return Ok(());
                    }
                }
            }
            self.length.fetch_max(end, Ordering::Relaxed);
            self.stretch(number, length)
        })
    }

    /// Writes all parts, one behind the other.
    ///
    /// # Safety
    /// The contract of [`write`].
    pub unsafe fn write(&self, parts: &[(*const u8, usize)], offset: u64) -> Result<(), Failure> {
        let bytes: usize = parts.iter().map(|part| part.1).sum();
        let end = offset + bytes as u64;
        within_limit(end)?;
        self.descriptor.with(|number, length| {
            self.check_length(length);
            // SAFETY: the parts are readable (see above).
            unsafe { write(number, parts, offset) }?;
            self.length.fetch_max(end, Ordering::Relaxed);
            Ok(())
        })
    }

    pub fn write_bytes(&self, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        // SAFETY: a slice is readable.
        unsafe { self.write(&[(bytes.as_ptr(), bytes.len())], offset) }
    }

    /// Whether the file was truncated since the last call. It is extended to its length again, with
    /// zeros.
    pub fn mend(&self) -> Result<bool, Failure> {
        if !self.cut.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        within_limit(self.length.load(Ordering::Relaxed))?;
        self.descriptor.with(|number, length| self.stretch(number, length))?;
        Ok(true)
    }

    /// Whether a write found the file truncated since the last [`File::mend`].
    pub fn was_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Notes a truncation, by the file's length now.
    fn check_length(&self, length: u64) {
        if length < self.length.load(Ordering::Relaxed) {
            self.cut.store(true, Ordering::Relaxed);
        }
    }

    fn stretch(&self, number: i32, length: u64) -> Result<(), Failure> {
        let wanted = self.length.load(Ordering::Relaxed);
        // SAFETY: a longer file loses nothing.
        if length < wanted && unsafe { libc::ftruncate(number, wanted as libc::off_t) } != 0 {
            return Err(Failure::last(StopReason::WriteFailed));
        }
        Ok(())
    }

    /// Reads what was written; zeros behind the end of the file.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), Failure> {
        self.descriptor.with(|number, _| {
            let mut done = 0;
            while done < bytes.len() {
                let rest = &mut bytes[done..];
                let at = (offset + done as u64) as libc::off_t;
                // SAFETY: the slice is writable.
                let got = unsafe { libc::pread(number, rest.as_mut_ptr().cast(), rest.len(), at) };
                match got {
                    0 => {
                        rest.fill(0);
                        return Ok(());
                    }
                    got if got > 0 => done += got as usize,
                    _ if errno() == libc::EINTR => {}
                    _ => return Err(Failure::last(StopReason::WriteFailed)),
                }
            }
            Ok(())
        })
    }

    /// Zeroes a range, and frees its blocks if the filesystem can.
    pub fn erase(&self, offset: u64, bytes: u64) -> Result<(), Failure> {
        if self.punches.load(Ordering::Relaxed) {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            match self.descriptor.with(|number, _| allocate(number, mode, offset, bytes)) {
                Err(Failure { errno: libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM, .. }) => {
                    self.punches.store(false, Ordering::Relaxed);
                }
                other => return other,
            }
        }
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut done = 0;
        while done < bytes {
            let part = ZEROS.len().min((bytes - done) as usize);
            self.write_bytes(&ZEROS[..part], offset + done)?;
            done += part as u64;
        }
        Ok(())
    }
}
