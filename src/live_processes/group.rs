//! Groups of processes that share a cap: reads their pages and stores orders for another cap.

use vramtrace_format::group::{GROUP_BYTES, GroupDevice, GroupPage, limit_order};
use vramtrace_format::member::Member;
use vramtrace_format::proc::Life;

use super::PageProblem;
use super::process::user;
use super::segment::{self, Segment};

pub struct Group {
    pub name: String,
    page: Segment,
    /// Devices, each with its index in the page.
    pub devices: Vec<(usize, GroupDevice)>,
    /// Pids of the running members.
    pub members: Vec<u32>,
}

/// Groups of this user that have living members.
pub fn all() -> Vec<Group> {
    let found = segment::attached(GROUP_BYTES).filter_map(Group::open);
    let mut groups: Vec<Group> = found.filter(|group| !group.members.is_empty()).collect();
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    groups
}

/// A unique group name, for the processes of one run.
pub fn fresh_name() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    format!("run-{}-{:x}", std::process::id(), now.unwrap_or_default().as_nanos())
}

/// Checks that the page of a group can be made, before its processes start.
pub fn prepare() -> Result<(), PageProblem> {
    segment::make(GROUP_BYTES).map(drop).map_err(PageProblem::NoSharedMemory)
}

impl Group {
    /// `None`: this user has no such group in this container.
    pub fn find(name: &str) -> Option<Group> {
        all().into_iter().find(|group| group.name == name)
    }

    /// The group whose page is this segment. `None`: it is of another container or version.
    fn open(id: i32) -> Option<Group> {
        let page = Segment::attach(id, user(), true)?;
        let look = GroupPage::look(page.words().try_into().ok()?)?;
        if !look.is_of_namespace(Member::namespace()) {
            return None;
        }
        let life = |member: &Member| segment::life_of(*member, user());
        if look.members().any(|member| life(&member) == Life::Dead) {
            remove_dead(look, life);
        }
        let kept = look.members().filter(|member| life(member) != Life::Dead);
        let members = kept.map(|member| member.pid).collect();
        let (name, devices) = (look.name(), look.devices().collect());
        Some(Group { name, page, devices, members })
    }

    /// Stores an order for another limit, bytes, of the device with this index; `None` removes the limit.
    pub fn order(&self, number: usize, limit: Option<u64>) {
        let (at, word) = limit_order(number, limit);
        self.page.store(at, word);
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
