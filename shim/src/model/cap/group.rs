//! The group that shares a budget: its page, and this process's place in it.
//!
//! The page is always found in `/dev/shm/vramtrace-UID`, so that members with different environments
//! find the same page. A directory or page that another user could write is refused, since that user
//! could change the cap.
//!
//! Before a refusal, members whose process has exited are removed. Missing pids are looked for at most
//! every 20 us; zombies, reused pids and other programs after an exec at most every millisecond.

use super::group_page;
use super::{DeviceFacts, GroupShare};
use crate::runtime::private_table::{self, NoTask};
use crate::runtime::secure_dir::{self, Wrong};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vramtrace_format::DeviceId;
use vramtrace_format::capspec::CapSpec;
use vramtrace_format::group::{GROUP_DEVICES, GROUP_MEMBERS, GroupPage};
use vramtrace_format::member::Member;
use vramtrace_format::policy::GroupSpec;

/// The process's membership, if it is in a group.
pub struct Group(Option<Joined>);

struct Joined {
    page: GroupPage<'static>,
    slot: usize,
    me: Member,
    cap: Option<CapSpec>,
    /// When members were last checked, ns of the monotonic clock; and when last checked closely.
    looked_ns: AtomicU64,
    closely_ns: AtomicU64,
}

/// Least time between two checks for missing pids, which cost a system call for each member: a program
/// that retries in a loop must not be slowed down.
const LOOK_EVERY_NS: u64 = 20_000;
/// Least time between two close checks, which read a file for each member. Only these find zombies and
/// reused pids.
const CLOSELY_EVERY_NS: u64 = 1_000_000;

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
    /// Of an earlier version, and this process still runs.
    EarlierVersion {
        path: String,
        pid: u32,
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
    NoProc,
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
            Why::EarlierVersion { path, pid } => write!(
                f,
                "{path} is a group of an earlier version of this library, and process {pid} is a \
                 member; use another name, or start all its processes with one version"
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
            Why::NoProc => write!(
                f,
                "/proc of this pid namespace is needed to find out which members still run; mount it"
            ),
        }
    }
}

impl Group {
    pub const fn none() -> Group {
        Group(None)
    }

    pub fn join(spec: &GroupSpec) -> Result<Group, Why> {
        let user = secure_dir::user();
        Group::join_in(&vramtrace_format::memory::directory(user), spec)
    }

    fn join_in(directory: &str, spec: &GroupSpec) -> Result<Group, Why> {
        let joined = private_table::run(|_| Group::enter(directory, spec));
        let (page, slot, me) =
            joined.unwrap_or_else(|NoTask { errno }| Err(Why::NoTask { errno }))?;
        let (looked_ns, closely_ns) = Default::default();
        let cap = spec.cap.clone();
        Ok(Group(Some(Joined { page, slot, me, cap, looked_ns, closely_ns })))
    }

    /// In a task.
    #[allow(clippy::disallowed_methods)]
    fn enter(
        directory: &str,
        spec: &GroupSpec,
    ) -> Result<(GroupPage<'static>, usize, Member), Why> {
        let me = Member::of_this_process().ok_or(Why::NoProc)?;
        let page = group_page::open(directory, &spec.name)?;
        let slot = page.join(me, |member| member.is_alive()).ok_or(Why::Full)?;
        Ok((page, slot, me))
    }

    /// This process's part in a device's budget. `None`: it is in no group.
    pub fn share(&self, device: DeviceId, facts: &DeviceFacts) -> Result<Option<GroupShare>, Why> {
        let Some(Joined { page, slot, cap, .. }) = &self.0 else { return Ok(None) };
        let number = page.device(&facts.uuid, device.0, facts.total_bytes).ok_or(Why::Devices)?;
        let limit =
            cap.as_ref().and_then(|cap| cap.limit(device.0.into(), &facts.uuid, facts.total_bytes));
        page.set_member_limit(*slot, number, limit);
        Ok(Some(GroupShare::new(*page, *slot, number)))
    }

