//! Parses `VRAMTRACE_CAP`: `8GiB`, `50%`, `0=8GiB,1=50%`, `GPU-<uuid>=8GiB`. The recorder enforces the cap; the command
//! checks it before a program starts.

use crate::error::NotUnderstood;
use crate::size::{self, Decimal};
use crate::uuid;

/// Examples of caps, for messages.
pub const EXAMPLES: &str = "8GiB, 50%, 0=8GiB,1=50% or GPU-<uuid>=8GiB";

/// A parsed cap: at least one rule, and at most one for each target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapSpec {
    pub rules: Vec<Rule>,
}

/// The limit of one device, or of all devices that no other rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub target: Target,
    pub limit: Limit,
}

/// The device to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Every device that no other rule names.
    Others,
    /// CUDA ordinal as the process sees it, 0 to 254.
    Ordinal(u32),
    /// UUID of a GPU.
    Gpu([u8; 16]),
    /// UUID of a MIG device.
    Mig([u8; 16]),
}

/// A limit on device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Bytes(u64),
    /// A share of the device's memory, in millionths of a percent: 50 % is 50,000,000.
    Share(u64),
}

/// The share of 100 %.
const WHOLE: u64 = 100_000_000;

impl Limit {
    /// The limit in bytes on a device with `device_total` bytes.
    pub fn bytes(self, device_total: u64) -> u64 {
        match self {
            Limit::Bytes(bytes) => bytes,
            Limit::Share(share) => {
                (u128::from(device_total) * u128::from(share) / u128::from(WHOLE)) as u64
            }
        }
    }
}

impl CapSpec {
    /// The cap of one device in bytes. `None`: the device has no cap. A device that one rule names by its ordinal and
    /// another by its UUID gets the smaller limit.
    pub fn limit(&self, ordinal: u32, uuid: &[u8; 16], device_total: u64) -> Option<u64> {
        let named = |target| match target {
            Target::Others => false,
            Target::Ordinal(n) => n == ordinal,
            Target::Gpu(id) | Target::Mig(id) => id == *uuid,
        };
        let smallest = |wanted: &dyn Fn(Target) -> bool| {
            let rules = self.rules.iter().filter(|rule| wanted(rule.target));
            rules.map(|rule| rule.limit.bytes(device_total)).min()
        };
        smallest(&named).or_else(|| smallest(&|target| target == Target::Others))
    }
}

/// Parses a cap: one rule, or several with commas between them.
pub fn parse(text: &str) -> Result<CapSpec, NotUnderstood> {
    if text.trim().is_empty() {
        return NotUnderstood::new(format!("the cap is empty; write {EXAMPLES}"));
    }
    let mut rules: Vec<Rule> = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let known = |target| rules.iter().any(|earlier| earlier.target == target);
        match rule(part) {
            Ok(rule) if !known(rule.target) => rules.push(rule),
            Ok(Rule { target, .. }) => {
                let twice = match target {
                    Target::Others => "gives a second cap for all devices; name the device: 0=8GiB",
                    _ => "names a device a second time; write each device once",
                };
                return NotUnderstood::new(format!("`{part}` {twice}"));
            }
            Err(why) => return NotUnderstood::new(format!("`{part}` {why}")),
        }
    }
    Ok(CapSpec { rules })
}

fn rule(part: &str) -> Result<Rule, NotUnderstood> {
    if part.is_empty() {
        return NotUnderstood::new(format!("is empty (an extra comma?); write {EXAMPLES}"));
    }
    match part.split_once('=') {
        Some((device, value)) => {
            Ok(Rule { target: target(device.trim())?, limit: limit(value.trim())? })
        }
        None => Ok(Rule { target: Target::Others, limit: limit(part)? }),
    }
}

fn target(text: &str) -> Result<Target, NotUnderstood> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return match text.parse() {
            Ok(ordinal @ ..255) => Ok(Target::Ordinal(ordinal)),
            _ => NotUnderstood::new("has an ordinal out of range; ordinals are 0 to 254"),
        };
    }
    let (kind, rest) = text.split_at_checked(4).unwrap_or_default();
    match (kind, uuid::parse(rest)) {
        ("GPU-", Some(id)) => Ok(Target::Gpu(id)),
        ("MIG-", Some(id)) => Ok(Target::Mig(id)),
        ("GPU-" | "MIG-", None) => NotUnderstood::new(
            "has an incomplete or invalid UUID; write it as `nvidia-smi -L` shows it, \
             GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
        ),
        _ => NotUnderstood::new(
            "names no device; write an ordinal (0=8GiB), GPU-<uuid>=8GiB or MIG-<uuid>=8GiB",
        ),
    }
}

