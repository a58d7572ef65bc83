//! Parses `VRAMTRACE_OUT` and `--out`: `off`, or the pattern of a file or directory with %-codes. The recorder opens
//! the file; the command looks for it afterwards.

use std::path::Path;

/// Extension of a trace's file name, without the dot.
pub const EXTENSION: &str = "vtrace";

/// Name of a trace in a directory. Host, pid and start time identify the process.
pub const DEFAULT_NAME: &str = "vramtrace.%h.%p.%t.vtrace";

/// The value that turns recording off. A cap is still enforced.
pub const OFF: &str = "off";

/// A value of `VRAMTRACE_OUT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out<'a> {
    /// The value is empty.
    Default,
    Off,
    /// A pattern, all of whose %-codes are known.
    Pattern(&'a [u8]),
}

/// Why a pattern is invalid.
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

/// Parses a value of `VRAMTRACE_OUT`.
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
    /// A byte of the pattern, or the `%` that `%%` stands for.
    Byte(u8),
    Host,
    Pid,
    Rank,
    Executable,
    Started,
}

/// Splits a pattern into its parts. After an error, iteration continues behind the invalid code.
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

/// Whether the pattern names a file: its last component is a name with the extension `.vtrace`. Any other pattern names
/// a directory.
pub fn is_file(pattern: &[u8]) -> bool {
    let name = pattern.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.strip_suffix(EXTENSION.as_bytes())
        .is_some_and(|rest| rest.len() > 1 && rest.ends_with(b"."))
}

/// Whether the path is the null device, under any name: then nothing is recorded.
#[cfg(unix)]
pub fn is_null_device(path: &Path) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    // Major number 1, minor number 3.
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
