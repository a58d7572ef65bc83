//! Orders to running recorded processes: another cap, and the recording on or off.

use std::time::{Duration, Instant, SystemTime};

use vramtrace_format::live::order;
use vramtrace_format::member::Namespaces;
use vramtrace_format::name::PageName;
use vramtrace_format::proc::Life;
use vramtrace_format::{LivePage, live_switch, proc};

use super::directory::PageFile;
use super::places::Places;
use super::process::{LiveProcess, user, variable};
use super::{PageDirectory, PageProblem, owner};

/// Orders need different numbers; 0 means no order.
fn order_number() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 | 1
}

/// A recorded process that takes orders.
pub struct ControlTarget {
    page: PageFile,
    name: PageName,
    owner: u32,
}

/// The process of this pid, if it has a page in this directory.
fn target_in(directory: &PageDirectory, pid: u32) -> Result<Option<ControlTarget>, PageProblem> {
    let here = Namespaces::to_look_from();
    let is_it = |(_, name): &(String, PageName)| {
        directory.pid_here(name, here) == Some(pid) && directory.life(name, here) != Life::Dead
    };
    let Some((file, name)) = directory.pages()?.find(is_it) else { return Ok(None) };
    let attached = directory.segment(&name, true);
    let page = attached.map_or_else(|| directory.page(&file, true), Ok)?;
    Ok(Some(ControlTarget { page, name, owner: directory.owner() }))
}

/// Whether a process has a page in one of the directories where it may be.
pub fn has_page(pid: u32, owner: u32, places: &Places) -> bool {
    let has = |directory: PageDirectory| target_in(&directory, pid).is_ok_and(|it| it.is_some());
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
        let owner = owner::user_of(pid).ok_or(TargetError::NoSuchProcess)?;
        if user() != 0 && user() != owner {
            return Err(TargetError::NotYours(owner));
        }
        let mut problem = None;
        for directory in PageDirectory::all_of(owner, &Places::from(|name| variable(pid, name))) {
            match directory.and_then(|directory| target_in(&directory, pid)) {
                Ok(Some(target)) => return Ok(target),
                Ok(None) => {}
                Err(other) if other.is_not_found() => {}
                Err(other) => problem = Some(other),
            }
        }
        Err(problem.map_or(TargetError::NotTraced, TargetError::Problem))
    }

    pub fn state(&self) -> Result<LiveProcess, PageProblem> {
        LiveProcess::read(&self.page, &self.name, self.owner)
    }

    /// Stores an order for another cap of a device, bytes; `None` removes the cap. False: the ordinal is too large.
    pub fn order(&self, ordinal: u8, cap: Option<u64>) -> Result<bool, PageProblem> {
        let number = order_number();
        let words = match self.is_apart() {
            true => self.page.live(|live| live.filed_order(ordinal, cap, number))?.map(filed),
            false => order(ordinal, cap, number),
        };
        words.map(|words| self.store(words)).transpose().map(|stored| stored.is_some())
    }

    /// Stores an order that switches the recording.
    pub fn switch(&self, on: bool) -> Result<(), PageProblem> {
        let number = order_number();
        self.store(match self.is_apart() {
            true => filed(self.page.live(|live| live.filed_switch(on, number))?),
            false => live_switch::switch_order(on, number),
        })
    }

    fn store(&self, words: [(u64, u64); 3]) -> Result<(), PageProblem> {
        words.into_iter().try_for_each(|(at, word)| self.page.store(at, word))
    }

    /// Waits for the process to apply the order to the recording. False: it made no CUDA call within `wait`.
    pub fn has_switched(&self, wait: Duration) -> Result<bool, PageProblem> {
        self.applied_within(wait, |live| live.is_switch_applied())
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
            if self.page.live(&is_applied)? {
                return Ok(true);
            }
            if started.elapsed() >= wait {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// An order in the page's file, which the process reads when it next writes the file.
fn filed((at, words): (u64, [u64; 3])) -> [(u64, u64); 3] {
    [(at, words[0]), (at + 8, words[1]), (at + 16, words[2])]
}
