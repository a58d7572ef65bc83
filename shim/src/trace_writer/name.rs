//! The name of the trace file: `VRAMTRACE_OUT` with its codes replaced, and the directories on
//! the way to it.
#![allow(clippy::disallowed_methods)] // once, before the trace is opened

use super::identity::Identity;
use crate::config::Out;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use vramtrace_format::outspec::{self, DEFAULT_NAME, EXTENSION, Part, is_file, is_null_device};

/// The absolute path that the trace should get; `None` = nothing is recorded. Makes directories.
/// `started` is the text of `%t`.
pub fn place(out: &Out, identity: &Identity, started: &str) -> io::Result<Option<PathBuf>> {
    let default = || expand(DEFAULT_NAME.as_bytes(), identity, started);
    let path = match out {
        Out::Off => return Ok(None),
        Out::Default => PathBuf::from(default()),
        Out::Pattern(pattern) => {
            let text = expand(pattern.as_bytes(), identity, started);
            let path = PathBuf::from(&text);
            if is_null_device(&path) {
                return Ok(None);
            }
            if !path.is_dir() && is_file(text.as_bytes()) { path } else { path.join(default()) }
        }
    };
    // Absolute, so that it can be found again from another working directory.
    let path = if path.is_absolute() { path } else { std::env::current_dir()?.join(path) };
    if let Some(directory) = path.parent()
        && !directory.is_dir()
    {
        if directory.exists() {
            // A file or a device has the name of the directory.
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    Ok(Some(path))
}

/// The path with `.2`, `.3` and so on before its end, where the one before is taken: `a.2.vtrace`.
/// 1 = the path itself.
pub fn numbered(path: &Path, number: u32) -> PathBuf {
    match number {
        0 | 1 => path.into(),
        number => path.with_extension(format!("{number}.{EXTENSION}")),
    }
}

fn expand(pattern: &[u8], identity: &Identity, started: &str) -> OsString {
    let mut text = Vec::with_capacity(pattern.len() + 64);
    // Its codes were checked when the environment was read.
    for part in outspec::parts(pattern).flatten() {
        match part {
            Part::Byte(byte) => text.push(byte),
            Part::Host => push_part(&mut text, identity.host.as_bytes()),
            Part::Pid => push_part(&mut text, identity.pid.to_string().as_bytes()),
            Part::Rank => push_part(&mut text, identity.rank.unwrap_or(0).to_string().as_bytes()),
            Part::Executable => push_part(&mut text, base_name(&identity.executable)),
            Part::Started => push_part(&mut text, started.as_bytes()),
        }
    }
    OsString::from_vec(text)
}

/// The name of a host or a program must not lead into another directory.
fn push_part(text: &mut Vec<u8>, part: &[u8]) {
    text.extend(part.iter().map(|byte| if *byte == b'/' { b'_' } else { *byte }));
}

fn base_name(executable: &OsStr) -> &[u8] {
    Path::new(executable).file_name().map_or(b"unknown", OsStrExt::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn identity() -> Identity {
        Identity {
            pid: 42,
            start_ticks: 7,
            host: "node/7".into(),
            executable: "/usr/bin/python3.11".into(),
            command: Vec::new(),
            rank: Some(3),
            local_rank: None,
            world_size: None,
            job: OsString::new(),
            cgroup: Vec::new(),
        }
    }

    fn placed(out: &str) -> PathBuf {
        place(&Out::Pattern(out.into()), &identity(), "T").unwrap().unwrap()
    }

    #[test]
    fn codes() {
        let dir = super::super::tests::Scratch::new("name-codes");
        let at = |name: &str| dir.path().join(name);
        let shown = dir.path().display();
        assert_eq!(
            placed(&format!("{shown}/%h-%p-%r-%e-%t-%%.vtrace")),
            at("node_7-42-3-python3.11-T-%.vtrace")
        );
        let default = "vramtrace.node_7.42.T.vtrace";
        assert_eq!(placed(&format!("{shown}")), at(default));
        assert_eq!(placed(&format!("{shown}/new/%r/")), at("new/3").join(default));
        assert_eq!(placed(&format!("{shown}/a.vtrace/")), at("a.vtrace").join(default));
        for made in ["new", "new/3"] {
            assert_eq!(fs::metadata(at(made)).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert_eq!(place(&Out::Off, &identity(), "T").unwrap(), None);
        let here = std::env::current_dir().unwrap();
        assert_eq!(place(&Out::Default, &identity(), "T").unwrap(), Some(here.join(default)));
    }

    #[test]
    fn a_file_in_the_way_of_a_directory() {
        let dir = super::super::tests::Scratch::new("name-way");
        fs::write(dir.path().join("file"), "").unwrap();
        for below in ["file/x.vtrace", "file"] {
            let out = Out::Pattern(dir.path().join(below).into());
            let error = place(&out, &identity(), "T").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR), "{below}");
        }
    }

    #[test]
    fn a_name_without_the_extension_is_a_directory_and_no_device_is_touched() {
        let dir = super::super::tests::Scratch::new("name-directory");
        let traces = dir.path().join("traces");
        for _ in 0..2 {
            let default = "vramtrace.node_7.42.T.vtrace";
            assert_eq!(placed(traces.to_str().unwrap()), traces.join(default));
        }
        let null = dir.path().join("null");
        let name = std::ffi::CString::new(null.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        match unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) } {
            0 => assert_eq!(place(&Out::Pattern(null.into()), &identity(), "T").unwrap(), None),
            _ => testkit::skip("the null device: mknod is not permitted"),
        }
        assert!(place(&Out::Pattern("/dev/zero".into()), &identity(), "T").is_err());
    }

    #[test]
    fn numbers() {
        assert_eq!(numbered(Path::new("/a/b.vtrace"), 1), Path::new("/a/b.vtrace"));
        assert_eq!(numbered(Path::new("/a/b.vtrace"), 3), Path::new("/a/b.3.vtrace"));
    }
}
