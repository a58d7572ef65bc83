//! The live page: figures of this process for `ps` and `top`, and the sign by which `vramtrace run`
//! knows that the shim is there. A small shared file in memory, outside the trace. Where it cannot
//! be made the process goes on without.

use super::Recorder;
use super::identity::{Identity, start_ticks};
use crate::private;
use crate::say;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use vramtrace_format::live::{LIVE_BYTES, LIVE_WORDS, LiveState};
use vramtrace_format::{LiveDevice, LivePage, LiveProcess};

pub struct Live {
    page: LivePage<'static>,
    /// Where it lies, to take it away at the end.
    name: CString,
}

impl Live {
    /// In the first of the places that can hold it.
    pub fn create(
        runtime: Option<&Path>,
        identity: &Identity,
        recorder: &Recorder,
        recording: bool,
    ) -> Option<Live> {
        let mut wrong = None;
        let page = places(runtime).into_iter().find_map(|directory| {
            let opened = private::directory(directory.as_os_str().as_bytes());
            let descriptor = opened.map_err(|what| wrong = Some((directory.clone(), what))).ok()?;
            let live = Live::in_directory(descriptor, &directory, identity, recorder);
            if live.is_some() {
                remove_stale(descriptor, identity.pid);
            }
            // SAFETY: a descriptor of our own.
            unsafe { libc::close(descriptor) };
            let live = live?;
            live.page.set_state(if recording {
                LiveState::Loaded
            } else {
                LiveState::NotRecording
            });
            Some(live)
        });
        if let (None, Some((path, what))) = (&page, wrong)
            && what.is_somebodys_doing()
        {
            say::line(format_args!(
                "the directory {} {what}; `vramtrace ps` and `cap` do not see this process",
                path.display()
            ));
        }
        page
    }

    fn in_directory(
        directory: i32,
        path: &Path,
        identity: &Identity,
        recorder: &Recorder,
    ) -> Option<Live> {
        let file = format!("{}.{}", identity.pid, identity.start_ticks);
        let name = CString::new(path.join(&file).into_os_string().as_bytes()).ok()?;
        let words = map(directory, &CString::new(file).ok()?)?;
        let process = LiveProcess {
            pid: identity.pid,
            start_ticks: identity.start_ticks,
            start_unix_ns: recorder.start_unix_ns,
            start_mono_ns: recorder.start_mono_ns,
            trace: String::new(),
        };
        Some(Live { page: LivePage::begin(words, &process), name })
    }

    pub fn set_trace(&self, path: &Path) {
        self.page.set_trace(&path.to_string_lossy());
        self.recording(true);
    }

    pub fn page(&self) -> &LivePage<'static> {
        &self.page
    }

    pub fn recording(&self, yes: bool) {
        self.page.set_state(if yes { LiveState::Recording } else { LiveState::NotRecording });
    }

    pub fn update(&self, now_ns: u64, devices: &[LiveDevice]) {
        self.page.update(now_ns, devices);
    }

    /// The process ends. Its memory stays mapped: late threads may still store there.
    pub fn end(&self) {
        self.page.set_state(LiveState::Ended);
        // SAFETY: a C string; the file is ours by pid and start.
        unsafe { libc::unlink(self.name.as_ptr()) };
    }
}

fn places(runtime: Option<&Path>) -> Vec<PathBuf> {
    // SAFETY: always succeeds.
    let user = unsafe { libc::geteuid() };
    let shared = PathBuf::from(format!("/dev/shm/vramtrace-{user}"));
    let own = runtime.filter(|directory| is_closed_to_others(directory, user));
    own.map(|directory| directory.join("vramtrace")).into_iter().chain([shared]).collect()
}

/// Whether the runtime directory is what it must be: this user's, writable by nobody else. Root
/// may have been started with the environment of another user, who could then change what we open
/// and remove there.
fn is_closed_to_others(directory: &Path, user: libc::uid_t) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(directory).is_ok_and(|about| about.uid() == user && about.mode() & 0o022 == 0)
}

/// A fresh page of this name. One that is there was left by a program that this process was before
/// an exec.
fn map(directory: i32, name: &CStr) -> Option<&'static [AtomicU64; LIVE_WORDS]> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: files and mappings of our own. The blocks are there before the first store, and the
    // mapping is never undone.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) == 0
            && limit.rlim_cur < LIVE_BYTES as u64
        {
            return None;
        }
        libc::unlinkat(directory, name.as_ptr(), 0);
        let descriptor = libc::openat(directory, name.as_ptr(), flags, 0o600);
        if descriptor < 0 {
            return None;
        }
        let mut at = libc::MAP_FAILED;
        if libc::fallocate(descriptor, 0, 0, LIVE_BYTES as libc::off_t) == 0 {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let null = std::ptr::null_mut();
            at = libc::mmap(null, LIVE_BYTES, access, libc::MAP_SHARED, descriptor, 0);
        }
        libc::close(descriptor);
        if at == libc::MAP_FAILED {
            libc::unlinkat(directory, name.as_ptr(), 0);
            return None;
        }
        Some(&*at.cast())
    }
}

/// Pages of processes that are no more, in this directory whatever its path leads to by now.
fn remove_stale(directory: i32, pid: u32) {
    let Ok(entries) = std::fs::read_dir(format!("/proc/self/fd/{directory}")) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((owner, start)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let (Ok(owner), Ok(start)) = (owner.parse::<u32>(), start.parse::<u64>()) else { continue };
        if owner != pid && start_ticks(&owner.to_string()) != Some(start) {
            let Ok(name) = CString::new(name.as_bytes()) else { continue };
            // SAFETY: a C string and an open directory.
            unsafe { libc::unlinkat(directory, name.as_ptr(), 0) };
        }
    }
}
