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
use std::io::ErrorKind;
use std::path::PathBuf;

use vramtrace_reader::units::{clean, count};

/// Why a page cannot be used. The message names the path and what to do.
#[derive(Debug, thiserror::Error)]
pub enum PageProblem {
    #[error("{}{}", .0.display(), of_io(.1))]
    Io(PathBuf, std::io::Error),
    /// The file belongs to the user with this id.
    #[error("{} belongs to user {}: it must belong to the user of the processes", .0.display(), .1)]
    Owner(PathBuf, u32),
    #[error("{} is open to others (mode {:o}); chmod go-rwx it", .0.display(), .1)]
    Mode(PathBuf, u32),
    #[error("{} is not a regular file with a single hard link; remove it", .0.display())]
    NotPlain(PathBuf),
    #[error("{} is not a page of this version of vramtrace", .0.display())]
    Unknown(PathBuf),
    #[error(
        "a group needs System V shared memory (shmget, shmat): {0}; raise kernel.shmmni \
         or kernel.shmall, or allow these calls (seccomp)"
    )]
    NoSharedMemory(std::io::Error),
}

impl PageProblem {
    /// The file or directory is not there (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self, PageProblem::Io(_, error) if error.kind() == ErrorKind::NotFound)
    }
}

fn of_io(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ELOOP) => " is a link; remove it".into(),
        _ => format!(": {error}"),
    }
}

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
