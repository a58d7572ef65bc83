//! Parses sizes such as `8GiB`, `8g`, `8192m`, `8000MB`, `13.5GiB`, for all variables and options of recorder and
//! command.

use crate::error::NotUnderstood;
use crate::physical::{GIB, MIB};

/// Examples of sizes, for messages.
pub const EXAMPLES: &str = "8GiB, 8g, 8192m (binary) or 8000MB (decimal)";

/// Parses a size with a unit; returns bytes, rounded down. k, m, g, t and KiB to TiB are binary, KB to TB decimal; case
/// does not matter. A number without a unit is an error, and so is less than 1 byte.
pub fn parse(text: &str) -> Result<u64, NotUnderstood> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = (text[..split].trim_end(), text[split..].to_ascii_lowercase());
    let Some(decimal) = Decimal::parse(number) else {
        let why = format!("is not a size; write a number with its unit, like {EXAMPLES}");
        return NotUnderstood::new(why);
    };
    if unit.is_empty() {
        let why = format!("has no unit; write for example {number}GiB or {number}MiB");
        return NotUnderstood::new(why);
    }
    let power = unit.chars().next().and_then(|prefix| "kmgt".find(prefix));
    let step = [("", 1 << 10), ("ib", 1 << 10), ("b", 1_000u64)];
    let step = step.into_iter().find(|(rest, _)| *rest == &unit[1..]);
    let Some((power, (_, step))) = power.zip(step) else {
        return NotUnderstood::new(format!("has an unknown unit; write a size like {EXAMPLES}"));
    };
    match decimal.times(step.pow(power as u32 + 1)) {
        Some(0) => NotUnderstood::new(format!("is zero; write a size like {EXAMPLES}")),
        Some(bytes) => Ok(bytes),
        None => NotUnderstood::new("is 16 EiB or more"),
    }
}

/// An unsigned decimal number, exact: `digits / 10^places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    digits: u128,
    places: u32,
}

impl Decimal {
    pub(crate) fn parse(text: &str) -> Option<Decimal> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        let empty_part = text.contains('.') && part.is_empty();
        if whole.is_empty() || empty_part || !all_digits(whole) || !all_digits(part) {
            return None;
        }
        // 20 digits and 9 places fit in 128 bits. A product that does not fit is more than 2^64 after the division.
        if whole.len() > 20 || part.len() > 9 {
            return None;
        }
        let digits = format!("{whole}{part}").parse().ok()?;
        Some(Decimal { digits, places: part.len() as u32 })
    }

    /// The product, rounded down. `None`: more than 64 bits.
    pub(crate) fn times(self, factor: u64) -> Option<u64> {
        let product = self.digits.checked_mul(factor.into())? / 10u128.pow(self.places);
        u64::try_from(product).ok()
    }
}

/// Formats bytes with a binary unit, without allocating: `512 B`, `1.50 KiB`, `12.00 MiB`, `3.25 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        const STEPS: [(&str, u64); 4] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match STEPS.into_iter().find(|(_, step)| self.0 >= *step) {
            Some((name, step)) => write!(f, "{:.2} {name}", self.0 as f64 / step as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// Formats a limit, without allocating, so that it is the one that was given: `1500 MiB`, not 1.46 GiB; `8.00 GB`. It is
/// formatted as [`Bytes`] where two decimals lose nothing, and where no short figure is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsGiven(pub u64);

impl std::fmt::Display for AsGiven {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        const GB: u64 = 1_000_000_000;
        /// More digits are hard to compare with figures in GiB.
        const MAX_MIB: u64 = 9_999;
        let bytes = u128::from(self.0);
        // Sizes that are parsed are rounded down.
        let is_exact_in = |step: u64| {
            let hundredths = (bytes * 100).div_ceil(step.into());
            self.0 >= step && hundredths * u128::from(step) / 100 == bytes
        };
        match self.0 / MIB {
            _ if is_exact_in(GIB) => Bytes(self.0).fmt(f),
            1..=MAX_MIB if self.0.is_multiple_of(MIB) => write!(f, "{} MiB", self.0 / MIB),
            _ if is_exact_in(GB) => write!(f, "{:.2} GB", self.0 as f64 / GB as f64),
            _ => Bytes(self.0).fmt(f),
        }
    }
}

/// The lowest limit of so few digits that is enough, as [`AsGiven`] formats it: `1598 MiB`, `14.48 GiB`.
pub fn enough(bytes: u64) -> AsGiven {
    if bytes <= 9_999 * MIB {
        return AsGiven(bytes.next_multiple_of(MIB));
    }
    let hundredths = (u128::from(bytes) * 100).div_ceil(GIB.into());
    AsGiven(u64::try_from(hundredths * u128::from(GIB) / 100).unwrap_or(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_printed_as_it_was_given() {
        for (given, printed) in [
            ("8GiB", "8.00 GiB"),
            ("1500MiB", "1500 MiB"),
            ("1.5GiB", "1.50 GiB"),
            ("14.44GiB", "14.44 GiB"),
            ("256MiB", "256 MiB"),
            ("8GB", "8.00 GB"),
            ("2TiB", "2.00 TiB"),
            ("700KiB", "700.00 KiB"),
            ("14787MiB", "14.44 GiB"),
        ] {
            assert_eq!(AsGiven(parse(given).unwrap()).to_string(), printed);
        }
        // Half of a card.
        assert_eq!(AsGiven((143_771 << 20) / 2).to_string(), "70.20 GiB");
        assert_eq!(
            (AsGiven(0).to_string(), AsGiven(999).to_string()),
            ("0 B".into(), "999 B".into())
        );
        assert!(AsGiven(u64::MAX).to_string().ends_with("TiB"));
    }

    #[test]
    fn binary_and_decimal_units() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8g", 8 << 30),
            ("8G", 8 << 30),
            (" 8192m ", 8 << 30),
            ("8000MB", 8_000_000_000),
            ("8 GB", 8_000_000_000),
            ("13.5GiB", 27 << 29),
            ("0.5k", 512),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_says_what_would_be_right() {
        for (text, says) in [
            ("8", "8GiB"),
            ("", "8GiB"),
            ("g", "8GiB"),
            ("-1g", "8GiB"),
            ("+1g", "8GiB"),
            ("1e3m", "8GiB"),
            ("1.g", "8GiB"),
            (".5g", "8GiB"),
            ("8Gi", "unknown unit"),
            ("8 gigabytes", "unknown unit"),
            ("0g", "zero"),
            ("99999999999g", "16 EiB"),
            ("8GiB8", "unknown unit"),
            ("८GiB", "8GiB"),
        ] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains(says), "{text}: {message}");
        }
    }
}
