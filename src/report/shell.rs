//! Words of commands that a user pastes into a shell.

use std::path::Path;

use crate::units::clean;

/// Quotes a text so that a POSIX shell reads it as one word.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_string(),
        false => format!("'{}'", clean(text).replace('\'', "'\\''")),
    }
}

/// The path as one word.
pub fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        assert_eq!(quoted("/opt/a-b/lib.so"), "/opt/a-b/lib.so");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(
            quoted("roundup_power2_divisions:[256:1]"),
            "'roundup_power2_divisions:[256:1]'"
        );
        assert_eq!(quoted(""), "''");
    }
}
