//! All recorded processes of this node, in whatever namespaces they are: of this user; for root, of all users.
//!
//! Their pids may mean nothing here, so a process is known by its page's name, and whether it lives is told by the
//! lock on the page's file. Without a lock they are told by pid or segment, and those of other namespaces are left out.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use vramtrace_format::live::LiveState;
use vramtrace_format::member::Namespaces;
use vramtrace_format::name::PageName;
use vramtrace_format::proc::Life;
use vramtrace_format::{LiveDevice, LiveOwner, LivePage, LiveSite, proc};

use super::directory::PageFile;
use super::places::Places;
use super::process::user;
use super::{PageDirectory, PageProblem, segment};

/// Pages of one user that are read. More are a mistake or an attack.
const MOST_PAGES: usize = 4096;

/// A recorded process of this node. Pid and namespace are those of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    pub user: u32,
    pub pid: u32,
    pub start_ticks: u64,
    pub pid_namespace: u64,
}

#[derive(Clone, Debug)]
pub struct NodeProcess {
    pub key: ProcessKey,
    /// In the pid namespace of this process. `None`: not known without a search of /proc.
    pub pid: Option<u32>,
    pub state: LiveState,
    /// The recording is switched off.
    pub is_switched_off: bool,
    /// Path of the trace, as the process sees it; empty if there is none.
    pub trace: String,
    /// When it started to use its GPU, CLOCK_REALTIME, ns.
    pub start_unix_ns: u64,
    /// The same by CLOCK_MONOTONIC.
    pub start_mono_ns: u64,
    /// When the figures were stored, ns since that start.
    pub updated_ns: u64,
    pub devices: Vec<LiveDevice>,
    pub sites: Vec<LiveSite>,
    pub owner: LiveOwner,
    /// Bits of `vramtrace_format::escape::Escape`.
    pub escapes: u8,
}

/// All processes that live, and the problems of pages that could not be read.
pub fn all(places: &Places) -> (Vec<NodeProcess>, Vec<PageProblem>) {
    of_users(places, |_| true)
}

/// As [`all`], of these users.
pub fn of_users(
    places: &Places,
    wanted: impl Fn(u32) -> bool,
) -> (Vec<NodeProcess>, Vec<PageProblem>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for directory in directories(places, wanted) {
        match directory.and_then(|directory| in_directory(&directory, &mut found, &mut problems)) {
            // The user of a session may have none.
            Ok(()) => {}
            Err(PageProblem::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(problem) => problems.push(problem),
        }
    }
    found.sort_by_key(|process| process.key);
    // Two directories may have a page of one process.
    found.dedup_by_key(|process| process.key);
    (found, problems)
}

/// The users who have pages.
pub fn users(places: &Places) -> BTreeSet<u32> {
    directories(places, |_| true).into_iter().flatten().map(|opened| opened.owner()).collect()
}

fn directories(
    places: &Places,
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
    found: &mut Vec<NodeProcess>,
    problems: &mut Vec<PageProblem>,
) -> Result<(), PageProblem> {
    let here = Namespaces::to_look_from();
    for (file, name) in directory.all_pages(MOST_PAGES)? {
        match read(directory, &file, &name, here) {
            Ok(process) => found.extend(process),
            // It ended after the directory was listed.
            Err(PageProblem::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {}
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
) -> Result<Option<NodeProcess>, PageProblem> {
    // Known without its page.
    let life = directory.life(name, here);
    if life == Life::Dead {
        return Ok(None);
    }
    let copy = directory.file(file)?;
    let copied = copy.live_words();
    let locked = copied.as_ref().is_ok_and(|words| {
        LivePage::open(words).is_some_and(|page| page.is_locked() && is_of(&page, name))
    });
    let lives = match (life, locked) {
        (Life::Alive, _) => true,
        (_, true) => copy.is_locked().unwrap_or(true),
        (_, false) => name.same_pids(here) || name.segment(here).is_some(),
    };
    if !lives {
        return Ok(None);
    }
    let attached = directory.segment(name);
    let page = attached.as_ref().unwrap_or(&copy);
    let process = figures(page, name, directory.owner());
    match process {
        Ok(mut process) => {
            process.pid = pid_here(&process, name, here);
            Ok(Some(process).filter(|process| process.state != LiveState::Ended))
        }
        // Made a moment ago, or by a process that may write no file.
        Err(_) if is_empty(&copy) => Ok(None),
        Err(problem) => Err(problem),
    }
}

fn is_empty(page: &PageFile) -> bool {
    page.bytes() == Some(0)
}

/// Whether a page is that of the process in its file's name: the id of a segment may be used again.
fn is_of(page: &LivePage, name: &PageName) -> bool {
    let process = page.process();
    (process.pid, process.start_ticks) == (name.pid, name.start_ticks)
}

fn figures(page: &PageFile, name: &PageName, user: u32) -> Result<NodeProcess, PageProblem> {
    const ATTEMPTS: usize = 20;
    let mut words = page.live_words()?;
    for _ in 0..ATTEMPTS {
        let updates = LivePage::open(&words).ok_or_else(|| page.unknown())?.updates();
        words = page.live_words()?;
        let again = LivePage::open(&words).ok_or_else(|| page.unknown())?.updates();
        if again.is_multiple_of(2) && updates == again {
            break;
        }
    }
    let live = LivePage::open(&words).filter(|live| is_of(live, name));
    let live = live.ok_or_else(|| page.unknown())?;
    let process = live.process();
    let (updated_ns, devices) = live.devices();
    let pid_namespace = name.namespaces.pid;
    Ok(NodeProcess {
        key: ProcessKey { user, pid: name.pid, start_ticks: name.start_ticks, pid_namespace },
        pid: None,
        state: live.state().ok_or_else(|| page.unknown())?,
        is_switched_off: !live.off_by().is_empty(),
        trace: process.trace,
        start_unix_ns: process.start_unix_ns,
        start_mono_ns: process.start_mono_ns,
        updated_ns,
        devices,
        sites: live.sites().1,
        owner: live.owner(),
        escapes: live.escapes(),
    })
}

/// The pid of a process here, if it is a process of the page's user.
fn pid_here(process: &NodeProcess, name: &PageName, here: Namespaces) -> Option<u32> {
    let pid = match name.same_pids(here) {
        true => name.pid,
        false => segment::facts(name.segment(here)?, process.key.user)?.creator,
    };
    (pid != 0 && is_process_of(pid, process.key)).then_some(pid)
}

/// Whether a pid of this namespace is a process of the page's user with its start: a page may say anything.
fn is_process_of(pid: u32, key: ProcessKey) -> bool {
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|about| about.uid());
    owner.is_ok_and(|owner| owner == key.user) && proc::is_alive(pid, key.start_ticks)
}

/// Searches /proc for a process of another pid namespace. Reads all of /proc: a few milliseconds for a thousand
/// processes.
pub fn find_pid(key: ProcessKey) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |pid: &u32| {
        let namespace = || std::fs::metadata(format!("/proc/{pid}/ns/pid")).map(|ns| ns.ino());
        is_process_of(*pid, key)
            && namespace().is_ok_and(|inode| inode == key.pid_namespace)
            && innermost_pid(*pid) == Some(key.pid)
    };
    pids.into_iter().find(is_it)
}

/// The pid that a process has in its own namespace.
fn innermost_pid(pid: u32) -> Option<u32> {
    let status = vramtrace_reader::files::read_kernel(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status).into_owned();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    pids.split_whitespace().next_back()?.parse().ok()
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
                prop_assert_eq!(process.pid, Some(me.pid));
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
