//! Orders to running recorded processes: another cap, and the recording on or off.

use std::time::{Duration, Instant, SystemTime};

use vramtrace_format::live::order;
use vramtrace_format::member::Namespaces;
use vramtrace_format::name::PageName;
use vramtrace_format::proc::Life;
use vramtrace_format::{LivePage, live_switch, proc};

use super::directory::PageFile;
use super::places::PageLocations;
use super::process::{LiveProcess, user, variable};
use super::{PageDirectory, PageProblem, owner};
use crate::error::Failure;

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
pub fn has_page(pid: u32, owner: u32, places: &PageLocations) -> bool {
    let has = |directory: PageDirectory| target_in(&directory, pid).is_ok_and(|it| it.is_some());
    PageDirectory::all_of(owner, places).into_iter().flatten().any(has)
}

/// How long an order waits for the process to apply it. One that makes CUDA calls does so at the next; an idle one does not.
const PATIENCE: Duration = Duration::from_millis(50);

/// When a process applies an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Now,
    AtNextCall,
    /// The process shares no memory with this one, and reads orders once a second.
    InASecond,
}

impl Applied {
    /// What stands behind a line about the order.
    pub fn text(self) -> &'static str {
        match self {
            Applied::Now => "",
            Applied::AtNextCall => " (from its next CUDA call on)",
            Applied::InASecond => " (from its first CUDA call in a second or later)",
        }
    }
}

impl ControlTarget {
    /// Finds a process of this user; root finds processes of all users.
    pub fn find(pid: u32) -> Result<ControlTarget, Failure> {
        let wrong = |why: &str| Failure::new(format!("--pid {pid}: {why}"));
        let alive = proc::Stat::of(pid).filter(proc::Stat::is_alive);
        let owner = alive.and_then(|_| owner::user_of(pid));
        let owner = owner.ok_or_else(|| wrong("there is no such process"))?;
        if user() != 0 && user() != owner {
            return Err(wrong(&format!(
                "it belongs to user {owner}; only that user and root can change \
                 its limits and its recording"
            )));
        }
        let mut problem = None;
        let places = PageLocations::from(|name| variable(pid, name));
        for directory in PageDirectory::all_of(owner, &places) {
            match directory.and_then(|directory| target_in(&directory, pid)) {
                Ok(Some(target)) => return Ok(target),
                Ok(None) => {}
                Err(other) if other.is_not_found() => {}
                Err(other) => problem = Some(other),
            }
        }
        const NO_PAGE: &str = "it runs without the recorder, or has not used CUDA yet; `vramtrace ps` lists the \
            recorded processes";
        Err(problem.map_or_else(|| wrong(NO_PAGE), Failure::from))
    }

    pub fn state(&self) -> Result<LiveProcess, PageProblem> {
        LiveProcess::read(&self.page, &self.name, self.owner)
    }

    /// Orders another cap of a device, bytes; `None` removes the cap.
    pub fn order(&self, ordinal: u8, cap: Option<u64>) -> Result<Applied, Failure> {
        let number = order_number();
        let words = match self.page.is_copy() {
            true => self.page.live(|live| live.filed_order(ordinal, cap, number))?.map(filed),
            false => order(ordinal, cap, number),
        };
        let too_large = || format!("device {ordinal}: only devices 0 to 15 can be changed");
        let words = words.ok_or_else(|| Failure::new(too_large()))?;
        Ok(self.store(words, |live| live.ordered(ordinal).is_none())?)
    }

    /// Switches the recording.
    pub fn switch(&self, on: bool) -> Result<Applied, PageProblem> {
        let number = order_number();
        let words = match self.page.is_copy() {
            true => filed(self.page.live(|live| live.filed_switch(on, number))?),
            false => live_switch::switch_order(on, number),
        };
        self.store(words, |live| live.is_switch_applied())
    }

    fn store(
        &self,
        words: [(u64, u64); 3],
        is_applied: impl Fn(&LivePage) -> bool,
    ) -> Result<Applied, PageProblem> {
        words.into_iter().try_for_each(|(at, word)| self.page.store(at, word))?;
        if self.page.is_copy() {
            return Ok(Applied::InASecond);
        }
        let started = Instant::now();
        while !self.page.live(&is_applied)? {
            if started.elapsed() >= PATIENCE {
                return Ok(Applied::AtNextCall);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Applied::Now)
    }
}

/// An order in the page's file, which the process reads when it next writes the file.
fn filed((at, words): (u64, [u64; 3])) -> [(u64, u64); 3] {
    [(at, words[0]), (at + 8, words[1]), (at + 16, words[2])]
}
