//! Traced processes that run now, and the groups that share a cap: what their pages in memory
//! say, and orders to them. Pages are read and written as files, never mapped: whoever owns one
//! could cut it short under us.

mod directory;
pub mod group;
pub mod process;

pub use directory::Directory;

use std::fmt;
use std::path::PathBuf;

/// Why a page is not used.
#[derive(Debug)]
pub enum Problem {
    Io(PathBuf, std::io::Error),
    /// It belongs to this user.
    Owner(PathBuf, u32),
    Mode(PathBuf, u32),
    NotPlain(PathBuf),
    /// Another version's, or nothing of ours.
    Unknown(PathBuf),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Problem::Io(path, error) if error.raw_os_error() == Some(libc::ELOOP) => {
                write!(f, "{} is a link; remove it", path.display())
            }
            Problem::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Problem::Owner(path, owner) => write!(
                f,
                "{} belongs to user {owner}; whose processes are meant must own it",
                path.display()
            ),
            Problem::Mode(path, mode) => {
                write!(f, "{} is open to others (mode {mode:o}); chmod go-rwx it", path.display())
            }
            Problem::NotPlain(path) => {
                write!(f, "{} is no plain file of one name; remove it", path.display())
            }
            Problem::Unknown(path) => {
                write!(f, "{} is not a page of this version of vramtrace", path.display())
            }
        }
    }
}

impl std::error::Error for Problem {}
