//! Parses `VRAMTRACE_RECORD` (`full`, `sampled`) and `VRAMTRACE_OVERHEAD` (`2%`), for the recorder and for the command,
//! which checks them before a program starts.

/// What is recorded of the blocks of a framework's cache. Driver memory is always recorded whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// Every block.
    #[default]
    Full,
    /// A sample of the blocks, by their bytes; exact totals.
    Sampled,
}

/// Why a text is not a value of `VRAMTRACE_RECORD`. The messages in this file are printed after the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not full or sampled")]
pub struct NotARecording;

pub fn recording(text: &str) -> Result<Recording, NotARecording> {
    match text {
        "full" => Ok(Recording::Full),
        "sampled" => Ok(Recording::Sampled),
        _ => Err(NotARecording),
    }
}

/// `VRAMTRACE_OVERHEAD` when it is not set, in millionths of a thread's time.
pub const OVERHEAD_DEFAULT: u32 = 20_000;

/// Why a text is not a value of `VRAMTRACE_OVERHEAD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a percentage from 0.01% to 100%")]
pub struct NotAnOverhead;

/// Parses a percentage, in steps of 0.01 %. The result is in millionths.
pub fn overhead(text: &str) -> Result<u32, NotAnOverhead> {
    let number = text.strip_suffix('%').map(str::trim_end).ok_or(NotAnOverhead)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 2 {
        return Err(NotAnOverhead);
    }
    let whole: u32 = whole.parse().map_err(|_| NotAnOverhead)?;
    let hundredths: u32 = format!("{part:0<2}").parse().map_err(|_| NotAnOverhead)?;
    let all = whole.checked_mul(100).and_then(|sum| sum.checked_add(hundredths));
    all.filter(|all| (1..=10_000).contains(all)).map(|all| all * 100).ok_or(NotAnOverhead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(recording("sampled"), Ok(Recording::Sampled));
        assert_eq!(recording("full"), Ok(Recording::default()));
        assert_eq!(recording("Full"), Err(NotARecording));
        for (text, millionths) in
            [("2%", 20_000), ("2 %", 20_000), ("0.5%", 5_000), ("0.01%", 100), ("100%", 1_000_000)]
        {
            assert_eq!(overhead(text), Ok(millionths), "{text}");
        }
        assert_eq!(overhead("2%"), Ok(OVERHEAD_DEFAULT));
        for text in [
            "2",
            "",
            "%",
            "0%",
            "0.001%",
            "101%",
            "-2%",
            "+2%",
            "1e1%",
            ".5%",
            "5.%",
            "99999999999%",
        ] {
            assert_eq!(overhead(text), Err(NotAnOverhead), "{text}");
        }
    }
}
