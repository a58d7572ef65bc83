//! A private directory in /dev/shm for `XDG_RUNTIME_DIR`: live pages need a directory in memory.

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

    /// The files of live pages.
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

    /// What the words of a line print where they succeed.
    #[track_caller]
    pub fn says(&self, launcher: &[&str], line: &str) -> String {
        let (status, out, err) = self.command(launcher, &Vec::from_iter(line.split(' ')));
        assert_eq!(status, 0, "{line}: {err}");
        out
    }

    /// They are refused, with this reason.
    #[track_caller]
    pub fn refuses(&self, line: &str, why: &str) {
        let (status, out, err) = self.command(&[], &Vec::from_iter(line.split(' ')));
        assert!(status == 2 && err.contains(why), "{line}: {status} {out}{err}");
    }

    /// The live bytes of a listed process on its first device.
    pub fn live_bytes(processes: &[Value], pid: u32) -> Option<u64> {
        let process = processes.iter().find(|process| process["pid"] == pid)?;
        process["devices"][0]["live_bytes"].as_u64()
    }

    /// The processes that `vramtrace ps` lists; some may belong to other tests.
    pub fn ps(&self, launcher: &[&str]) -> Vec<Value> {
        let (status, out, err) = self.command(launcher, &["ps", "--json"]);
        assert_eq!(status, 0, "{err}");
        let facts: Value = serde_json::from_str(&out).unwrap();
        facts["processes"].as_array().unwrap().clone()
    }

    /// What `vramtrace ps` says of a process; null if it does not list it.
    pub fn shown(&self, pid: u32) -> Value {
        let found = self.ps(&[]).into_iter().find(|process| process["pid"] == pid);
        found.unwrap_or(Value::Null)
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

/// A segment of shared memory like those of pages. It is attached, and exists, until it is dropped.
pub struct SharedSegment {
    pub id: i32,
    at: *mut u64,
    words: usize,
}

impl SharedSegment {
    pub fn new(words: &[u64]) -> SharedSegment {
        // SAFETY: a segment of our own, attached where the kernel wants, and as long as the words.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, words.len() * 8, libc::IPC_CREAT | 0o600);
            assert!(id >= 0, "{}", std::io::Error::last_os_error());
            let at = libc::shmat(id, std::ptr::null(), 0);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            assert!(at as isize != -1, "{}", std::io::Error::last_os_error());
            let at: *mut u64 = at.cast();
            std::ptr::copy_nonoverlapping(words.as_ptr(), at, words.len());
            SharedSegment { id, at, words: words.len() }
        }
    }

    /// A word, which another process may have changed.
    pub fn word(&self, index: usize) -> u64 {
        assert!(index < self.words);
        // SAFETY: a word of the segment, which is attached.
        unsafe { self.at.add(index).read_volatile() }
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        // SAFETY: attached by us; no reference outlives us.
        unsafe { libc::shmdt(self.at.cast()) };
    }
}
