//! Running recorded processes: reads their live pages and stores orders for another cap.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime};

use vramtrace_format::live::{LiveState, order};
use vramtrace_format::{LiveDevice, LivePage, LiveSite, SwitchedBy, live_switch, proc, secrets};
use vramtrace_reader::files;

use super::directory::{Listed, PageFile};
use super::places::Places;
use super::{PageDirectory, PageProblem};

/// The content of a live page.
#[derive(Clone, Debug)]
pub struct LiveProcess {
    pub pid: u32,
    pub command: String,
    pub state: LiveState,
    /// Who has switched the recording off; empty: nobody.
    pub off_by: Vec<SwitchedBy>,
    /// Path of the trace; empty if the process records none.
    pub trace: String,
    /// When the figures were stored, ns since the start.
    pub updated_ns: u64,
    pub group: Option<String>,
    pub devices: Vec<LiveDevice>,
    /// The call sites that hold most, as of their last update.
    pub sites: Vec<LiveSite>,
}

/// All recorded processes of this user, and the problems of pages that could not be read.
pub fn all() -> (Vec<LiveProcess>, Vec<PageProblem>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for directory in PageDirectory::all_of(user(), &Places::of_environment()) {
        match directory.and_then(|directory| in_directory(&directory, &mut problems)) {
            Ok(some) => found.extend(some),
            Err(problem) => problems.push(problem),
        }
    }
    // Two directories may have a page of one process.
    let mut seen = HashSet::new();
    found.retain(|process: &LiveProcess| seen.insert(process.pid));
    found.sort_by_key(|process: &LiveProcess| process.pid);
    (found, problems)
}

fn in_directory(
    directory: &PageDirectory,
    problems: &mut Vec<PageProblem>,
) -> Result<Vec<LiveProcess>, PageProblem> {
    let mut found: Vec<LiveProcess> = Vec::new();
    let mut read = HashSet::new();
    for listed in directory.pages()? {
        let pid = listed.pid;
        // Other names for a process of which a page was read say nothing new.
        if read.contains(&pid) {
            continue;
        }
        match directory.live_page(&listed, false).and_then(|page| LiveProcess::read(&page, pid)) {
            Ok(process) if process.state != LiveState::Ended => {
                read.insert(pid);
                found.push(process);
            }
            Ok(_) => {}
            // The process is still writing its page.
            Err(PageProblem::Unknown(_)) if is_young(pid) => {}
            // The process ended after the directory was listed.
            Err(PageProblem::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(problem) => problems.push(problem),
        }
    }
    Ok(found)
}

/// Started less than a second ago, as far as its page tells.
fn is_young(pid: u32) -> bool {
    let started = std::fs::metadata(format!("/proc/{pid}")).and_then(|about| about.modified());
    started.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < Duration::from_secs(1)))
}

/// The effective user.
pub fn user() -> u32 {
    // SAFETY: has no arguments and always succeeds.
    unsafe { libc::geteuid() }
}

impl LiveProcess {
    fn read(page: &PageFile, pid: u32) -> Result<LiveProcess, PageProblem> {
        let mut words = page.live_words()?;
        let mut live = LivePage::open(&words).ok_or_else(|| page.unknown())?;
        for _ in 0..20 {
            let updates = live.updates();
            words = page.live_words()?;
            live = LivePage::open(&words).ok_or_else(|| page.unknown())?;
            if updates.is_multiple_of(2) && updates == live.updates() {
                break;
            }
        }
        let process = live.process();
        let (updated_ns, devices) = live.devices();
        Ok(LiveProcess {
            pid,
            command: command(pid),
            state: live.state().ok_or_else(|| page.unknown())?,
            off_by: live.off_by(),
            trace: process.trace,
            updated_ns,
            group: live.group(),
            devices,
            sites: live.sites().1,
        })
    }
}

/// Reads a file of /proc/PID that needs the process's memory (environ, cmdline); empty if it is unreadable. If the
/// main thread has ended, the file of another thread is read.
pub fn proc_file(pid: u32, name: &str) -> Vec<u8> {
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

/// Orders need different numbers; 0 means no order.
fn order_number() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 | 1
}

/// A recorded process that takes orders.
pub struct ControlTarget {
    pid: u32,
    page: PageFile,
}

/// The page of a process, opened for writing. `None`: it has none in this directory.
fn page_of(directory: &PageDirectory, pid: u32) -> Result<Option<PageFile>, PageProblem> {
    let listed = directory.pages()?.into_iter().find(|listed: &Listed| listed.pid == pid);
    listed.map(|listed| directory.live_page(&listed, true)).transpose()
}

/// Whether a process has a page in one of the directories where it may be.
pub fn has_page(pid: u32, owner: u32, places: &Places) -> bool {
    let has = |directory: PageDirectory| page_of(&directory, pid).is_ok_and(|page| page.is_some());
    PageDirectory::all_of(owner, places).into_iter().flatten().any(has)
}

