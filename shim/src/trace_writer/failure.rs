//! Why a file could not be used, for the `Stopped` record and the line on stderr.

use crate::runtime::errno;
use crate::runtime::private_table::NoTask;
use std::fmt;
use vramtrace_format::StopReason;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: StopReason,
    pub errno: i32,
}

impl Failure {
    /// Whether another thread may have the rights that this one lacks, or this one later. Not so of a full disk, of the
    /// limits of the process, and of a file that is gone.
    pub fn may_pass(&self) -> bool {
        use libc::{EACCES, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSYS, ENOTDIR, EPERM};
        let of_thread =
            [EACCES, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSYS, ENOTDIR, EPERM, libc::ELOOP];
        match self.reason {
            StopReason::NoTask => true,
            StopReason::WriteFailed => of_thread.contains(&self.errno),
            _ => false,
        }
    }

    /// The failure of the last system call, by errno.
    pub fn last(otherwise: StopReason) -> Failure {
        Failure::of(errno::get(), otherwise)
    }

    pub fn of(errno: i32, otherwise: StopReason) -> Failure {
        let reason = match errno {
            libc::ENOSPC | libc::EDQUOT => StopReason::DiskFull,
            libc::EFBIG => StopReason::FileSizeLimit,
            _ => otherwise,
        };
        Failure { reason, errno }
    }
}

impl From<NoTask> for Failure {
    fn from(NoTask { errno }: NoTask) -> Failure {
        Failure { reason: StopReason::NoTask, errno }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Failure { reason, errno } = *self;
        f.write_str(match reason {
            StopReason::DiskFull => "the disk is full",
            StopReason::FileSizeLimit => "the file size limit (ulimit -f) is reached",
            StopReason::DescriptorLost => "it was deleted, or moved to another directory",
            StopReason::NoTask => {
                return write!(
                    f,
                    "the system makes no thread to write it with (errno {errno}; see RLIMIT_NPROC, \
                     pids.max, seccomp)"
                );
            }
            StopReason::CannotPunch => "VRAMTRACE_MAX is reached and old events cannot be removed",
            StopReason::MapFailed if errno == 0 => "it cannot be mapped",
            StopReason::WriteFailed if errno == 0 => "it cannot be written",
            _ => return write!(f, "{}", std::io::Error::from_raw_os_error(errno)),
        })
    }
}