/// Parses a size with a unit, or a share like `50%`.
pub(crate) fn limit(text: &str) -> Result<Limit, NotUnderstood> {
    let Some(percent) = text.strip_suffix('%') else {
        return Ok(Limit::Bytes(size::parse(text)?));
    };
    let share = Decimal::parse(percent.trim_end()).and_then(|percent| percent.times(WHOLE / 100));
    match share {
        None => {
            NotUnderstood::new("is not a share; write a number above 0 and up to 100, like 50%")
        }
        Some(0) => NotUnderstood::new("is zero; write a share above 0, like 50%"),
        Some(share @ 1..=WHOLE) => Ok(Limit::Share(share)),
        Some(_) => NotUnderstood::new("is more than 100%; write a share up to 100%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const ID: &str = "0a1b2c3d-0001-0203-0405-060708090a0b";

    fn bytes(text: &str, ordinal: u32, uuid: [u8; 16]) -> Option<u64> {
        parse(text).unwrap().limit(ordinal, &uuid, 24 * GIB)
    }

    #[test]
    fn every_form_that_is_promised() {
        let id = uuid::parse(ID).unwrap();
        assert_eq!(id[..5], [0x0a, 0x1b, 0x2c, 0x3d, 0]);
        assert_eq!(bytes("8GiB", 3, [0; 16]), Some(8 * GIB));
        assert_eq!(bytes("8g", 0, [0; 16]), Some(8 * GIB));
        assert_eq!(bytes("8192m", 0, [0; 16]), Some(8 * GIB));
        assert_eq!(bytes("8000MB", 0, [0; 16]), Some(8_000_000_000));
        assert_eq!(bytes("50%", 0, [0; 16]), Some(12 * GIB));
        assert_eq!(bytes("12.5 %", 0, [0; 16]), Some(3 * GIB));
        assert_eq!(bytes("100%", 0, [0; 16]), Some(24 * GIB));
        assert_eq!(bytes("0=8GiB,1=50%", 1, [0; 16]), Some(12 * GIB));
        assert_eq!(bytes("0=8GiB, 1=50%", 2, [0; 16]), None);
        assert_eq!(bytes("4g,1=50%", 2, [0; 16]), Some(4 * GIB));
        assert_eq!(bytes(&format!("GPU-{ID}=8GiB"), 7, id), Some(8 * GIB));
        assert_eq!(bytes(&format!("MIG-{ID}=8GiB"), 7, id), Some(8 * GIB));
        assert_eq!(bytes(&format!("GPU-{ID}=8GiB"), 7, [0; 16]), None);
        assert_eq!(bytes(&format!("0=9g,GPU-{ID}=8GiB"), 0, id), Some(8 * GIB));
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_says_what_would_be_right() {
        for (text, says) in [
            ("", "8GiB"),
            ("  ", "8GiB"),
            ("8", "8GiB"),
            ("0=8", "8GiB"),
            ("8GiB,", "comma"),
            (",", "comma"),
            ("8GiB,4GiB", "name the device"),
            ("0=8GiB,0=4GiB", "second time"),
            ("0=8GiB,00=4GiB", "second time"),
            ("0%", "zero"),
            ("0GiB", "zero"),
            ("101%", "100%"),
            ("-5%", "50%"),
            ("-5g", "8GiB"),
            ("%", "50%"),
            ("=8GiB", "ordinal"),
            ("gpu0=8GiB", "ordinal"),
            ("300=8GiB", "254"),
            ("99999999999999999999=8GiB", "254"),
            ("GPU-0a1b=8GiB", "nvidia-smi -L"),
            ("1=2=3g", "size"),
            ("8 GiB please", "unit"),
        ] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn the_same_uuid_twice_is_found_in_any_case() {
        let upper = ID.to_uppercase();
        assert!(parse(&format!("GPU-{ID}=8g,GPU-{upper}=8g")).is_err());
    }
}
