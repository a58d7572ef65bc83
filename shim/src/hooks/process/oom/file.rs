//! The summary as a file beside the trace.

use crate::runtime::private_table::{self, NoTask, Table};
use crate::runtime::stderr::unsignalled;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names tried before giving up.
const NAMES: u32 = 1000;

/// Writes a new file: the trace's name with `.oom.txt` at the end, or `.oom.2.txt` and so on where
/// one is taken. For its owner alone; no link is followed.
pub fn write(trace: &Path, text: &str) -> io::Result<PathBuf> {
    private_table::run(|table| write_in(table, trace, text))
        .unwrap_or_else(|NoTask { errno }| Err(errno))
        .map_err(io::Error::from_raw_os_error)
}

fn write_in(table: &Table, trace: &Path, text: &str) -> Result<PathBuf, i32> {
    for number in 1..=NAMES {
        let path = name(trace, number);
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
        match table.open(&name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o600) {
            Ok(file) => {
                unsignalled(|| file.write_all(text.as_bytes()))?;
                return Ok(path);
            }
            Err(libc::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(libc::EEXIST)
}

fn name(trace: &Path, number: u32) -> PathBuf {
    let end = match number {
        1 => "oom.txt".to_string(),
        n => format!("oom.{n}.txt"),
    };
    trace.with_extension(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_new_file_each_time_for_its_owner() {
        let scratch = format!("vramtrace-oom-{}", std::process::id());
        let directory = std::env::temp_dir().join(scratch);
        std::fs::create_dir_all(&directory).unwrap();
        let trace = directory.join("host.1.vtrace");
        let target = directory.join("target");
        std::os::unix::fs::symlink(&target, directory.join("host.1.oom.2.txt")).unwrap();
        let first = write(&trace, "one\n").unwrap();
        assert_eq!(first, directory.join("host.1.oom.txt"));
        assert_eq!(std::fs::read_to_string(&first).unwrap(), "one\n");
        let mode = std::fs::metadata(&first).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = write(&trace, "two\n").unwrap();
        assert_eq!(second, directory.join("host.1.oom.3.txt"), "the link is left alone");
        assert!(!target.exists());
        let missing = directory.join("none/x.vtrace");
        assert_eq!(write(&missing, "").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(name(Path::new("/a/b.2.vtrace"), 1), Path::new("/a/b.2.oom.txt"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
