//! Words of commands that a user pastes into a shell.

use std::path::Path;

use vramtrace_format::Header;

use crate::units::clean;

/// Quotes a text so that a POSIX shell reads it as one word.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_string(),
        false => format!("'{}'", clean(text).replace('\'', "'\\''")),
    }
}

/// The arguments that choose one process of several: by rank where no other has it, else by pid; an imported
/// trace by its path. `given`: the arguments that name all of them, each after a space.
pub fn of_process<'h>(
    given: &str,
    header: &Header,
    trace: &Path,
    all: impl Iterator<Item = &'h Header> + Clone,
) -> String {
    if all.clone().count() < 2 {
        return given.to_string();
    }
    match header.rank {
        Some(rank) if all.filter(|other| other.rank == header.rank).count() < 2 => {
            format!("{given} --rank {rank}")
        }
        _ if header.pid == 0 => format!(" {}", path(trace)),
        _ => format!("{given} --pid {}", header.pid),
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
