//! Groups of processes that share a cap: reads their pages and stores orders for another cap.

use vramtrace_format::group::{GROUP_BYTES, GroupDevice, GroupPage, limit_order};
use vramtrace_format::member::Member;
use vramtrace_format::proc::Life;

use super::directory::PageFile;
use super::process::user;
use super::{PageDirectory, PageProblem, segment};

pub struct Group {
    pub name: String,
    page: PageFile,
    /// Devices, each with its index in the page.
    pub devices: Vec<(usize, GroupDevice)>,
    /// Pids of the running members.
    pub members: Vec<u32>,
}

/// Groups of this user that have living members.
pub fn all() -> (Vec<Group>, Vec<PageProblem>) {
    let path = PageDirectory::shared_path(user());
    let directory = match PageDirectory::open(&path, user()) {
        Ok(directory) => directory,
        Err(problem) if problem.is_not_found() => return Default::default(),
        Err(problem) => return (Vec::new(), vec![problem]),
    };
    let (mut groups, mut problems) = (Vec::new(), Vec::new());
    for name in directory.names().into_iter().flatten() {
        let Some(name) = name.strip_prefix("group.") else { continue };
        match Group::open_in(&directory, name) {
            Ok(None) | Err(PageProblem::OtherNamespace(_)) => {}
            Ok(Some(group)) if group.members.is_empty() => {}
            Ok(Some(group)) => groups.push(group),
            // The group was removed after the directory was listed.
            Err(problem) if problem.is_not_found() => {}
            Err(problem) => problems.push(problem),
        }
    }
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    (groups, problems)
}

/// A unique group name, for the processes of one run.
pub fn fresh_name() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    format!("run-{}-{:x}", std::process::id(), now.unwrap_or_default().as_nanos())
}

/// Makes the directories of a group and checks that its page can be made, before its processes start.
pub fn prepare(name: &str) -> Result<(), PageProblem> {
    let path = PageDirectory::shared_path(user());
    PageDirectory::make(&path, user())?;
    PageDirectory::make(&path.join(format!("group.{name}")), user())?;
    segment::make(GROUP_BYTES).map(drop).map_err(PageProblem::NoSharedMemory)
}

/// Removes the directory of a group. Errors are ignored.
pub fn remove(name: &str) {
    let path = PageDirectory::shared_path(user());
    if PageDirectory::open(&path, user()).is_ok() {
        let _ = std::fs::remove_dir_all(path.join(format!("group.{name}")));
    }
}

impl Group {
    /// `None`: none of its processes runs.
    pub fn open(name: &str) -> Result<Option<Group>, PageProblem> {
        Group::open_in(&PageDirectory::open(&PageDirectory::shared_path(user()), user())?, name)
    }

    fn open_in(directory: &PageDirectory, name: &str) -> Result<Option<Group>, PageProblem> {
        let Some(page) = directory.group_page(name)? else { return Ok(None) };
        let look = page.group().ok_or_else(|| page.unknown())?;
        let life = |member: &Member| segment::life_of(*member, directory.owner());
        if look.members().any(|member| life(&member) == Life::Dead) {
            remove_dead(look, life);
        }
        let kept = look.members().filter(|member| life(member) != Life::Dead);
        let members = kept.map(|member| member.pid).collect();
        let devices = look.devices().collect();
        Ok(Some(Group { name: name.into(), page, devices, members }))
    }

    /// Stores an order for another limit, bytes, of the device with this index; `None` removes the limit.
    pub fn order(&self, number: usize, limit: Option<u64>) -> Result<(), PageProblem> {
        let (at, word) = limit_order(number, limit);
        self.page.store(at, word)
    }
}

/// Removes the members that have ended: those who run may be unable to look at them. While it does so, this process is known
/// by a segment as they are.
fn remove_dead(page: GroupPage, life: impl Fn(&Member) -> Life) {
    const SMALL: usize = 8;
    let Ok((_kept, segment)) = segment::make(SMALL) else { return };
    let me = Member { pid: std::process::id(), segment, made: 0 };
    page.remove_dead_members(me, |member| life(&member));
}
