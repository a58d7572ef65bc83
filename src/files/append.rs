//! Appends lines to a file to which other processes append at the same time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

use super::{Directory, lock_within};

/// How long a writer waits for others. They hold the lock for one write.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size in bytes of a first line.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Opens a regular file, or makes one of mode 0600. A link is refused: it may be somebody else's.
fn open(path: &Path, create: bool) -> io::Result<File> {
    let (directory, name) = Directory::of(path)?;
    let how = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW;
    // Opening a FIFO or a device neither waits nor makes it the terminal.
    let how = how | OFlags::NONBLOCK | OFlags::NOCTTY;
    let how = if create { how | OFlags::CREATE } else { how };
    let file = directory.open_at(name, how).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("is a symbolic link: give the file itself"),
        _ => error,
    })?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("is not a regular file")),
    }
}

/// Finds out whether lines can be appended to an existing file, and whether its first line is one of them. Changes
/// nothing. `Ok(false)`: the first line is another text, or has no end.
pub fn check(path: &Path, is_line: &dyn Fn(&[u8]) -> bool) -> io::Result<bool> {
    let file = open(path, false)?;
    let mut text = Vec::new();
    (&file).take(MAX_LINE_BYTES).read_to_end(&mut text)?;
    let line = text.iter().position(|byte| *byte == b'\n').map(|end| &text[..end]);
    // A longer line than that is one of ours: nothing else is known of it.
    let long = text.len() as u64 == MAX_LINE_BYTES && text.starts_with(b"{\"");
    Ok(text.is_empty() || long || line.is_some_and(is_line))
}

/// Appends lines, each of which ends with a newline: all of them or none, and none of another process between them.
/// The file is made if it does not exist.
pub fn lines(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut file = open(path, true)?;
    lock(&file)?;
    let end = file.metadata()?.len();
    // A writer that was killed, or a full disk, may have left a part of a line.
    let mut last = [b'\n'];
    if end > 0 {
        file.read_exact_at(&mut last, end - 1)?;
    }
    let whole = match last {
        [b'\n'] => lines.to_vec(),
        _ => [b"\n", lines].concat(),
    };
    file.write_all(&whole).inspect_err(|_| {
        // The next writer mends it if this fails.
        let _ = file.set_len(end);
    })
}

/// Waits for other writers. Where the file system has no locks, a write with O_APPEND is all that there is.
fn lock(file: &File) -> io::Result<()> {
    match lock_within(file, PATIENCE) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other("another process keeps it locked (flock)")),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::EOPNOTSUPP)) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn lines_of_many_writers_stay_whole() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("all.jsonl");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    for turn in 0..20 {
                        // Two lines, longer than a page.
                        let text = format!("{writer} {turn} {}\n", "x".repeat(9_000)).repeat(2);
                        lines(path, text.as_bytes()).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        let all: Vec<&str> = text.lines().collect();
        assert_eq!(all.len(), 8 * 20 * 2);
        assert!(
            all.chunks(2).all(|pair| pair[0] == pair[1] && pair[0].ends_with(&"x".repeat(9_000)))
        );
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_torn_line_does_not_spoil_the_next_one() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("all.jsonl");
        fs::write(&path, "{\"a\":1}\n{\"b\"").unwrap();
        lines(&path, b"{}\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"a\":1}\n{\"b\"\n{}\n");
        assert!(check(&path, &|line| line == b"{\"a\":1}").unwrap());
        assert!(!check(&path, &|_| false).unwrap());
        fs::write(&path, "{").unwrap();
        assert!(!check(&path, &|_| true).unwrap(), "no end of the line");
    }

    #[test]
    fn a_link_a_fifo_and_a_directory_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("file"), "").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("nothing", at("broken")).unwrap();
        super::super::tests::fifo(&at("fifo"));
        for name in ["link", "broken"] {
            let why = lines(&at(name), b"{}\n").unwrap_err().to_string();
            assert!(why.contains("symbolic link"), "{name}: {why}");
        }
        assert!(!at("nothing").exists() && fs::read(at("file")).unwrap().is_empty());
        for name in ["fifo", "."] {
            assert!(lines(&at(name), b"{}\n").is_err() && check(&at(name), &|_| true).is_err());
        }
    }
}
