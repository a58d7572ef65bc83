//! Where a trace goes, as it is written: `VRAMTRACE_OUT` and `--out`. `off`, or a file or a directory with
//! %-codes. Parsed here, by the recorder that opens the file and by the command that looks for it
//! afterwards.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// How the name of a trace ends.
pub const EXTENSION: &str = "vtrace";

/// A trace's name in a directory: host, pid and start tell processes apart.
pub const DEFAULT_NAME: &str = "vramtrace.%h.%p.%t.vtrace";

/// Records nothing; a cap still holds.
pub const OFF: &str = "off";

/// A value of `VRAMTRACE_OUT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out<'a> {
    /// Nothing is given.
    Default,
    Off,
    /// All its codes are known.
    Pattern(&'a [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error(
        "%{} is unknown; there are %h host, %p pid, %r rank, %e executable, %t start and %%",
        .0.escape_ascii()
    )]
    UnknownCode(u8),
    #[error("ends in a single %; write %% for a percent sign")]
    EndsInPercent,
}

pub fn parse(value: &[u8]) -> Result<Out<'_>, PatternError> {
    match value {
        b"" => Ok(Out::Default),
        _ if value == OFF.as_bytes() => Ok(Out::Off),
        pattern => {
            parts(pattern).try_for_each(|part| part.map(drop))?;
            Ok(Out::Pattern(pattern))
        }
    }
}

/// A part of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Also of `%%`.
    Byte(u8),
    Host,
    Pid,
    Rank,
    Executable,
    Started,
}

pub fn parts(pattern: &[u8]) -> impl Iterator<Item = Result<Part, PatternError>> {
    let mut bytes = pattern.iter();
    std::iter::from_fn(move || {
        let byte = *bytes.next()?;
        if byte != b'%' {
            return Some(Ok(Part::Byte(byte)));
        }
        Some(match bytes.next() {
            Some(b'h') => Ok(Part::Host),
            Some(b'p') => Ok(Part::Pid),
            Some(b'r') => Ok(Part::Rank),
            Some(b'e') => Ok(Part::Executable),
            Some(b't') => Ok(Part::Started),
            Some(b'%') => Ok(Part::Byte(b'%')),
            Some(other) => Err(PatternError::UnknownCode(*other)),
            None => Err(PatternError::EndsInPercent),
        })
    })
}

/// Whether the pattern is a file's: it ends in the extension, and is longer than that. Others are
/// directories, and what ends in a slash is.
pub fn is_file(pattern: &[u8]) -> bool {
    let name = pattern.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.strip_suffix(EXTENSION.as_bytes())
        .is_some_and(|rest| rest.len() > 1 && rest.ends_with(b"."))
}

/// `/dev/null`, by any name, records nothing.
pub fn is_null_device(path: &Path) -> bool {
    // Of major number 1 and minor number 3.
    const NULL: u64 = 1 << 8 | 3;
    let about = std::fs::metadata(path);
    about.is_ok_and(|about| about.file_type().is_char_device() && about.rdev() == NULL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(parse(b""), Ok(Out::Default));
        assert_eq!(parse(b"off"), Ok(Out::Off));
        for pattern in ["off/", "Off", "off.vtrace", "/t/%h.%p.%r.%e.%t.%%.vtrace"] {
            assert_eq!(parse(pattern.as_bytes()), Ok(Out::Pattern(pattern.as_bytes())));
        }
        assert_eq!(parse(b"a%x"), Err(PatternError::UnknownCode(b'x')));
        assert_eq!(parse(b"a%%%"), Err(PatternError::EndsInPercent));
        let all: Vec<Part> = parts(b"%h%p%r%e%t%%a").map(Result::unwrap).collect();
        let codes = [Part::Host, Part::Pid, Part::Rank, Part::Executable, Part::Started];
        assert_eq!((&all[..5], &all[5..]), (&codes[..], &[Part::Byte(b'%'), Part::Byte(b'a')][..]));
    }

    #[test]
    fn files_and_directories() {
        for file in ["a.vtrace", "/t/%p.vtrace", "a.b.vtrace", "a//b.vtrace"] {
            assert!(is_file(file.as_bytes()), "{file}");
        }
        for directory in
            ["a.vtrace/", ".vtrace", "t/.vtrace", "vtrace", "a.vtrace2", "t/vtrace", "/"]
        {
            assert!(!is_file(directory.as_bytes()), "{directory}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a device of the machine")]
    fn the_null_device() {
        assert!(is_null_device(Path::new("/dev/null")));
        assert!(!is_null_device(Path::new("/dev/zero")) && !is_null_device(Path::new("/dev/none")));
    }
}
