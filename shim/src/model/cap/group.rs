//! The group that shares a budget: its page, and this process's place in it.
//!
//! The page is always found in `/dev/shm/vramtrace-UID`, so that members with different environments
//! find the same page. A directory or page that another user could write is refused, since that user
//! could change the cap.
//!
//! Before a refusal, members that are dead are removed: one system call for each member, at most every 20 us. A
//! member lives while the segment is attached that it made when it joined (`runtime/segment.rs`). Where that is gone and
//! the pid is still there, /proc tells whether the kernel is still taking back what the process had, at most every
//! millisecond. A member of which this cannot be told is kept, and named after the refusal.
//!
//! A member that was removed while it lives, or whose page has lost its name, joins again with what it holds. It
//! finds the first at its next request, by a load, and the second once a second at most, at the end of a call or
//! before a refusal, by asking whether the page's file is there.

use super::group_page::{self, Held};
use super::{DeviceFacts, GroupShare};
use crate::runtime::fallible::TryPush;
use crate::runtime::private_table::{self, NoTask};
use crate::runtime::secure_dir::{self, Wrong};
use crate::runtime::segment::{self, Segment};
use crate::runtime::system;
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use vramtrace_format::DeviceId;
use vramtrace_format::capspec::CapSpec;
use vramtrace_format::group::{GROUP_DEVICES, GROUP_MEMBERS};
use vramtrace_format::member::Member;
use vramtrace_format::policy::GroupSpec;
use vramtrace_format::proc::Life;

/// The process's membership, if it is in a group.
pub struct Group(Option<Joined>);

struct Joined {
    held: Held,
    slot: usize,
    me: Member,
    cap: Option<CapSpec>,
    /// When members were last checked, ns of the monotonic clock; when by /proc; and when the page's name.
    looked_ns: AtomicU64,
    closely_ns: AtomicU64,
    name_ns: AtomicU64,
    /// Of a member it could not be told at once, at the last check.
    unchecked: AtomicBool,
}

/// Least time between two checks of the members: a program that retries in a loop must not be slowed down.
const LOOK_EVERY_NS: u64 = 20_000;
/// Least time between two readings of /proc.
const CLOSELY_EVERY_NS: u64 = 1_000_000;
/// Least time between two looks for the page's name.
const NAME_EVERY_NS: u64 = 1_000_000_000;

/// The least segment that can be made: by it others see that this process lives.
const SIGN_WORDS: usize = 512;

/// Why a group cannot be joined. The message says what would be right.
#[derive(Debug, PartialEq, Eq)]
pub enum Why {
    Directory {
        path: String,
        what: Wrong,
    },
    File {
        path: String,
        what: Wrong,
    },
    /// The file is not a group's, or of another version.
    NotAGroup {
        path: String,
    },
    OtherNamespace {
        path: String,
    },
    /// Of another version, and its processes still run.
    OtherVersion {
        path: String,
    },
    /// The system gives no System V shared memory.
    NoSharedMemory {
        errno: i32,
    },
    /// Another process has held the lock for seconds.
    Busy {
        path: String,
    },
    Full,
    Devices,
    /// The system makes no task, which opens the files.
    NoTask {
        errno: i32,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Why::Directory { path, what } => write!(f, "the directory {path} {what}"),
            Why::File { path, what } => write!(f, "the file {path} {what}"),
            Why::NotAGroup { path } => {
                write!(
                    f,
                    "{path} is not a group page of this version; remove it if no process uses it"
                )
            }
            Why::OtherNamespace { path } => write!(
                f,
                "{path} is a group of another container, whose processes are not visible here; use \
                 another name, or remove it if no process uses it"
            ),
            Why::OtherVersion { path } => write!(
                f,
                "{path} is a group of another version of this library, and its processes run; use \
                 another name, or start all processes of the group with one version"
            ),
            Why::NoSharedMemory { errno } => write!(
                f,
                "a group needs System V shared memory (shmget, shmat): errno {errno}; raise \
                 kernel.shmmni or kernel.shmall, or allow these calls (seccomp)"
            ),
            Why::Busy { path } => {
                write!(
                    f,
                    "{path} is locked by another process, which may be stopped; resume or end it"
                )
            }
            Why::Devices => write!(
                f,
                "the group has {GROUP_DEVICES} other devices, the maximum; every request on this \
                 one is refused; use another group name for some of them"
            ),
            Why::Full => {
                write!(f, "the group has {GROUP_MEMBERS} processes, the maximum; use another name")
            }
            Why::NoTask { errno } => write!(
                f,
                "the system makes no thread to open the files of a group with (errno {errno}); raise \
                 RLIMIT_NPROC or pids.max, or allow clone (seccomp)"
            ),
        }
    }
}

