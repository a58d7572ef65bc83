//! The trace file itself: making it, growing it without a signal, finding it again when the
//! program closed our descriptor.

use super::name::numbered;
use crate::entry::uncancelled;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use vramtrace_format::StopReason;

/// Why the file could not be used, for the `Stopped` record and the line on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: StopReason,
    pub errno: i32,
}

impl Failure {
    fn last(otherwise: StopReason) -> Failure {
        Failure::of(errno(), otherwise)
    }

    fn of(errno: i32, otherwise: StopReason) -> Failure {
        let reason = match errno {
            libc::ENOSPC | libc::EDQUOT => StopReason::DiskFull,
            libc::EFBIG => StopReason::FileSizeLimit,
            libc::EBADF => StopReason::DescriptorLost,
            _ => otherwise,
        };
        Failure { reason, errno }
    }
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// How the filesystem lets us write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Shared mappings over blocks allocated ahead: a store can neither fail nor signal.
    Map,
    /// Whole records by pwrite.
    Write,
}

/// Descriptors from here on: programs expect to be given the lowest numbers.
const DESCRIPTOR_FROM: i32 = 200;
/// Names tried before giving up.
const NAMES: u32 = 10_000;

const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const TMPFS: u64 = 0x0102_1994;
const OVERLAY: u64 = 0x794C_7630;

pub struct File {
    /// Changes when the program closed it and the file was opened again.
    descriptor: AtomicI32,
    device: u64,
    inode: u64,
    path: PathBuf,
    access: Access,
    /// Whether a page is cheaper to write first than to touch: on a disk, a touch of a page that
    /// has blocks and no contents goes through the filesystem by itself (5 us; written in bulk
    /// before, 1 us).
    write_first: bool,
    /// Bytes that were given blocks or written, up to the end of the file.
    length: AtomicU64,
}

impl File {
    /// A new file of this name, or of the first that is free among `.2`, `.3`, ...
    pub fn create(path: &Path) -> Result<File, Failure> {
        let flags =
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        for number in 1..=NAMES {
            let path = numbered(path, number);
            let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
                return Err(Failure { reason: StopReason::WriteFailed, errno: libc::EINVAL });
            };
            // SAFETY: a C string and plain flags.
            let low = unsafe { libc::open(name.as_ptr(), flags, 0o600) };
            if low < 0 {
                if errno() == libc::EEXIST {
                    continue;
                }
                return Err(Failure::last(StopReason::WriteFailed));
            }
            let descriptor = move_up(low);
            let Some((device, inode)) = identity(descriptor) else {
                return Err(Failure::last(StopReason::WriteFailed));
            };
            let (access, write_first) = access(descriptor);
            return Ok(File {
                descriptor: AtomicI32::new(descriptor),
                device,
                inode,
                path,
                access,
                write_first,
                length: AtomicU64::new(0),
            });
        }
        Err(Failure { reason: StopReason::WriteFailed, errno: libc::EEXIST })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn access(&self) -> Access {
        self.access
    }

    /// Never map, whatever the filesystem: it gave no blocks ahead, or a test asks.
    pub fn write_only(&mut self) {
        self.access = Access::Write;
    }

    /// Takes the file away again: nothing was recorded.
    pub fn discard(self) {
        if let Ok(name) = CString::new(self.path.as_os_str().as_bytes()) {
            // SAFETY: the path was made by us with O_EXCL a moment ago.
            unsafe { libc::unlink(name.as_ptr()) };
        }
        let kept = self.descriptor.load(Ordering::Relaxed);
        if identity(kept) == Some((self.device, self.inode)) {
            close(kept);
        }
    }

    /// Runs `work` on a descriptor that is the file's for certain: a fresh number, which the
    /// program cannot know, checked by device and inode. If the program closed ours (or put
    /// something else under its number) the file is opened again by its path.
    fn with<R>(&self, work: impl FnOnce(i32) -> Result<R, Failure>) -> Result<R, Failure> {
        uncancelled(|| self.with_descriptor(work))
    }

