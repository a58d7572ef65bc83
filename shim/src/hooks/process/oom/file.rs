//! The summary as a file beside the trace.

use crate::runtime::private_table::{self, NoTask};
use crate::runtime::stderr::unsignalled;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Writes a new file: the trace's name with `.oom.txt` at the end. For its owner alone; no link is followed.
pub fn write(trace: &Path, text: &str) -> io::Result<()> {
    let name = CString::new(trace.with_extension("oom.txt").into_os_string().into_vec())?;
    let written = private_table::run(|table| {
        let file = table.open(&name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o600)?;
        unsignalled(|| file.write_all(text.as_bytes()))
    });
    written.unwrap_or_else(|NoTask { errno }| Err(errno)).map_err(io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_new_file_for_its_owner() {
        let scratch = format!("vramtrace-oom-{}", std::process::id());
        let directory = std::env::temp_dir().join(scratch);
        std::fs::create_dir_all(&directory).unwrap();
        let (trace, target) = (directory.join("host.1.vtrace"), directory.join("target"));
        write(&trace, "one\n").unwrap();
        let first = directory.join("host.1.oom.txt");
        assert_eq!(std::fs::read_to_string(&first).unwrap(), "one\n");
        let mode = std::fs::metadata(&first).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(write(&trace, "two\n").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::os::unix::fs::symlink(&target, directory.join("host.2.oom.txt")).unwrap();
        assert!(write(&directory.join("host.2.vtrace"), "").is_err() && !target.exists());
        let missing = directory.join("none/x.vtrace");
        assert_eq!(write(&missing, "").unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
