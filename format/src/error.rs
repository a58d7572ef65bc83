//! Why a file cannot be read at all, and why a text is not a value of a setting. Damage that leaves a file readable is
//! [`crate::Damage`].

use std::borrow::Cow;

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
    /// Written before format 2, of which no version was released.
    #[error("trace format 1.{minor}: only a vramtrace built before format 2.0 can read it")]
    OlderMajor { minor: u16 },
}

/// Why a text is not a value of a variable or option, with what would be right. It is printed after the text: "`8` has no
/// unit; ...".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotUnderstood(pub Cow<'static, str>);

impl NotUnderstood {
    pub(crate) fn new<T>(why: impl Into<Cow<'static, str>>) -> Result<T, NotUnderstood> {
        Err(NotUnderstood(why.into()))
    }
}

/// The value that the text names.
pub(crate) fn one_of<T: Copy>(
    text: &str,
    values: &[(&str, T)],
    why_not: &'static str,
) -> Result<T, NotUnderstood> {
    let found = values.iter().find(|(name, _)| *name == text);
    found.map_or_else(|| NotUnderstood::new(why_not), |(_, value)| Ok(*value))
}