impl Group {
    pub const fn none() -> Group {
        Group(None)
    }

    pub fn join(spec: &GroupSpec) -> Result<Group, Why> {
        Group::join_in(&vramtrace_format::memory::directory(secure_dir::user()), spec, None)
    }

    fn join_in(directory: &str, spec: &GroupSpec, before: Option<&Joined>) -> Result<Group, Why> {
        let joined = private_table::run(|_| Group::enter(directory, spec, before));
        joined.unwrap_or_else(|NoTask { errno }| Err(Why::NoTask { errno }))
    }

    /// In a task.
    fn enter(directory: &str, spec: &GroupSpec, before: Option<&Joined>) -> Result<Group, Why> {
        let me = before.map_or_else(sign, |before| Ok(before.me))?;
        let held = group_page::open(directory, &spec.name, before.map(|before| &before.held))?;
        let kept = before.filter(|before| before.is_member() && before.held.made == held.made);
        let slot = match kept {
            Some(before) => before.slot,
            None => held.page.join(me, |member| life(me, member)).ok_or(Why::Full)?,
        };
        let (looked_ns, closely_ns, unchecked) = Default::default();
        let name_ns = AtomicU64::new(monotonic_ns());
        let cap = spec.cap.clone();
        Ok(Group(Some(Joined { held, slot, me, cap, looked_ns, closely_ns, name_ns, unchecked })))
    }

    /// Whether this process is to join again: it is no member any more, or the page's file is gone.
    pub fn is_lost(&self) -> bool {
        let Some(joined) = &self.0 else { return false };
        !joined.is_member() || is_due(&joined.name_ns, NAME_EVERY_NS) && joined.is_lost()
    }

    pub fn is_member(&self) -> bool {
        self.0.as_ref().is_none_or(Joined::is_member)
    }

    /// Joins again, with the same identity: the page that has the name now, or the same one. Says what happened, and
    /// whether it has another place now. `None`: another thread was faster.
    pub fn again(&self, spec: &GroupSpec) -> Result<Option<(Group, bool, &'static str)>, Why> {
        let lost = self.0.as_ref().filter(|joined| joined.is_lost());
        let Some(before) = lost else { return Ok(None) };
        let was_member = before.is_member();
        let group = Group::join_in(&before.held.directory, spec, Some(before))?;
        let is_same = group.0.as_ref().is_some_and(|after| after.held.made == before.held.made);
        let what = match (is_same, was_member) {
            (true, true) => "its name in memory was removed, and is there again",
            (true, false) => "this process was removed while it lives, and is a member again",
            (false, _) => "it had two pages; this process is in the older one now",
        };
        if !is_same {
            before.held.page.leave(before.slot, before.me);
        }
        Ok(Some((group, !(is_same && was_member), what)))
    }

    /// This process's part in a device's budget. `None`: it is in no group.
    pub fn share(&self, device: DeviceId, facts: &DeviceFacts) -> Result<Option<GroupShare>, Why> {
        let Some(Joined { held, slot, me, cap, .. }) = &self.0 else { return Ok(None) };
        let page = held.page;
        let number = page.device(&facts.uuid, device.0, facts.total_bytes).ok_or(Why::Devices)?;
        let limit =
            cap.as_ref().and_then(|cap| cap.limit(device.0.into(), &facts.uuid, facts.total_bytes));
        page.set_member_limit(*slot, number, limit);
        Ok(Some(GroupShare::new(page, *slot, *me, number)))
    }

