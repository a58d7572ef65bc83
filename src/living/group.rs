//! A group of processes that share a cap: its page.

use vramtrace_format::group::{GROUP_WORDS, GroupDevice, GroupPage, limit_order};
use vramtrace_format::member::Member;

use super::directory::Page;
use super::{Directory, Problem};

pub struct Group {
    pub name: String,
    page: Page,
    /// With their numbers in the page.
    pub devices: Vec<(usize, GroupDevice)>,
    /// Pids of those that live.
    pub members: Vec<u32>,
}

/// Groups of this user that have living members.
pub fn all() -> (Vec<Group>, Vec<Problem>) {
    let path = Directory::shared_path(user());
    let directory = match Directory::open(&path, user()) {
        Ok(directory) => directory,
        Err(Problem::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Default::default();
        }
        Err(problem) => return (Vec::new(), vec![problem]),
    };
    let (mut groups, mut problems) = (Vec::new(), Vec::new());
    for name in directory.names().unwrap_or_default() {
        let Some(name) = name.strip_prefix("group.") else { continue };
        match Group::open_in(&directory, name) {
            Ok(group) if group.members.is_empty() => {}
            Ok(group) => groups.push(group),
            Err(problem) => problems.push(problem),
        }
    }
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    (groups, problems)
}

/// A name that no other group has: for the processes of one run.
pub fn fresh_name() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    format!("run-{}-{:x}", std::process::id(), now.unwrap_or_default().as_nanos())
}

/// Takes away the page of a run that is over.
pub fn remove(name: &str) {
    let path = Directory::shared_path(user());
    if Directory::open(&path, user()).is_ok() {
        let _ = std::fs::remove_file(path.join(format!("group.{name}")));
    }
}

fn user() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() }
}

impl Group {
    pub fn open(name: &str) -> Result<Group, Problem> {
        Group::open_in(&Directory::open(&Directory::shared_path(user()), user())?, name)
    }

    fn open_in(directory: &Directory, name: &str) -> Result<Group, Problem> {
        let page = directory.page(&format!("group.{name}"), true)?;
        let words = page.words::<GROUP_WORDS>()?;
        let look = GroupPage::look(&words).ok_or_else(|| page.unknown())?;
        let alive = look.members().filter(Member::is_alive);
        let members = alive.map(|member| member.pid).collect();
        let devices = look.devices().collect();
        Ok(Group { name: name.into(), page, devices, members })
    }

    /// Orders another limit for a device, by its number in the page.
    pub fn order(&self, number: usize, limit: Option<u64>) -> Result<(), Problem> {
        let (at, word) = limit_order(number, limit);
        self.page.store(at, word)
    }
}
