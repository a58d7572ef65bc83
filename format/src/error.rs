//! Why a file cannot be read at all. Damage that leaves a file readable is [`crate::Damage`].

/// Why a file cannot be read as a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Shorter than the header page.
    #[error("only {bytes} bytes long; a vramtrace trace has 4096 or more")]
    TooShort { bytes: u64 },
    /// It does not begin with [`crate::header::MAGIC`].
    #[error("not a vramtrace trace (it does not begin with the magic number)")]
    NotATrace,
    /// Written by a newer vramtrace whose files this one cannot read.
    #[error(
        "trace format {found} is newer than this vramtrace can read ({known}): use a newer vramtrace"
    )]
    NewerMajor { found: u16, known: u16 },
}