    /// Removes members that are dead.
    pub fn reap(&self) {
        let Some(joined) = &self.0 else { return };
        let Joined { held, me, looked_ns, closely_ns, unchecked, .. } = joined;
        if !is_due(looked_ns, LOOK_EVERY_NS) {
            return;
        }
        let [is_unclear, is_unknown] = [const { Cell::new(false) }; 2];
        let noted = |life, note: &Cell<bool>| {
            note.set(true);
            life
        };
        held.page.remove_dead_members(*me, |member| match is_attached(*me, member) {
            Some(true) => Life::Alive,
            Some(false) if !system::exists(member.pid) => Life::Dead,
            Some(false) => noted(Life::Unknown, &is_unclear),
            None => noted(Life::Unknown, &is_unknown),
        });
        unchecked.store(is_unclear.get() || is_unknown.get(), Relaxed);
        if is_unclear.get() && is_due(closely_ns, CLOSELY_EVERY_NS) {
            // Without a task they are kept.
            let closely = |_: &_| held.page.remove_dead_members(*me, |member| life(*me, member));
            let _ = private_table::run(closely);
        }
    }

    /// The pids of members of which it cannot be told whether they live.
    pub fn unchecked(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        let Some(Joined { held, me, unchecked, .. }) = &self.0 else { return pids };
        if !unchecked.load(Relaxed) {
            return pids;
        }
        let _ = private_table::run(|_| {
            for member in held.page.members() {
                if member != *me && life(*me, member) == Life::Unknown {
                    let _ = pids.try_push(member.pid);
                }
            }
        });
        pids
    }
}

impl Joined {
    fn is_member(&self) -> bool {
        self.held.page.is_member(self.slot, self.me)
    }

    fn is_lost(&self) -> bool {
        !self.is_member() || self.held.has_lost_its_name()
    }
}

/// This process, as a member: others see by a segment that it lives.
fn sign() -> Result<Member, Why> {
    let made = Segment::<SIGN_WORDS>::create().map_err(|wrong| match wrong {
        Wrong::Errno(errno) => Why::NoSharedMemory { errno },
        _ => Why::NoSharedMemory { errno: 0 },
    })?;
    Ok(Member { pid: std::process::id(), segment: made.id, made: made.made() })
}

/// Whether a member's segment is attached. `None`: this thread does not see its own process's either, so it has
/// another IPC namespace or user by now.
fn is_attached(me: Member, member: Member) -> Option<bool> {
    let of = |member: Member| segment::is_attached(member.segment, member.made);
    of(member).filter(|attached| *attached || of(me) == Some(true))
}

#[allow(clippy::disallowed_methods)] // in a task
fn life(me: Member, member: Member) -> Life {
    Life::of_holder(member.pid, is_attached(me, member), || system::exists(member.pid))
}

