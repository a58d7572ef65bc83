//! How a cap is applied, as it is written: `refuse` or `warn`, a soft limit, the name of a group;
//! and where an out-of-memory is reported.
//! Parsed here, by the shim and by the command that checks it before a program starts.

use crate::capspec::{self, CapError, CapSpec, Limit, LimitError};

/// What happens to a request that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It gets CUDA_ERROR_OUT_OF_MEMORY.
    #[default]
    Refuse,
    /// It is counted and reported, and goes to the driver.
    Warn,
}

/// The messages of this file follow the text: `stop` is not refuse or warn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not refuse or warn")]
pub struct NotAMode;

impl Mode {
    pub fn parse(text: &str) -> Result<Mode, NotAMode> {
        match text.trim() {
            "refuse" => Ok(Mode::Refuse),
            "warn" => Ok(Mode::Warn),
            _ => Err(NotAMode),
        }
    }
}

/// Where a post-mortem is written: `VRAMTRACE_OOM_REPORT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OomReport {
    #[default]
    Stderr,
    /// Beside the trace.
    File,
    /// Only in the trace.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not stderr, file or off")]
pub struct NotAnOomReport;

impl OomReport {
    pub fn parse(text: &str) -> Result<OomReport, NotAnOomReport> {
        match text.trim() {
            "stderr" => Ok(OomReport::Stderr),
            "file" => Ok(OomReport::File),
            "off" => Ok(OomReport::Off),
            _ => Err(NotAnOomReport),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SoftLimitError {
    #[error("takes one limit for all devices; write 80% or 6GiB")]
    Several,
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// A soft limit: a size, or a share of the cap (of the device where there is no cap).
pub fn soft(text: &str) -> Result<Limit, SoftLimitError> {
    match text.contains('=') || text.contains(',') {
        true => Err(SoftLimitError::Several),
        false => Ok(capspec::limit(text.trim())?),
    }
}

/// `VRAMTRACE_CAP_GROUP`: `NAME`, or `NAME:8GiB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    pub name: String,
    /// What the group shares; absent: what `VRAMTRACE_CAP` says.
    pub cap: Option<CapSpec>,
}

/// Longest name of a group.
pub const NAME_MOST: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error(transparent)]
    Name(#[from] NotAGroupName),
    #[error(transparent)]
    Cap(#[from] CapError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "is no name of a group; write 1 to {} letters, digits, -, _ or . (and, after \
     a colon, what the group shares: training:8GiB)",
    NAME_MOST
)]
pub struct NotAGroupName;

impl GroupSpec {
    pub fn parse(text: &str) -> Result<GroupSpec, GroupError> {
        let (name, cap) = match text.split_once(':') {
            Some((name, cap)) => (name, Some(capspec::parse(cap)?)),
            None => (text, None),
        };
        check_name(name)?;
        Ok(GroupSpec { name: name.into(), cap })
    }
}

/// A name that can be part of a file's name.
pub fn check_name(name: &str) -> Result<(), NotAGroupName> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match !name.is_empty() && name.len() <= NAME_MOST && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(NotAGroupName),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_understood() {
        assert_eq!(Mode::parse("refuse"), Ok(Mode::Refuse));
        assert_eq!(Mode::parse("warn"), Ok(Mode::Warn));
        assert_eq!(OomReport::parse("stderr"), Ok(OomReport::Stderr));
        assert_eq!(OomReport::parse("file"), Ok(OomReport::File));
        assert_eq!(OomReport::parse("off"), Ok(OomReport::Off));
        assert_eq!(soft("6GiB"), Ok(Limit::Bytes(6 << 30)));
        assert_eq!(soft("80%").map(|limit| limit.bytes(1000)), Ok(800));
        let plain = GroupSpec { name: "two-services_1.a".into(), cap: None };
        assert_eq!(GroupSpec::parse("two-services_1.a"), Ok(plain));
        let shared = GroupSpec::parse("job:0=8GiB,1=50%").unwrap();
        assert_eq!((shared.name.as_str(), shared.cap.unwrap().rules.len()), ("job", 2));
    }

    #[test]
    fn what_is_not_says_what_would_be_right() {
        assert!(Mode::parse("Warn!").unwrap_err().to_string().contains("refuse or warn"));
        assert!(
            OomReport::parse("stdout").unwrap_err().to_string().contains("stderr, file or off")
        );
        assert!(soft("0=80%").unwrap_err().to_string().contains("80%"));
        assert!(soft("80").unwrap_err().to_string().contains("unit"));
        assert!(soft("0%").unwrap_err().to_string().contains("above 0"));
        for name in ["", "a/b", "..", "a b", ":8GiB", &"x".repeat(65)] {
            // Two dots are a name of letters and dots; it is never used without a prefix.
            assert_eq!(GroupSpec::parse(name).is_err(), name != "..", "{name}");
        }
        assert!(GroupSpec::parse("a:8").unwrap_err().to_string().contains("8GiB"));
    }
}
