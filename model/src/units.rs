//! Figures and texts as people read them. Bytes with two decimals, as PyTorch prints them.

use vramtrace_format::shown;
use vramtrace_format::size::{AsGiven, Bytes};

/// `512 B`, `1.50 KiB`, `12.00 MiB`, `3.25 GiB`: every size but a limit.
pub fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// `12.31 GiB ± 0.20`: an estimate with its standard error, in the same unit. Without an error as [`size`].
pub fn estimate(bytes: u64, error: u64) -> String {
    let text = size(bytes);
    if error == 0 {
        return text;
    }
    let unit = match text.rsplit(' ').next() {
        Some("KiB") => 1u64 << 10,
        Some("MiB") => 1 << 20,
        Some("GiB") => 1 << 30,
        Some("TiB") => 1 << 40,
        _ => return format!("{text} ± {error}"),
    };
    format!("{text} ± {:.2}", error as f64 / unit as f64)
}

/// `1500 MiB`, `14.44 GiB`: a limit, as it was given.
pub fn limit(bytes: u64) -> String {
    AsGiven(bytes).to_string()
}

/// `1598 MiB`, `14.48 GiB`: the lowest limit of so few digits that is enough. Pasted, it is not below.
pub fn enough(bytes: u64) -> String {
    vramtrace_format::size::enough(bytes).to_string()
}

/// `12.345 s` from nanoseconds.
pub fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

/// `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 free`, `2 frees`.
pub fn several(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Cut in the middle to at most `most` characters.
pub fn shorten(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most || most < 5 {
        return text.to_string();
    }
    let tail = (most - 3) / 3;
    let head = most - 3 - tail;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}...{end}")
}

/// Text in which a terminal obeys nothing: see [`shown`].
pub fn clean(text: &str) -> String {
    text.chars().map(shown::shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::physical::GIB;

    #[test]
    fn figures_as_people_read_them() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(1536), "1.50 KiB");
        assert_eq!(size(24 * GIB), "24.00 GiB");
        assert_eq!(seconds(1_234_567_890), "1.235 s");
    }

    #[test]
    fn a_limit_that_is_enough_is_not_rounded_down() {
        use vramtrace_format::size::parse;
        let mib = 1 << 20;
        for (bytes, text) in [
            (1597 * mib + 1, "1598 MiB"),
            (14_820 * mib, "14.48 GiB"),
            (16 * GIB, "16.00 GiB"),
            (100 << 40, "100.00 TiB"),
        ] {
            assert_eq!(enough(bytes), text);
            assert!(parse(text).unwrap() >= bytes, "{text}");
        }
    }

    #[test]
    fn words_about_numbers() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(several(1, "free"), "1 free");
        assert_eq!(several(2, "free"), "2 frees");
    }

    #[test]
    fn long_and_evil_text_is_tamed() {
        assert_eq!(shorten("abcdefghijklmnop", 10), "abcde...op");
        assert_eq!(shorten("short", 10), "short");
        assert_eq!(clean("a\u{1b}[31mb\n"), "a?[31mb?");
    }
}
