//! The live page: the figures of this process for `ps` and `top`. `vramtrace run` knows by it that the
//! shim is loaded. It lies in shared memory, which cannot be truncated. The name of its
//! file gives the id of that memory; see [`vramtrace_format::name`]. The file's contents are a copy for
//! readers that cannot attach the memory. Without shared memory and file the process runs without a
//! live page.

use super::TraceWriter;
use super::identity::Identity;
use super::live_lock::{self, LiveLock};
use super::named_file::{within_limit, write};
use crate::config::Config;
use crate::runtime::directory;
use crate::runtime::escapes::escapes;
use crate::runtime::hash_table;
use crate::runtime::private_table::{self, Opened, Table};
use crate::runtime::secure_dir::{self, Wrong};
use crate::runtime::segment::{self, Segment};
use crate::runtime::system::{self, Part};
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use vramtrace_format::live::{FILED_WORDS, LIVE_BYTES, LIVE_WORDS, LiveState};
use vramtrace_format::member::Namespaces;
use vramtrace_format::name::PageName;
use vramtrace_format::proc::Life;
use vramtrace_format::{LiveDevice, LiveOwner, LivePage, LiveProcess, cgroup, memory};

type Words = [AtomicU64; LIVE_WORDS];

pub struct PublishedPage {
    words: &'static Words,
    page: LivePage<'static>,
    /// The directory of its file, and the file's path.
    directory: CString,
    file: CString,
    path: CString,
    lock: LiveLock,
    /// Why it is not where `VRAMTRACE_LIVE_DIR` says.
    pub elsewhere: Option<WrongDirectory>,
}

impl PublishedPage {
    /// Creates the page and its file, in the first directory that can hold it. `Err`: there is no page;
    /// it says what the user can correct.
    pub fn create(
        table: &Table,
        config: &Config,
        identity: &Identity,
        recorder: &TraceWriter,
        recording: bool,
    ) -> Result<PublishedPage, Option<WrongDirectory>> {
        let (words, segment) = memory().ok_or(None)?;
        let namespaces = Namespaces::of_this_process();
        let (pid, start_ticks) = (identity.pid, identity.start_ticks);
        let name = PageName { pid, start_ticks, namespaces, id: segment };
        let announced = |directory: PathBuf| match announce(table, &directory, &name) {
            Ok(()) => Ok(directory),
            Err(what) => Err(WrongDirectory { path: directory, what }),
        };
        let given = config.live_directory.as_deref().map(|given| announced(of_user(given)));
        let (directory, elsewhere) = match given {
            Some(Ok(directory)) => (directory, None),
            other => {
                let mut wrong = None;
                let mut places = places(config.runtime_directory.as_deref()).into_iter();
                let directory = places
                    .find_map(|place| announced(place).map_err(|why| wrong = Some(why)).ok())
                    .ok_or_else(|| wrong.filter(|wrong| wrong.what.is_correctable()))?;
                (directory, other.and_then(Result::err))
            }
        };
        let c_string = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| None);
        let file = name.to_string();
        let live = PublishedPage {
            words,
            page: LivePage::begin(words, &live_process(identity, recorder)),
            path: c_string(&directory.join(&file))?,
            directory: c_string(&directory)?,
            file: CString::new(file).map_err(|_| None)?,
            lock: LiveLock::new(),
            elsewhere,
        };
        live.page.set_owner(&live_owner(identity));
        live.page.set_state(if recording { LiveState::Loaded } else { LiveState::NotRecording });
        live.copy();
        Ok(live)
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

    /// The recorder will record from the first allocation on.
    pub fn loaded(&self) {
        self.page.set_state(LiveState::Loaded);
    }

    pub fn update(&self, now_ns: u64, devices: &[LiveDevice]) {
        self.page.set_escapes(escapes());
        self.page.update(now_ns, devices);
    }

    /// Copies the page to its file, for readers that cannot attach the memory, and applies orders that
    /// they have stored there. If the file was truncated, changed or removed, it is created again. A
    /// few system calls, in a task.
    pub fn copy(&self) {
        if self.page.state() != Some(LiveState::Ended) && within_limit(LIVE_BYTES as u64).is_ok() {
            // Without a task the copy is as it was.
            let _ = private_table::run(|table| self.write_copy(table));
        }
    }

    fn write_copy(&self, table: &Table) {
        let Ok(directory) = secure_dir::directory(table, self.directory.as_bytes()) else { return };
        let flags = libc::O_RDWR | libc::O_CREAT;
        let open = || {
            let file = secure_dir::open(table, &directory, &self.file, flags).ok()?;
            is_plain_and_closed(&file).then_some(file)
        };
        // Before the contents, which say so.
        self.page.set_locked(self.lock.hold(open));
        let Some(file) = open() else { return };
        let mut orders = [[0; 8]; FILED_WORDS];
        if system::pread(&file, orders.as_flattened_mut(), LIVE_BYTES as i64) > 0 {
            self.page.take_filed(&orders.map(u64::from_ne_bytes));
        }
        // Otherwise the copy is as it was.
        let _ = write(&file, &[Part::Words(self.words)], 0);
    }

    /// Removes the file at the process's end. The memory stays mapped, since other threads may still
    /// store there.
    pub fn end(&self) {
        self.page.set_state(LiveState::Ended);
        // The file is ours by its name.
        system::unlink(system::WORKING_DIRECTORY, &self.path);
    }
}