    #[allow(clippy::disallowed_methods)] // in a task
    pub fn reap(&self) {
        let Some(Joined { page, me, looked_ns, closely_ns, .. }) = &self.0 else { return };
        let now = monotonic_ns();
        let is_due = |last: &AtomicU64, every| {
            let due = now.saturating_sub(last.load(Relaxed)) >= every;
            if due {
                last.store(now, Relaxed);
            }
            due
        };
        if is_due(closely_ns, CLOSELY_EVERY_NS) {
            // Without a task they are looked for by their pids alone.
            let closely = || page.remove_dead_members(*me, |member| member.is_alive());
            if private_table::run(|_| closely()).is_err() {
                page.remove_dead_members(*me, |member| pid_is_taken(member.pid));
            }
        } else if is_due(looked_ns, LOOK_EVERY_NS) {
            page.remove_dead_members(*me, |member| pid_is_taken(member.pid));
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct of our own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether a process, or a zombie, has this pid.
fn pid_is_taken(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    // SAFETY: takes no pointers; signal 0 only checks that the pid exists.
    let there = unsafe { libc::kill(pid, 0) } == 0;
    there || secure_dir::errno() != Wrong::Errno(libc::ESRCH)
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
        let why = Group::join_in(directory, &spec).err().expect("it must be refused").to_string();
        assert!(why.contains(directory), "{why}");
        why
    }

    #[test]
    fn who_has_ended_is_found_at_once_and_who_is_not_waited_for_at_the_next_close_look() {
        let place = scratch("gone");
        let spec = GroupSpec { name: "a".into(), cap: None };
        let group = Group::join_in(&place, &spec).ok().unwrap();
        let Joined { page, closely_ns, .. } = group.0.as_ref().unwrap();
        let member = |pid| Member { pid, start_ticks: 1, image: 0 };
        let count = || page.members().count();
        closely_ns.store(u64::MAX, Relaxed);
        let ended = (1 << 22) - 1;
        page.join(member(ended), |_| true).unwrap();
        assert_eq!(count(), 2);
        group.reap();
        assert_eq!(count(), 1);
        // This process's pid, of an earlier start.
        page.join(member(std::process::id()), |_| true).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        group.reap();
        assert_eq!(count(), 2, "no close look was due");
        closely_ns.store(0, Relaxed);
        group.reap();
        assert_eq!(count(), 1);
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
        let spec = GroupSpec { name: "good".into(), cap: None };
        let group = Group::join_in(&open, &spec).ok().unwrap();
        assert_eq!(group.0.as_ref().unwrap().page.members().count(), 1);
        group.reap();
        assert_eq!(group.0.as_ref().unwrap().page.members().count(), 1);

        symlink(format!("{open}/group.good"), format!("{open}/group.linked")).unwrap();
        assert!(why(&open, "linked").contains("link"));
        std::fs::write(format!("{open}/group.once"), "").unwrap();
        let closed = || PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(format!("{open}/group.once"), closed()).unwrap();
        std::fs::hard_link(format!("{open}/group.once"), format!("{open}/group.twice")).unwrap();
        assert!(why(&open, "twice").contains("single hard link"));
        std::fs::create_dir(format!("{open}/group.entered")).unwrap();
        let wide = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(format!("{open}/group.entered"), wide).unwrap();
        assert!(why(&open, "entered").contains("mode 755"));
        std::fs::write(format!("{open}/group.wide"), "").unwrap();
        let wide = PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(format!("{open}/group.wide"), wide).unwrap();
        assert!(why(&open, "wide").contains("mode 644"));
        std::fs::write(format!("{open}/group.other"), [1; 100]).unwrap();
        std::fs::set_permissions(format!("{open}/group.other"), closed()).unwrap();
        assert!(why(&open, "other").contains("not a group page of this version"));
        if secure_dir::user() == 0 {
            std::os::unix::fs::chown(&open, Some(65534), Some(65534)).unwrap();
            assert!(why(&open, "a").contains("belongs to user 65534"));
        }
        let _ = std::fs::remove_file(&link);
        let _ = std::fs::remove_dir_all(&open);
    }
}