    fn with_descriptor<R>(
        &self,
        work: impl FnOnce(i32) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let kept = self.descriptor.load(Ordering::Relaxed);
        // SAFETY: fails with EBADF on a closed number.
        let fresh = unsafe { libc::fcntl(kept, libc::F_DUPFD_CLOEXEC, DESCRIPTOR_FROM) };
        if fresh >= 0 && identity(fresh) == Some((self.device, self.inode)) {
            let result = work(fresh);
            close(fresh);
            return result;
        }
        if fresh < 0 && matches!(errno(), libc::EMFILE | libc::EINVAL) {
            // No number is free up there: use the kept one itself.
            if identity(kept) == Some((self.device, self.inode)) {
                return work(kept);
            }
        } else if fresh >= 0 {
            close(fresh);
        }
        let again = self.reopen()?;
        work(again)
    }

    fn reopen(&self) -> Result<i32, Failure> {
        let lost = Failure { reason: StopReason::DescriptorLost, errno: libc::EBADF };
        let name = CString::new(self.path.as_os_str().as_bytes()).map_err(|_| lost)?;
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a C string and plain flags.
        let low = unsafe { libc::open(name.as_ptr(), flags) };
        if low < 0 {
            return Err(lost);
        }
        if identity(low) != Some((self.device, self.inode)) {
            close(low);
            return Err(lost);
        }
        let descriptor = move_up(low);
        // The old number is the program's now: it is not closed.
        self.descriptor.store(descriptor, Ordering::Relaxed);
        Ok(descriptor)
    }

