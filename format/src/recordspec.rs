//! Parses `VRAMTRACE_RECORD` (`full`, `sampled`) and `VRAMTRACE_OVERHEAD` (`2%`), for the recorder and for the command,
//! which checks them before a program starts.

use crate::error::{NotUnderstood, one_of};
use crate::size::Decimal;

/// What is recorded of the blocks of a framework's cache. Driver memory is always recorded whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// Every block.
    #[default]
    Full,
    /// A sample of the blocks, by their bytes; exact totals.
    Sampled,
}

pub fn recording(text: &str) -> Result<Recording, NotUnderstood> {
    let all = [("full", Recording::Full), ("sampled", Recording::Sampled)];
    one_of(text, &all, "is not full or sampled")
}

/// `VRAMTRACE_OVERHEAD` when it is not set, in millionths of a thread's time.
pub const OVERHEAD_DEFAULT: u32 = 20_000;

/// Parses a percentage. The result is in millionths.
pub fn overhead(text: &str) -> Result<u32, NotUnderstood> {
    let percent = text.strip_suffix('%').and_then(|number| Decimal::parse(number.trim_end()));
    match percent.and_then(|percent| percent.times(10_000)) {
        Some(millionths @ 100..=1_000_000) => Ok(millionths as u32),
        _ => NotUnderstood::new("is not a percentage from 0.01% to 100%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(recording("sampled"), Ok(Recording::Sampled));
        assert_eq!(recording("full"), Ok(Recording::default()));
        assert!(recording("Full").is_err());
        for (text, millionths) in
            [("2%", 20_000), ("2 %", 20_000), ("0.5%", 5_000), ("0.01%", 100), ("100%", 1_000_000)]
        {
            assert_eq!(overhead(text), Ok(millionths), "{text}");
        }
        assert_eq!(overhead("2%"), Ok(OVERHEAD_DEFAULT));
        const WRONG: &str = "2,,%,0%,0.001%,101%,-2%,+2%,1e1%,.5%,5.%,99999999999%";
        for text in WRONG.split(',') {
            assert!(overhead(text).is_err(), "{text}");
        }
    }
}
