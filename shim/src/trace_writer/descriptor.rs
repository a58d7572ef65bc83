//! An open file of ours in somebody else's process: its descriptor may be closed, or become another
//! file's, at any time.

use super::failure::{Failure, errno};
use crate::runtime::uncancelled::uncancelled;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use vramtrace_format::StopReason;

/// Descriptors from here on: programs expect to be given the lowest numbers.
const DESCRIPTOR_FROM: i32 = 200;

pub struct Descriptor {
    /// Changes when the program closed it and the file was opened again.
    number: AtomicI32,
    device: u64,
    inode: u64,
    path: PathBuf,
    mode: libc::mode_t,
}

/// What is known of an open file.
struct About {
    device: u64,
    inode: u64,
    length: u64,
}

impl Descriptor {
    /// A new file of this name; the failure has errno EEXIST where the name is taken.
    pub fn create(path: PathBuf, mode: libc::mode_t) -> Result<Descriptor, Failure> {
        let flags =
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
            return Err(Failure { reason: StopReason::WriteFailed, errno: libc::EINVAL });
        };
        // SAFETY: a C string and plain flags.
        let low = unsafe { libc::open(name.as_ptr(), flags, mode) };
        if low < 0 {
            return Err(Failure::last(StopReason::WriteFailed));
        }
        let number = move_up(low);
        let Some(About { device, inode, .. }) = about(number) else {
            return Err(Failure::last(StopReason::WriteFailed));
        };
        Ok(Descriptor { number: AtomicI32::new(number), device, inode, path, mode })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the name away, and closes it. Where the name leads to another file by now, that stays.
    pub fn remove(self) {
        let kept = self.number.load(Ordering::Relaxed);
        if let Ok(name) = CString::new(self.path.as_os_str().as_bytes())
            && self.is_at(&name)
        {
            // SAFETY: a C string; it leads to the file that we made.
            unsafe { libc::unlink(name.as_ptr()) };
        }
        if about(kept).is_some_and(|about| self.is_same_file(&about)) {
            close(kept);
        }
    }

    /// Runs `work` on a descriptor that is the file's for certain: a fresh number, which the
    /// program cannot know, checked by device and inode. If the program closed ours (or put
    /// something else under its number) the file is opened again by its path. `work` also gets
    /// the file's length.
    pub fn with<R>(&self, work: impl FnOnce(i32, u64) -> Result<R, Failure>) -> Result<R, Failure> {
        uncancelled(|| self.with_number(work))
    }

    fn with_number<R>(
        &self,
        work: impl FnOnce(i32, u64) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let kept = self.number.load(Ordering::Relaxed);
        // SAFETY: fails with EBADF on a closed number.
        let fresh = unsafe { libc::fcntl(kept, libc::F_DUPFD_CLOEXEC, DESCRIPTOR_FROM) };
        if fresh >= 0 {
            if let Some(about) = about(fresh).filter(|about| self.is_same_file(about)) {
                let result = work(fresh, about.length);
                close(fresh);
                return result;
            }
            close(fresh);
        } else if matches!(errno(), libc::EMFILE | libc::EINVAL)
            // No number is free up there: use the kept one itself.
            && let Some(about) = about(kept).filter(|about| self.is_same_file(about))
        {
            return work(kept, about.length);
        }
        let (again, length) = self.reopen()?;
        work(again, length)
    }

    fn reopen(&self) -> Result<(i32, u64), Failure> {
        let lost = Failure { reason: StopReason::DescriptorLost, errno: libc::EBADF };
        let name = CString::new(self.path.as_os_str().as_bytes()).map_err(|_| lost)?;
        let low = self.open(&name);
        if low < 0 {
            return Err(lost);
        }
        let Some(about) = about(low).filter(|about| self.is_same_file(about)) else {
            close(low);
            return Err(lost);
        };
        let number = move_up(low);
        // The old number is the program's now: it is not closed.
        self.number.store(number, Ordering::Relaxed);
        Ok((number, about.length))
    }

    /// By its name, for writing, whatever its mode says.
    fn open(&self, name: &CString) -> i32 {
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a C string and plain flags.
        let open = || unsafe { libc::open(name.as_ptr(), flags) };
        let opened = open();
        if opened >= 0 || errno() != libc::EACCES || !self.is_at(name) {
            return opened;
        }
        // SAFETY: a C string, and a descriptor that was just given.
        unsafe {
            libc::chmod(name.as_ptr(), self.mode | libc::S_IWUSR);
            let opened = open();
            libc::chmod(name.as_ptr(), self.mode);
            opened
        }
    }

    /// Whether a descriptor is open on the trace file.
    fn is_same_file(&self, about: &About) -> bool {
        (about.device, about.inode) == (self.device, self.inode)
    }

    /// Whether the name leads to the file.
    fn is_at(&self, name: &CString) -> bool {
        // SAFETY: a C string; fills the struct.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::lstat(name.as_ptr(), &mut stat) == 0
                && (stat.st_dev, stat.st_ino) == (self.device, self.inode)
        }
    }
}

fn about(number: i32) -> Option<About> {
    // SAFETY: fstat fills what it is given.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(number, &mut stat) == 0).then_some(About {
            device: stat.st_dev,
            inode: stat.st_ino,
            length: stat.st_size as u64,
        })
    }
}

fn close(number: i32) {
    // SAFETY: a number that we were just given.
    unsafe { libc::close(number) };
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

/// Growing a file past RLIMIT_FSIZE is a SIGXFSZ that kills: look first.
pub fn within_limit(end: u64) -> Result<(), Failure> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the struct.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY && end > limit.rlim_cur {
        return Err(Failure { reason: StopReason::FileSizeLimit, errno: libc::EFBIG });
    }
    Ok(())
}

/// Changes the blocks of a range.
pub fn allocate(number: i32, mode: i32, offset: u64, bytes: u64) -> Result<(), Failure> {
    loop {
        // SAFETY: changes our own file.
        let done =
            unsafe { libc::fallocate(number, mode, offset as libc::off_t, bytes as libc::off_t) };
        if done == 0 {
            return Ok(());
        }
        if errno() != libc::EINTR {
            return Err(Failure::last(StopReason::WriteFailed));
        }
    }
}

/// Writes all parts, one behind the other.
///
/// # Safety
/// Each part is readable; another thread may be storing there: what is written then is old or new.
pub unsafe fn write(number: i32, parts: &[(*const u8, usize)], at: u64) -> Result<(), Failure> {
    let mut at = at;
    for &(mut from, mut bytes) in parts {
        while bytes > 0 {
            // SAFETY: as the caller says.
            let wrote = unsafe { libc::pwrite(number, from.cast(), bytes, at as libc::off_t) };
            match wrote {
                0 => return Err(Failure { reason: StopReason::WriteFailed, errno: libc::EIO }),
                wrote if wrote > 0 => {
                    let wrote = wrote as usize;
                    (from, bytes) = (from.wrapping_add(wrote), bytes - wrote);
                    at += wrote as u64;
                }
                _ if errno() == libc::EINTR => {}
                _ => return Err(Failure::last(StopReason::WriteFailed)),
            }
        }
    }
    Ok(())
}