    /// Growing a file past RLIMIT_FSIZE is a SIGXFSZ that kills: look first.
    fn within_limit(&self, end: u64) -> Result<(), Failure> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills the struct.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
        if known && limit.rlim_cur != libc::RLIM_INFINITY && end > limit.rlim_cur {
            return Err(Failure { reason: StopReason::FileSizeLimit, errno: libc::EFBIG });
        }
        Ok(())
    }

    /// Blocks for a range, mapped and touched: from here on stores to it cannot fail.
    pub fn map(&self, offset: u64, bytes: usize) -> Result<*mut u8, Failure> {
        let end = offset + bytes as u64;
        self.within_limit(end)?;
        self.with(|descriptor| {
            allocate(descriptor, offset, bytes)?;
            if self.write_first {
                write_zeros(descriptor, offset, bytes);
            }
            self.length.fetch_max(end, Ordering::Relaxed);
            // SAFETY: a fresh mapping; touches nothing that exists.
            unsafe {
                let at = libc::mmap(
                    std::ptr::null_mut(),
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    descriptor,
                    offset as libc::off_t,
                );
                if at == libc::MAP_FAILED {
                    return Err(Failure::last(StopReason::MapFailed));
                }
                if let Err(failure) = populate(at.cast(), bytes) {
                    libc::munmap(at, bytes);
                    return Err(failure);
                }
                Ok(at.cast())
            }
        })
    }

    /// Writes all of it.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        let end = offset + bytes.len() as u64;
        self.within_limit(end)?;
        self.with(|descriptor| {
            let mut done = 0;
            while done < bytes.len() {
                let rest = &bytes[done..];
                // SAFETY: the slice is readable.
                let wrote = unsafe {
                    libc::pwrite(
                        descriptor,
                        rest.as_ptr().cast(),
                        rest.len(),
                        (offset + done as u64) as libc::off_t,
                    )
                };
                match wrote {
                    0 => {
                        return Err(Failure { reason: StopReason::WriteFailed, errno: libc::EIO });
                    }
                    wrote if wrote > 0 => done += wrote as usize,
                    _ if errno() == libc::EINTR => {}
                    _ => return Err(Failure::last(StopReason::WriteFailed)),
                }
            }
            self.length.fetch_max(end, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Reads what was written; zeros behind the end of the file.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), Failure> {
        self.with(|descriptor| {
            let mut done = 0;
            while done < bytes.len() {
                let rest = &mut bytes[done..];
                // SAFETY: the slice is writable.
                let got = unsafe {
                    libc::pread(
                        descriptor,
                        rest.as_mut_ptr().cast(),
                        rest.len(),
                        (offset + done as u64) as libc::off_t,
                    )
                };
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

    /// Gives the blocks of a range back; the file keeps its length.
    pub fn punch(&self, offset: u64, bytes: u64) -> Result<(), Failure> {
        self.with(|descriptor| {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            loop {
                // SAFETY: changes a range of our file that nobody maps any more.
                let done = unsafe {
                    libc::fallocate(descriptor, mode, offset as libc::off_t, bytes as libc::off_t)
                };
                if done == 0 {
                    return Ok(());
                }
                if errno() != libc::EINTR {
                    return Err(Failure::last(StopReason::CannotPunch));
                }
            }
        })
    }
}

fn close(descriptor: i32) {
    // SAFETY: a number that we were just given.
    unsafe { libc::close(descriptor) };
}

/// (device, inode) of an open descriptor.
fn identity(descriptor: i32) -> Option<(u64, u64)> {
    // SAFETY: fstat fills what it is given.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor, &mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

/// The same file under a number out of the program's way.
fn move_up(low: i32) -> i32 {
    // SAFETY: on a descriptor that we were just given.
    let high = unsafe { libc::fcntl(low, libc::F_DUPFD_CLOEXEC, DESCRIPTOR_FROM) };
    if high < 0 {
        return low;
    }
    close(low);
    high
}

/// Mapping is for filesystems where blocks given ahead stay: a store can then not run into a full
/// disk. Those that copy on write need new blocks for a page that was written back (btrfs, also
/// below an overlay: it alone tells of no inodes), and a store would be a SIGBUS.
///
/// True: on a disk.
fn access(descriptor: i32) -> (Access, bool) {
    // SAFETY: fstatfs fills what it is given.
    unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(descriptor, &mut info) != 0 {
            return (Access::Write, false);
        }
        match info.f_type as u64 & 0xFFFF_FFFF {
            TMPFS => (Access::Map, false),
            EXT | XFS => (Access::Map, true),
            OVERLAY if info.f_files != 0 => (Access::Map, true),
            _ => (Access::Write, false),
        }
    }
}

fn allocate(descriptor: i32, offset: u64, bytes: usize) -> Result<(), Failure> {
    loop {
        // SAFETY: grows our own file.
        let done =
            unsafe { libc::fallocate(descriptor, 0, offset as libc::off_t, bytes as libc::off_t) };
        if done == 0 {
            return Ok(());
        }
        if errno() != libc::EINTR {
            return Err(Failure::last(StopReason::MapFailed));
        }
    }
}

/// Fills a range that was given blocks and that nobody has written: makes its pages in bulk.
/// Where that does not succeed, they are made one by one when they are touched.
fn write_zeros(descriptor: i32, offset: u64, bytes: usize) {
    static ZEROS: [u8; 16 << 10] = [0; 16 << 10];
    let one = libc::iovec { iov_base: ZEROS.as_ptr() as *mut _, iov_len: ZEROS.len() };
    let parts = [one; 64];
    let mut done = 0;
    while done < bytes {
        let count = ((bytes - done) / ZEROS.len()).min(parts.len());
        let at = (offset + done as u64) as libc::off_t;
        // SAFETY: only reads the zeros, and stays inside the range.
        let wrote = unsafe { libc::pwritev(descriptor, parts.as_ptr(), count as i32, at) };
        // Whole parts only; a signal's interruption is not worth another try.
        if wrote <= 0 || !(wrote as usize).is_multiple_of(ZEROS.len()) {
            return;
        }
        done += wrote as usize;
    }
}

/// Touches every page for writing, so that an error shows here and not as a SIGBUS at a store.
///
/// # Safety
/// The range is a mapping of ours.
unsafe fn populate(at: *mut u8, bytes: usize) -> Result<(), Failure> {
    loop {
        // SAFETY: as the caller says; the contents stay.
        if unsafe { libc::madvise(at.cast(), bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        match errno() {
            libc::EINTR | libc::EAGAIN => {}
            // Before Linux 5.14: the blocks are there, which is what a store needs.
            libc::EINVAL => return Ok(()),
            libc::EFAULT => {
                return Err(Failure { reason: StopReason::DiskFull, errno: libc::EFAULT });
            }
            errno => return Err(Failure::of(errno, StopReason::MapFailed)),
        }
    }
}
