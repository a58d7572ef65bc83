//! Running recorded processes as their live pages describe them: those of this user; for root and the metrics, those of
//! all users of this node, in whatever namespaces they are.
//!
//! Their pids may mean nothing here, so a process is known by its page's name, and whether it lives is told by the
//! lock on the page's file. Without a lock they are told by pid or segment, and those of other namespaces are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use vramtrace_format::live::LiveState;
use vramtrace_format::member::Namespaces;
use vramtrace_format::name::PageName;
use vramtrace_format::proc::{self, Life};
use vramtrace_format::{LiveDevice, LiveOwner, LivePage, LiveSite, SwitchedBy, cgroup, secrets};
use vramtrace_reader::files;

use super::directory::PageFile;
use super::places::PageLocations;
use super::{PageDirectory, PageProblem, owner};

/// A recorded process of this node. Pid and namespace are those of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    pub user: u32,
    pub pid: u32,
    pub start_ticks: u64,
    pub pid_namespace: u64,
}

/// The content of a live page.
#[derive(Clone, Debug)]
pub struct LiveProcess {
    pub key: ProcessKey,
    /// In the pid namespace of this process, if `is_here`.
    pub pid: u32,
    /// Its pid here is known. Otherwise it takes a search of /proc ([`find_pid`]).
    pub is_here: bool,
    pub state: LiveState,
    /// Who has switched the recording off; empty: nobody.
    pub off_by: Vec<SwitchedBy>,
    /// Path of the trace, as the process sees it; empty if the process records none.
    pub trace: String,
    /// When it started to use its GPU, CLOCK_MONOTONIC, ns.
    pub start_mono_ns: u64,
    /// When the figures were stored, ns since the start.
    pub updated_ns: u64,
    pub group: Option<String>,
    pub devices: Vec<LiveDevice>,
    /// The call sites that hold most, as of their last update.
    pub sites: Vec<LiveSite>,
    pub owner: LiveOwner,
    /// Bits of `vramtrace_format::escape::Escape`.
    pub escapes: u8,
}

/// The recorded processes of this user that have a pid here, and the problems of pages that could not be read.
pub fn all() -> (Vec<LiveProcess>, Vec<PageProblem>) {
    let (mut found, problems) = of_users(&PageLocations::of_environment(), |of| of == user());
    found.retain(|process| process.is_here);
    found.sort_by_key(|process| process.pid);
    (found, problems)
}

/// All processes of these users that live, in whatever namespaces, and the problems of pages that could not be read.
pub fn of_users(
    places: &PageLocations,
    wanted: impl Fn(u32) -> bool,
) -> (Vec<LiveProcess>, Vec<PageProblem>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for directory in directories(places, wanted) {
        match directory.and_then(|directory| in_directory(&directory, &mut found, &mut problems)) {
            // The user of a session may have none.
            Ok(()) => {}
            Err(problem) if problem.is_not_found() => {}
            Err(problem) => problems.push(problem),
        }
    }
    found.sort_by_key(|process| process.key);
    // Two directories may have a page of one process.
    found.dedup_by_key(|process| process.key);
    (found, problems)
}

/// The users who have pages.
pub fn users(places: &PageLocations) -> BTreeSet<u32> {
    directories(places, |_| true).into_iter().flatten().map(|opened| opened.owner()).collect()
}

fn directories(
    places: &PageLocations,
    wanted: impl Fn(u32) -> bool,
) -> Vec<Result<PageDirectory, PageProblem>> {
    match user() {
        0 => {
            let all = places.of_all().into_iter().filter(|(_, owner)| wanted(*owner));
            all.map(|(path, owner): (PathBuf, u32)| PageDirectory::open(&path, owner)).collect()
        }
        user => PageDirectory::all_of(user, places),
    }
}

fn in_directory(
    directory: &PageDirectory,
    found: &mut Vec<LiveProcess>,
    problems: &mut Vec<PageProblem>,
) -> Result<(), PageProblem> {
    /// Maximum number of pages of another user that are read. More are a mistake or an attack.
    const MAX_PAGES: usize = 4096;
    let here = Namespaces::to_look_from();
    let most = if directory.owner() == user() { usize::MAX } else { MAX_PAGES };
    for (file, name) in directory.pages()?.take(most) {
        match read(directory, &file, &name, here) {
            Ok(process) => found.extend(process),
            // It ended after the directory was listed.
            Err(problem) if problem.is_not_found() => {}
            Err(problem) => problems.push(problem),
        }
    }
    Ok(())
}

