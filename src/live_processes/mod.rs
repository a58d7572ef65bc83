//! Recorded processes that run now, and groups that share a cap: reads their pages in shared memory and changes
//! their caps.

// `metrics` is the user of a part of these files.
#![cfg_attr(not(feature = "metrics"), allow(dead_code))]

#[cfg(any(feature = "metrics", feature = "top"))]
pub mod background;
pub mod control;
mod directory;
#[cfg(any(feature = "metrics", feature = "top"))]
pub mod followed;
pub mod group;
pub mod owner;
pub mod places;
pub mod process;
mod segment;

pub use directory::PageDirectory;

use std::collections::HashSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use vramtrace_format::size::Bytes;
use vramtrace_reader::units::{clean, count};

/// Why a page cannot be used. The message names the path and what to do.
#[derive(Debug)]
pub enum PageProblem {
    Io(PathBuf, std::io::Error),
    /// The file belongs to the user with this id.
    Owner(PathBuf, u32),
    Mode(PathBuf, u32),
    NotPlain(PathBuf),
    /// Not a page of a known version.
    Unknown(PathBuf),
    /// Its segment is of another ipc namespace.
    OtherNamespace(PathBuf),
    NotInMemory(PathBuf),
    /// Why segments of shared memory cannot be made.
    NoSharedMemory(std::io::Error),
}

impl PageProblem {
    /// The file or directory is not there (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self, PageProblem::Io(_, error) if error.kind() == ErrorKind::NotFound)
    }
}

impl fmt::Display for PageProblem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            PageProblem::Io(path, error) => match error.raw_os_error() {
                Some(libc::ELOOP) => write!(f, "{} is a link; remove it", path.display()),
                Some(libc::ENOSPC) => {
                    write!(f, "{} cannot be created: {}", path.display(), Full)
                }
                _ => write!(f, "{}: {error}", path.display()),
            },
            PageProblem::Owner(path, owner) => write!(
                f,
                "{} belongs to user {owner}: it must belong to the user of the processes",
                path.display()
            ),
            PageProblem::Mode(path, mode) => {
                write!(f, "{} is open to others (mode {mode:o}); chmod go-rwx it", path.display())
            }
            PageProblem::NotPlain(path) => write!(
                f,
                "{} is not a regular file with a single hard link; remove it",
                path.display()
            ),
            PageProblem::Unknown(path) => {
                write!(f, "{} is not a page of this version of vramtrace", path.display())
            }
            PageProblem::OtherNamespace(path) => write!(
                f,
                "{} belongs to another container (ipc namespace): run the command there",
                path.display()
            ),
            PageProblem::NotInMemory(path) => {
                write!(f, "{} is not on a tmpfs; mount a tmpfs at /dev/shm", path.display())
            }
            PageProblem::NoSharedMemory(error) => write!(
                f,
                "a group needs System V shared memory (shmget, shmat): {error}; raise kernel.shmmni \
                 or kernel.shmall, or allow these calls (seccomp)"
            ),
        }
    }
}

impl std::error::Error for PageProblem {}

/// How many problems are printed.
const PRINTED: usize = 10;

/// The problems as lines, each once. Of many the first, and how many more there are.
pub fn lines(problems: &[PageProblem]) -> Vec<String> {
    let mut seen = HashSet::new();
    let all = problems.iter().map(|problem| clean(&problem.to_string()));
    let mut lines: Vec<String> = all.filter(|line| seen.insert(line.clone())).collect();
    if let Some(more) = lines.len().checked_sub(PRINTED + 1) {
        lines.truncate(PRINTED);
        lines.push(format!("{} more pages cannot be read", count(more as u64 + 1)));
    }
    lines
}

/// `/dev/shm is full (64.00 MiB, 16384 files)`: 64 MiB is the default of Docker.
struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        // SAFETY: a C string and a struct of our own.
        let (result, fs) = unsafe {
            let mut fs: libc::statvfs = std::mem::zeroed();
            (libc::statvfs(c"/dev/shm".as_ptr(), &mut fs), fs)
        };
        let bytes = Bytes(fs.f_blocks.saturating_mul(fs.f_frsize));
        f.write_str("/dev/shm is full")?;
        match result {
            0 => write!(f, " ({bytes}, {} files); remove files from it, or enlarge it", fs.f_files),
            _ => Ok(()),
        }
    }
}
