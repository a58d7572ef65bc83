//! Why a file cannot be read at all. The reader reports what is merely damaged
//! ([`crate::Damage`]).

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Shorter than the header page.
    #[error("only {bytes} bytes long; a vramtrace trace has 4096 or more")]
    TooShort { bytes: u64 },
    /// It does not begin as a trace does.
    #[error("not a vramtrace trace (its first bytes are others)")]
    NotATrace,
    /// Written by a newer vramtrace whose files this one cannot read.
    #[error(
        "trace format {found} is newer than this vramtrace reads ({known}): use a newer vramtrace"
    )]
    NewerMajor { found: u16, known: u16 },
}