/// `None`: its process has ended, or cannot be told to live; or the page is not written yet.
fn read(
    directory: &PageDirectory,
    file: &str,
    name: &PageName,
    here: Namespaces,
) -> Result<Option<LiveProcess>, PageProblem> {
    // Known without its page.
    let life = directory.life(name, here);
    if life == Life::Dead {
        return Ok(None);
    }
    let copy = directory.page(file, false)?;
    let locked = copy.live(|page| page.is_locked() && is_of(page, name)).unwrap_or(false);
    let lives = match (life, locked) {
        (Life::Alive, _) => true,
        (_, true) => copy.is_locked().unwrap_or(true),
        (_, false) => name.same_pids(here) || name.segment(here).is_some(),
    };
    if !lives {
        return Ok(None);
    }
    let attached = directory.segment(name, false);
    let user = directory.owner();
    match LiveProcess::read(attached.as_ref().unwrap_or(&copy), name, user) {
        Ok(mut process) => {
            // A page of another user may say anything.
            let is_it = |pid: &u32| user == self::user() || is_process_of(*pid, process.key);
            if let Some(pid) = directory.pid_here(name, here).filter(is_it) {
                (process.pid, process.is_here) = (pid, true);
            }
            Ok(Some(process).filter(|process| process.state != LiveState::Ended))
        }
        // Made a moment ago, or by a process that may write no file.
        Err(_) if copy.bytes() == Some(0) => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// Whether a page is that of the process in its file's name: the id of a segment may be used again.
fn is_of(page: &LivePage, name: &PageName) -> bool {
    let process = page.process();
    (process.pid, process.start_ticks) == (name.pid, name.start_ticks)
}

impl LiveProcess {
    /// The content of the page of a user's process. Its pid here is not known.
    pub(super) fn read(
        page: &PageFile,
        name: &PageName,
        user: u32,
    ) -> Result<LiveProcess, PageProblem> {
        const ATTEMPTS: usize = 20;
        let mut words = page.words()?;
        for _ in 0..ATTEMPTS {
            let before = LivePage::open(&words).map(|live| live.updates());
            words = page.words()?;
            let after = LivePage::open(&words).map(|live| live.updates());
            if before == after && after.is_some_and(|updates| updates.is_multiple_of(2)) {
                break;
            }
        }
        let live = LivePage::open(&words).filter(|live| is_of(live, name));
        let live = live.ok_or_else(|| page.unknown())?;
        let process = live.process();
        let (updated_ns, devices) = live.devices();
        let pid_namespace = name.namespaces.pid;
        Ok(LiveProcess {
            key: ProcessKey { user, pid: name.pid, start_ticks: name.start_ticks, pid_namespace },
            pid: name.pid,
            is_here: false,
            state: live.state().ok_or_else(|| page.unknown())?,
            off_by: live.off_by(),
            trace: process.trace,
            start_mono_ns: process.start_mono_ns,
            updated_ns,
            group: live.group(),
            devices,
            sites: live.sites().1,
            owner: live.owner(),
            escapes: live.escapes(),
        })
    }

    /// The pid that it has here, if it is known.
    pub fn pid_here(&self) -> Option<u32> {
        self.is_here.then_some(self.pid)
    }

    /// The command line, with secrets masked; empty if it cannot be read.
    pub fn command(&self) -> String {
        command(self.pid)
    }

    /// A figure of all devices together.
    pub fn sum(&self, figure: impl Fn(&LiveDevice) -> u64) -> u64 {
        self.devices.iter().map(figure).fold(0, u64::saturating_add)
    }

    /// Bytes of the largest call sites that are chosen, and their allocations, by the name of the library.
    pub fn by_library(&self, chosen: impl Fn(&LiveSite) -> bool) -> BTreeMap<&str, (u64, u64)> {
        let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for site in self.sites.iter().filter(|site| chosen(site)) {
            let (bytes, count) = sums.entry(&site.library).or_default();
            *bytes = bytes.saturating_add(site.bytes);
            *count = count.saturating_add(site.count);
        }
        sums
    }
}

/// Requests of a device that the cap or the driver refused.
pub fn refused(device: &LiveDevice) -> u64 {
    device.refused_by_cap.saturating_add(device.refused_by_driver)
}

/// The effective user.
pub fn user() -> u32 {
    // SAFETY: has no arguments and always succeeds.
    unsafe { libc::geteuid() }
}

/// Whether a pid of this namespace is a process of the page's user with its start: a page may say anything.
fn is_process_of(pid: u32, key: ProcessKey) -> bool {
    owner::user_of(pid) == Some(key.user) && proc::is_alive(pid, key.start_ticks)
}

/// Searches /proc for a process of another pid namespace. Reads all of /proc: a few milliseconds for a thousand
/// processes.
pub fn find_pid(key: ProcessKey) -> Option<u32> {
    let is_it = |pid: &u32| {
        let namespace = || std::fs::metadata(format!("/proc/{pid}/ns/pid")).map(|ns| ns.ino());
        is_process_of(*pid, key)
            && namespace().is_ok_and(|inode| inode == key.pid_namespace)
            && innermost_pid(*pid) == Some(key.pid)
    };
    proc::pids().find(is_it)
}

/// The pid that a process has in its own namespace.
fn innermost_pid(pid: u32) -> Option<u32> {
    let status = files::kernel_text(format!("/proc/{pid}/status"))?;
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    pids.split_whitespace().next_back()?.parse().ok()
}

/// The path of a process's cgroup. `pid`: or `self`.
pub fn cgroup(pid: impl Display) -> Option<String> {
    cgroup::path(&files::kernel_text(format!("/proc/{pid}/cgroup"))?).map(String::from)
}

/// Reads a file of /proc/PID that needs the process's memory (environ, cmdline); empty if it is unreadable. If the
/// main thread has ended, the file of another thread is read.
fn proc_file(pid: u32, name: &str) -> Vec<u8> {
    let of_process = files::read_kernel(format!("/proc/{pid}/{name}")).unwrap_or_default();
    if !of_process.is_empty() {
        return of_process;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut of_threads =
        threads.filter_map(|thread| files::read_kernel(thread.path().join(name)).ok());
    of_threads.find(|file| !file.is_empty()).unwrap_or_default()
}

/// The command line, with secrets masked; empty if it cannot be read.
pub fn command(pid: u32) -> String {
    let words = proc_file(pid, "cmdline");
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    let words = words.split(|byte| *byte == 0);
    secrets::mask(words.map(|word| String::from_utf8_lossy(word).into_owned())).join(" ")
}

/// The value of a variable that a process was started with.
pub fn variable(pid: u32, name: &str) -> Option<OsString> {
    let environ = proc_file(pid, "environ");
    let mut entries = environ.split(|byte| *byte == 0);
    let value =
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(OsString::from_vec(value.to_vec()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;
    use vramtrace_format::live::{LIVE_DEVICES, LIVE_VERSION};

    use super::*;

    /// A page that begins as one of this process, with any contents behind.
    fn page(version: u32, length: usize, words: &[(usize, u64)]) -> Vec<u8> {
        let me = proc::Stat::of_this_process().unwrap();
        let mut bytes = vec![0; length];
        let magic = u64::from_le_bytes(*b"vtlive\0\0");
        let own = [magic, u64::from(version) | 3 << 32, u64::from(me.pid), me.start_ticks];
        for (at, word) in words.iter().copied().chain(own.into_iter().enumerate()) {
            if let Some(place) = bytes.get_mut(at * 8..at * 8 + 8) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn any_page_is_read_or_a_problem(
            version in 0..LIVE_VERSION + 2,
            length in prop_oneof![Just(8192usize), Just(12288), Just(16384), 0..40_000usize],
            words in prop::collection::vec((2..2048usize, any::<u64>()), 0..200),
            own in any::<bool>(),
        ) {
            let place = tempfile::tempdir().unwrap();
            std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o700)).unwrap();
            let here = Namespaces::of_this_process();
            let me = proc::Stat::of_this_process().unwrap();
            // Of this namespace; and of another, in which only the lock tells.
            let namespace = if own { here.pid } else { 1 };
            let file = place.path().join(format!("{}.{}.{namespace}.1.-", me.pid, me.start_ticks));
            std::fs::write(&file, page(version, length, &words)).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
            let directory = PageDirectory::open(place.path(), user()).unwrap();
            let (mut found, mut problems) = (Vec::new(), Vec::new());
            in_directory(&directory, &mut found, &mut problems).unwrap();
            prop_assert!(found.len() + problems.len() <= 1);
            for process in &found {
                prop_assert!(version == LIVE_VERSION && own);
                prop_assert!(process.devices.len() <= LIVE_DEVICES);
                prop_assert!(process.is_here && process.pid == me.pid);
                prop_assert!(process.owner.cgroup.len() <= 3 * 512, "not valid UTF-8: 3 bytes for one");
            }
            // A whole page of this process is read, whatever its figures are.
            let ended = words.iter().any(|(at, _)| *at < 4 || *at == 6 || *at == 7 || *at == 12);
            if own && version == LIVE_VERSION && length == 16384 && !ended {
                prop_assert_eq!(found.len(), 1);
            }
        }
    }
}