/// Why a process takes no orders from this user.
pub enum TargetError {
    NoSuchProcess,
    /// The process belongs to the user with this id.
    NotYours(u32),
    /// It runs without the recorder, or has not used CUDA yet.
    NotTraced,
    Problem(PageProblem),
}

impl TargetError {
    /// For the user who named the process by `--pid`.
    pub fn message(&self, pid: u32) -> String {
        match self {
            TargetError::NoSuchProcess => format!("--pid {pid}: there is no such process"),
            TargetError::NotYours(owner) => format!(
                "--pid {pid}: it belongs to user {owner}; only that user and root can change \
                 its limits and its recording"
            ),
            TargetError::NotTraced => format!(
                "--pid {pid}: it runs without the recorder, or has not used CUDA yet; `vramtrace \
                 ps` lists the recorded processes"
            ),
            TargetError::Problem(problem) => problem.to_string(),
        }
    }
}

impl ControlTarget {
    /// Finds a process of this user; root finds processes of all users.
    pub fn find(pid: u32) -> Result<ControlTarget, TargetError> {
        proc::Stat::of(pid).filter(proc::Stat::is_alive).ok_or(TargetError::NoSuchProcess)?;
        let owner = std::fs::metadata(format!("/proc/{pid}"))
            .map_err(|_| TargetError::NoSuchProcess)?
            .uid();
        if user() != 0 && user() != owner {
            return Err(TargetError::NotYours(owner));
        }
        let environ = proc_file(pid, "environ");
        let variable = |name: &str| {
            let mut entries = environ.split(|byte| *byte == 0);
            let value = entries
                .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
            Some(std::ffi::OsStr::from_bytes(value).to_owned())
        };
        let mut problem = None;
        for directory in PageDirectory::all_of(owner, &Places::from(variable)) {
            match directory.and_then(|directory| page_of(&directory, pid)) {
                Ok(Some(page)) => return Ok(ControlTarget { pid, page }),
                Ok(None) => {}
                Err(PageProblem::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(other) => problem = Some(other),
            }
        }
        Err(problem.map_or(TargetError::NotTraced, TargetError::Problem))
    }

    pub fn state(&self) -> Result<LiveProcess, PageProblem> {
        LiveProcess::read(&self.page, self.pid)
    }

    /// Stores an order for another cap of a device, bytes; `None` removes the cap. False: the ordinal is too large.
    pub fn order(&self, ordinal: u8, cap: Option<u64>) -> Result<bool, PageProblem> {
        let number = order_number();
        if self.page.is_copy() {
            return self.order_by_file(ordinal, cap, number);
        }
        let Some(words) = order(ordinal, cap, number) else { return Ok(false) };
        words.into_iter().try_for_each(|(at, word)| self.page.store(at, word)).map(|()| true)
    }

    /// Stores an order that switches the recording.
    pub fn switch(&self, on: bool) -> Result<(), PageProblem> {
        let number = order_number();
        let words = self.page.live_words()?;
        let live = LivePage::open(&words).ok_or_else(|| self.page.unknown())?;
        if self.page.is_copy() {
            let (at, words) = live.filed_switch(on, number);
            let mut places = (at..).step_by(8).zip(words);
            return places.try_for_each(|(at, word)| self.page.store(at, word));
        }
        let mut words = live_switch::switch_order(on, number).into_iter();
        words.try_for_each(|(at, word)| self.page.store(at, word))
    }

    /// Waits for the process to apply the order to the recording. False: it made no CUDA call within `wait`.
    pub fn has_switched(&self, wait: Duration) -> Result<bool, PageProblem> {
        self.applied_within(wait, |live| live.is_switch_applied())
    }

    /// Stores the order in the page's file. The process reads it when it next writes the file.
    fn order_by_file(
        &self,
        ordinal: u8,
        cap: Option<u64>,
        number: u64,
    ) -> Result<bool, PageProblem> {
        let words = self.page.live_words()?;
        let live = LivePage::open(&words).ok_or_else(|| self.page.unknown())?;
        let Some((at, words)) = live.filed_order(ordinal, cap, number) else { return Ok(false) };
        let places = (at..).step_by(8);
        places.zip(words).try_for_each(|(at, word)| self.page.store(at, word)).map(|()| true)
    }

    /// Whether the process shares no memory with this one: it then reads orders once a second.
    pub fn is_apart(&self) -> bool {
        self.page.is_copy()
    }

    /// Waits for the process to apply the order. False: it made no CUDA call within `wait`.
    pub fn obeys(&self, ordinal: u8, wait: Duration) -> Result<bool, PageProblem> {
        self.applied_within(wait, |live| live.ordered(ordinal).is_none())
    }

    fn applied_within(
        &self,
        wait: Duration,
        is_applied: impl Fn(&LivePage) -> bool,
    ) -> Result<bool, PageProblem> {
        if self.is_apart() {
            return Ok(false);
        }
        let started = Instant::now();
        loop {
            let words = self.page.live_words()?;
            let live = LivePage::open(&words).ok_or_else(|| self.page.unknown())?;
            if is_applied(&live) {
                return Ok(true);
            }
            if started.elapsed() >= wait {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
