//! Parses the variables that say how a cap is applied (`refuse` or `warn`, a soft limit, the name of a group) and
//! where an out-of-memory is reported. The recorder applies them; the command checks them before a program starts.

use crate::capspec::{self, CapSpec, Limit};
use crate::error::{NotUnderstood, one_of};

/// What happens to a request that exceeds the cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The call returns `CUDA_ERROR_OUT_OF_MEMORY`.
    #[default]
    Refuse,
    /// The request is counted and reported, and the driver is called.
    Warn,
}

impl Mode {
    /// Parses a mode; surrounding spaces are ignored.
    pub fn parse(text: &str) -> Result<Mode, NotUnderstood> {
        let modes = [("refuse", Mode::Refuse), ("warn", Mode::Warn)];
        one_of(text.trim(), &modes, "is not refuse or warn")
    }
}

/// Where a post-mortem is written: `VRAMTRACE_OOM_REPORT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OomReport {
    /// To stderr.
    #[default]
    Stderr,
    /// To the trace only.
    Off,
}

impl OomReport {
    /// Parses a value; surrounding spaces are ignored.
    pub fn parse(text: &str) -> Result<OomReport, NotUnderstood> {
        let all = [("stderr", OomReport::Stderr), ("off", OomReport::Off)];
        one_of(text.trim(), &all, "is not stderr or off")
    }
}

/// Parses a soft limit: a size, or a share of the cap (of the device's memory if there is no cap).
pub fn soft(text: &str) -> Result<Limit, NotUnderstood> {
    match text.contains('=') || text.contains(',') {
        true => NotUnderstood::new(
            "is not a single limit for all devices; write a limit like 80% or 6GiB",
        ),
        false => capspec::limit(text.trim()),
    }
}

/// `VRAMTRACE_CAP_GROUP`: `NAME`, or `NAME:8GiB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    pub name: String,
    /// The cap that the members share. `None`: `VRAMTRACE_CAP` is the shared cap.
    pub cap: Option<CapSpec>,
}

/// Greatest length of a group's name, in bytes.
pub const NAME_MOST: usize = 64;

impl GroupSpec {
    /// Parses `NAME` or `NAME:CAP`.
    pub fn parse(text: &str) -> Result<GroupSpec, NotUnderstood> {
        let (name, cap) = match text.split_once(':') {
            Some((name, cap)) => (name, Some(capspec::parse(cap)?)),
            None => (text, None),
        };
        check_name(name)?;
        Ok(GroupSpec { name: name.into(), cap })
    }
}

/// Checks a group's name.
pub fn check_name(name: &str) -> Result<(), NotUnderstood> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match !name.is_empty() && name.len() <= NAME_MOST && name.bytes().all(plain) {
        true => Ok(()),
        false => NotUnderstood::new(format!(
            "is not the name of a group; write 1 to {NAME_MOST} letters, digits, -, _ or . (and, \
             after a colon, the shared cap: training:8GiB)"
        )),
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
        assert!(OomReport::parse("file").unwrap_err().to_string().contains("stderr or off"));
        assert!(soft("0=80%").unwrap_err().to_string().contains("80%"));
        assert!(soft("80").unwrap_err().to_string().contains("unit"));
        assert!(soft("0%").unwrap_err().to_string().contains("above 0"));
        for name in ["", "a/b", "..", "a b", ":8GiB", &"x".repeat(65)] {
            // `..` is valid: file names hold it only after a prefix.
            assert_eq!(GroupSpec::parse(name).is_err(), name != "..", "{name}");
        }
        assert!(GroupSpec::parse("a:8").unwrap_err().to_string().contains("8GiB"));
    }
}
