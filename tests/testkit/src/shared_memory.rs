//! A directory in memory of a test's own, for `XDG_RUNTIME_DIR`: live pages lie on no other.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::{Setup, vramtrace};

pub struct SharedMemory(pub PathBuf);

impl SharedMemory {
    pub fn new() -> SharedMemory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(format!("/dev/shm/vramtrace-test-{pid}-memory-{n}"));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        SharedMemory(path)
    }

    pub fn setup(&self) -> Setup {
        Setup::simulated().preload().env("XDG_RUNTIME_DIR", &self.0)
    }

    /// Files of live pages.
    pub fn pages(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.join("vramtrace")).unwrap();
        let mut pages: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        pages.sort();
        pages
    }

    /// Exit status, stdout and stderr of the command, run through a launcher if there is one.
    pub fn command(&self, launcher: &[&str], args: &[&str]) -> (i32, String, String) {
        let vramtrace = vramtrace().get_program().to_owned();
        let words = launcher.iter().map(Into::into).chain([vramtrace]);
        let words: Vec<std::ffi::OsString> = words.chain(args.iter().map(Into::into)).collect();
        let mut command = std::process::Command::new(&words[0]);
        let run = command.args(&words[1..]).env("XDG_RUNTIME_DIR", &self.0).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (run.status.code().unwrap(), text(&run.stdout), text(&run.stderr))
    }

    /// What a listed process has of its first device.
    pub fn live_bytes(processes: &[Value], pid: u32) -> Option<u64> {
        let process = processes.iter().find(|process| process["pid"] == pid)?;
        process["devices"][0]["live_bytes"].as_u64()
    }

    /// The processes that `vramtrace ps` lists; some may be of other tests.
    pub fn ps(&self, launcher: &[&str]) -> Vec<Value> {
        let (status, out, err) = self.command(launcher, &["ps", "--json"]);
        assert_eq!(status, 0, "{err}");
        let facts: Value = serde_json::from_str(&out).unwrap();
        facts["processes"].as_array().unwrap().clone()
    }
}

impl Default for SharedMemory {
    fn default() -> Self {
        SharedMemory::new()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