fn is_due(last: &AtomicU64, every: u64) -> bool {
    let now = monotonic_ns();
    let due = now.saturating_sub(last.load(Relaxed)) >= every;
    if due {
        last.store(now, Relaxed);
    }
    due
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct of our own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> String {
        let path = format!("/dev/shm/vramtrace-test-{}-{name}", std::process::id());
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    fn why(directory: &str, name: &str) -> String {
        let spec = GroupSpec { name: name.into(), cap: None };
        let why =
            Group::join_in(directory, &spec, None).err().expect("it must be refused").to_string();
        assert!(why.contains(directory), "{why}");
        why
    }

    /// A name that no other test uses: a page is found by it.
    fn named(what: &str) -> GroupSpec {
        GroupSpec { name: format!("{what}-{}", std::process::id()), cap: None }
    }

    fn join(place: &str, spec: &GroupSpec) -> Group {
        Group::join_in(place, spec, None).ok().unwrap()
    }

    #[test]
    fn who_has_ended_is_removed_and_who_cannot_be_told_is_kept_and_named() {
        let (place, spec) = (scratch("gone"), named("gone"));
        let group = join(&place, &spec);
        let Joined { held, slot, me, looked_ns, closely_ns, .. } = group.0.as_ref().unwrap();
        let page = held.page;
        let count = || page.members().count();
        let look = || {
            looked_ns.store(0, Relaxed);
            group.reap();
        };
        let add = |member| page.join(member, |_| Life::Alive).unwrap();
        let none = (1 << 22) - 1;
        // No such segment, and no such process.
        add(Member { pid: none, segment: i32::MAX, made: 1 });
        assert_eq!(count(), 2);
        look();
        assert_eq!(count(), 1);
        // This process's pid: it is there, and does not have that segment.
        add(Member { segment: i32::MAX, ..*me });
        closely_ns.store(u64::MAX, Relaxed);
        look();
        assert_eq!(count(), 2, "no close look was due");
        closely_ns.store(0, Relaxed);
        look();
        assert_eq!(count(), 1);
        // It has its own, made at another time.
        add(Member { made: me.made + 1, ..*me });
        assert!(page.is_member(*slot, *me));
        // Who sees itself no more cannot tell of others.
        let blind = Member { segment: i32::MAX - 1, ..*me };
        assert_eq!(life(blind, Member { pid: none, segment: i32::MAX, made: 1 }), Life::Unknown);
        let _ = std::fs::remove_dir_all(&place);
    }

    #[test]
    fn who_was_removed_or_has_lost_the_name_joins_again_and_of_two_pages_the_older_holds() {
        let (place, spec) = (scratch("again"), named("again"));
        let group = join(&place, &spec);
        let parts = |group: &Group| {
            let Joined { held, slot, me, .. } = group.0.as_ref().unwrap();
            (held.page, *slot, *me, held.made)
        };
        let (page, slot, me, made) = parts(&group);
        assert!(!group.is_lost());
        page.leave(slot, me);
        assert!(group.is_lost());
        let (group, _, what) = group.again(&spec).ok().flatten().unwrap();
        assert!(
            what.contains("removed while it lives")
                && parts(&group).3 == made
                && page.is_member(slot, me)
        );
        let forget = |group: &Group| group.0.as_ref().unwrap().name_ns.store(0, Relaxed);
        std::fs::remove_dir_all(&place).unwrap();
        forget(&group);
        assert!(group.is_lost());
        // Who joins finds it without its name.
        let other = join(&place, &spec);
        assert_eq!(parts(&other).3, made);
        forget(&group);
        assert!(!group.is_lost(), "its name is there again");
        std::fs::remove_dir_all(&place).unwrap();
        let (group, _, what) = group.again(&spec).ok().flatten().unwrap();
        assert!(what.contains("is there again") && !group.is_lost());
        // A newer page gets the name: it is given up.
        let newer = join(&place, &named("newer"));
        assert!(parts(&newer).3 > made);
        let path = |spec: &GroupSpec| format!("{place}/group.{}", spec.name);
        std::fs::remove_dir_all(path(&spec)).unwrap();
        std::fs::rename(path(&named("newer")), path(&spec)).unwrap();
        let (group, ..) = group.again(&spec).ok().flatten().unwrap();
        assert_eq!(parts(&group).3, made);
        forget(&newer);
        assert!(newer.is_lost());
        let (moved, _, what) = newer.again(&spec).ok().flatten().unwrap();
        assert!(what.contains("older") && parts(&moved).3 == made);
        assert_eq!((parts(&newer).0.members().count(), page.members().count()), (0, 3));
        let _ = std::fs::remove_dir_all(&place);
    }

    #[test]
    fn what_others_could_have_put_there_is_refused() {
        let open = scratch("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(why(&open, "a").contains("open to others (mode 755)"));

        let link = scratch("link");
        let _ = std::fs::remove_file(&link);
        symlink(&open, &link).unwrap();
        assert!(why(&link, "a").contains("link"));

        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o700)).unwrap();
        let spec = named("good");
        let group = join(&open, &spec);
        assert_eq!(group.0.as_ref().unwrap().held.page.members().count(), 1);
        group.reap();
        assert_eq!(group.0.as_ref().unwrap().held.page.members().count(), 1);

        symlink(format!("{open}/group.{}", spec.name), format!("{open}/group.linked")).unwrap();
        assert!(why(&open, "linked").contains("link"));
        std::fs::write(format!("{open}/group.file"), "").unwrap();
        assert!(why(&open, "file").contains("not a directory"));
        std::fs::create_dir(format!("{open}/group.entered")).unwrap();
        let wide = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(format!("{open}/group.entered"), wide).unwrap();
        assert!(why(&open, "entered").contains("mode 755"));
        std::fs::create_dir(format!("{open}/group.other")).unwrap();
        let closed = PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(format!("{open}/group.other"), closed).unwrap();
        std::fs::write(format!("{open}/group.other/notes"), "").unwrap();
        assert!(why(&open, "other").contains("not a group page of this version"));
        if secure_dir::user() == 0 {
            std::os::unix::fs::chown(&open, Some(65534), Some(65534)).unwrap();
            assert!(why(&open, "a").contains("belongs to user 65534"));
        }
        let _ = std::fs::remove_file(&link);
        let _ = std::fs::remove_dir_all(&open);
    }
}