/// The directory that cannot hold the page's file.
pub struct WrongDirectory {
    path: PathBuf,
    what: Wrong,
}

impl fmt::Display for WrongDirectory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the directory {} {}", self.path.display(), self.what)
    }
}

/// The memory of the page, with its id if it is shared. If no memory can be shared it is private: then
/// readers and orders use the file.
fn memory() -> Option<(&'static Words, Option<i32>)> {
    if let Ok(Segment { words, id }) = Segment::create() {
        return Some((words, Some(id)));
    }
    let private = hash_table::pages(LIVE_BYTES).ok()?;
    // SAFETY: fresh pages, all zeros, which are never given back.
    Some((unsafe { &*private.cast() }, None))
}

fn live_process(identity: &Identity, recorder: &TraceWriter) -> LiveProcess {
    LiveProcess {
        pid: identity.pid,
        start_ticks: identity.start_ticks,
        start_unix_ns: recorder.start_unix_ns,
        start_mono_ns: recorder.clock.start_ns,
        trace: String::new(),
    }
}

fn live_owner(identity: &Identity) -> LiveOwner {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let path = identity.executable.as_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let groups = text(&identity.cgroup);
    LiveOwner {
        executable: text(name),
        job: text(identity.job.as_bytes()),
        rank: identity.rank,
        cgroup: cgroup::path(&groups).unwrap_or_default().into(),
        host: text(identity.host.as_bytes()),
    }
}

/// Whether it is a regular file with one name; makes it inaccessible to others.
fn is_plain_and_closed(file: &Opened) -> bool {
    system::fstat(file).is_some_and(|stat| {
        stat.st_mode & libc::S_IFMT == libc::S_IFREG
            && (stat.st_nlink, stat.st_uid) == (1, secure_dir::user())
            && (stat.st_mode & 0o077 == 0 || system::fchmod(file, 0o600))
    })
}

/// The directory of this user in one that users share, as [`memory::directory`] is in /dev/shm.
fn of_user(directory: &Path) -> PathBuf {
    directory.join(memory::name(secure_dir::user()))
}

fn places(runtime: Option<&Path>) -> Vec<PathBuf> {
    let user = secure_dir::user();
    let shared = PathBuf::from(memory::directory(user));
    let own = runtime.filter(|directory| is_closed_to_others(directory, user));
    #[allow(clippy::disallowed_methods)] // two at most
    own.map(|directory| directory.join("vramtrace")).into_iter().chain([shared]).collect()
}

/// Whether the runtime directory belongs to this user and is writable by no one else. Root may run with
/// the environment of another user, who could otherwise change the files that are opened and removed
/// there.
fn is_closed_to_others(directory: &Path, user: libc::uid_t) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(directory).is_ok_and(|about| about.uid() == user && about.mode() & 0o022 == 0)
}

/// Creates the page's file, whose name gives the id of the page, and removes those of processes that
/// have exited. The file is empty, so this works if the file system is full, or under a file size limit
/// of 0.
fn announce(table: &Table, directory: &Path, name: &PageName) -> Result<(), Wrong> {
    let directory = secure_dir::directory(table, directory.as_os_str().as_bytes())?;
    let file = secure_dir::c_string(name.to_string().as_bytes())?;
    // A file of this name was left by the program that this process ran before an exec.
    system::unlink(&directory, &file);
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    secure_dir::open(table, &directory, &file, flags)?;
    remove_stale(table, &directory, name);
    Ok(())
}

/// Files of other namespaces whose locks are looked at.
const LOOKED_AT: usize = 256;

/// Whether a page's file says that its process holds the lock.
fn says_locked(file: &Opened) -> bool {
    let mut copy = [[0; 8]; LIVE_WORDS];
    let read = system::pread(file, copy.as_flattened_mut(), 0);
    let words: Words = copy.map(|word| AtomicU64::new(u64::from_ne_bytes(word)));
    read == LIVE_BYTES as isize && LivePage::open(&words).is_some_and(|page| page.is_locked())
}

/// Removes pages of processes that have exited, and of this process before an exec. Those of other
/// namespaces stay, unless their process has certainly exited.
#[allow(clippy::disallowed_methods)] // in a task
fn remove_stale(table: &Table, directory: &Opened, own: &PageName) {
    let here = Namespaces::to_look_from();
    let mut looked_at = 0;
    let mut is_unlocked = |file: &CStr, name: &PageName| {
        let is_of_others = !name.same_pids(here) && name.segment(here).is_none();
        if !is_of_others || looked_at == LOOKED_AT {
            return false;
        }
        looked_at += 1;
        let opened = secure_dir::open(table, directory, file, libc::O_RDONLY);
        let has_ended =
            |opened: Opened| live_lock::is_locked(&opened) == Some(false) && says_locked(&opened);
        opened.is_ok_and(has_ended)
    };
    let _ = directory::each_name(directory, |file, _| {
        let Some(name) = file.to_str().ok().and_then(PageName::parse) else { return };
        let before_exec = name != *own
            && name.same_pids(here)
            && (name.pid, name.start_ticks) == (own.pid, own.start_ticks);
        if name == *own {
            return;
        }
        let life = name.life(here, |id| segment::is_attached(id, 0), system::exists);
        if before_exec || life == Life::Dead || is_unlocked(file, &name) {
            system::unlink(directory, file);
        }
    });
}
