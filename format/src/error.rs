//! Why a file cannot be read at all. The reader reports what is merely damaged
//! ([`crate::Damage`]).

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Shorter than the header page.
    TooShort { bytes: u64 },
    /// It does not begin as a trace does.
    NotATrace,
    /// Written by a newer vramtrace whose files this one cannot read.
    NewerMajor { found: u16, known: u16 },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::TooShort { bytes } => {
                write!(f, "only {bytes} bytes long; a vramtrace trace has 4096 or more")
            }
            Error::NotATrace => write!(f, "not a vramtrace trace (its first bytes are others)"),
            Error::NewerMajor { found, known } => write!(
                f,
                "trace format {found} is newer than this vramtrace reads ({known}): use a newer vramtrace"
            ),
        }
    }
}

impl std::error::Error for Error {}
