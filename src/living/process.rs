//! A traced process that runs: its live page.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use vramtrace_format::live::{LIVE_WORDS, LiveState, order};
use vramtrace_format::member::Member;
use vramtrace_format::{LiveDevice, LivePage};

use super::directory::Page;
use super::{Directory, Problem};

/// What a live page says.
#[derive(Clone, Debug)]
pub struct Living {
    pub pid: u32,
    pub command: String,
    pub state: LiveState,
    /// Empty: it records nothing.
    pub trace: String,
    /// When the figures were stored, ns since the start.
    pub updated_ns: u64,
    pub group: Option<String>,
    pub devices: Vec<LiveDevice>,
}

/// All of this user, and what was wrong with pages that are not shown.
pub fn all() -> (Vec<Living>, Vec<Problem>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    for directory in Directory::all_of(user(), runtime.as_deref()) {
        match directory.and_then(|directory| in_directory(&directory, &mut problems)) {
            Ok(some) => found.extend(some),
            Err(problem) => problems.push(problem),
        }
    }
    found.sort_by_key(|living: &Living| living.pid);
    (found, problems)
}

fn in_directory(
    directory: &Directory,
    problems: &mut Vec<Problem>,
) -> Result<Vec<Living>, Problem> {
    let mut found = Vec::new();
    for name in directory.names()? {
        let Some((pid, start)) = name.split_once('.') else { continue };
        let (Ok(pid), Ok(start)) = (pid.parse(), start.parse()) else { continue };
        if !runs(pid, start) {
            continue;
        }
        match directory.page(&name, false).and_then(|page| Living::read(&page)) {
            Ok(living) if living.state != LiveState::Ended => found.push(living),
            Ok(_) => {}
            // It is being made.
            Err(Problem::Unknown(_)) if is_young(pid) => {}
            // It ended between the list and the look.
            Err(Problem::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(problem) => problems.push(problem),
        }
    }
    Ok(found)
}

fn runs(pid: u32, start_ticks: u64) -> bool {
    Member::running(pid).is_some_and(|member| member.start_ticks == start_ticks)
}

/// Started less than a second ago, as far as its page tells.
fn is_young(pid: u32) -> bool {
    let started = std::fs::metadata(format!("/proc/{pid}")).and_then(|about| about.modified());
    started.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < Duration::from_secs(1)))
}

fn user() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() }
}

impl Living {
    fn read(page: &Page) -> Result<Living, Problem> {
        let mut words = page.words::<LIVE_WORDS>()?;
        let mut live = LivePage::open(&words).ok_or_else(|| page.unknown())?;
        for _ in 0..20 {
            let updates = live.updates();
            let again = page.words::<LIVE_WORDS>()?;
            let later = LivePage::open(&again).ok_or_else(|| page.unknown())?;
            if updates.is_multiple_of(2) && updates == later.updates() {
                break;
            }
            words = again;
            live = LivePage::open(&words).ok_or_else(|| page.unknown())?;
        }
        let process = live.process();
        let (updated_ns, devices) = live.devices();
        Ok(Living {
            pid: process.pid,
            command: command(process.pid),
            state: live.state().ok_or_else(|| page.unknown())?,
            trace: process.trace,
            updated_ns,
            group: live.group(),
            devices,
        })
    }
}

fn command(pid: u32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    String::from_utf8_lossy(words).replace('\0', " ")
}

/// A process that can be given orders.
pub struct Target {
    page: Page,
}

/// Why there is nobody to give orders to.
pub enum Missing {
    NoSuchProcess,
    /// It is this user's.
    NotYours(u32),
    /// It runs without the recorder, or has not used CUDA yet.
    NotTraced,
    Problem(Problem),
}

impl Target {
    /// Of the same user; or any, for root.
    pub fn find(pid: u32) -> Result<Target, Missing> {
        let member = Member::running(pid).ok_or(Missing::NoSuchProcess)?;
        let owner =
            std::fs::metadata(format!("/proc/{pid}")).map_err(|_| Missing::NoSuchProcess)?.uid();
        if user() != 0 && user() != owner {
            return Err(Missing::NotYours(owner));
        }
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let runtime = environ
            .split(|byte| *byte == 0)
            .find_map(|entry| entry.strip_prefix(b"XDG_RUNTIME_DIR="))
            .map(|value| Path::new(std::ffi::OsStr::from_bytes(value)));
        let name = format!("{pid}.{}", member.start_ticks);
        let mut problem = None;
        for directory in Directory::all_of(owner, runtime) {
            match directory.and_then(|directory| directory.page(&name, true)) {
                Ok(page) => return Ok(Target { page }),
                Err(Problem::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(other) => problem = Some(other),
            }
        }
        Err(problem.map_or(Missing::NotTraced, Missing::Problem))
    }

    pub fn living(&self) -> Result<Living, Problem> {
        Living::read(&self.page)
    }

    /// Orders another cap for a device. False: no such device can be.
    pub fn order(&self, ordinal: u8, cap: Option<u64>) -> Result<bool, Problem> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Never the number of an earlier order, nor 0.
        let Some(words) = order(ordinal, cap, now.as_nanos() as u64 | 1) else { return Ok(false) };
        words.into_iter().try_for_each(|(at, word)| self.page.store(at, word)).map(|()| true)
    }

    /// Waits a moment for the process to obey. False: it makes no calls just now.
    pub fn obeys(&self, ordinal: u8, wait: Duration) -> Result<bool, Problem> {
        let started = Instant::now();
        loop {
            let words = self.page.words::<LIVE_WORDS>()?;
            let live = LivePage::open(&words).ok_or_else(|| self.page.unknown())?;
            if live.ordered(ordinal).is_none() {
                return Ok(true);
            }
            if started.elapsed() >= wait {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
