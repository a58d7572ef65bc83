//! The group that shares a budget: its page, and this process's place in it.
//!
//! The page lies in `/dev/shm/vramtrace-UID`, whatever the environment says: members with another
//! environment must not find another page. What others could have put there is refused: the cap
//! would be theirs to change.

use super::{DeviceFacts, Share};
use crate::private::{self, Wrong};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vramtrace_format::DeviceId;
use vramtrace_format::capspec::CapSpec;
use vramtrace_format::group::{GROUP_BYTES, GROUP_WORDS, GroupPage, Unusable};
use vramtrace_format::member::Member;
use vramtrace_format::policy::GroupSpec;

/// The process's place, where it is in a group.
pub struct Group(Option<Joined>);

struct Joined {
    page: GroupPage<'static>,
    slot: usize,
    me: Member,
    cap: Option<CapSpec>,
    /// When members were looked at last, and closely: ns of the monotonic clock.
    looked_ns: AtomicU64,
    closely_ns: AtomicU64,
}

/// Between two looks at who is gone, one system call a member: a program that is refused and asks
/// again and again is not to be slowed down.
const LOOK_EVERY_NS: u64 = 20_000;
/// Between two close looks, which read a file a member. Only they find who is not waited for by its
/// parent (a zombie), and whose pid is another process's by now.
const CLOSELY_EVERY_NS: u64 = 1_000_000;

/// Why a group cannot be joined; complete with what would be right.
#[derive(Debug, PartialEq, Eq)]
pub enum Why {
    Directory { path: String, what: Wrong },
    File { path: String, what: Wrong },
    Page { path: String, why: Unusable },
    Full,
    NoProc,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Why::Directory { path, what } => write!(f, "the directory {path} {what}"),
            Why::File { path, what } => write!(f, "the file {path} {what}"),
            Why::Page { path, why: Unusable::NotAGroup } => {
                write!(
                    f,
                    "the file {path} is no group of this version; remove it when nobody uses it"
                )
            }
            Why::Page { path, why: Unusable::OtherNamespace } => write!(
                f,
                "the file {path} is a group of another container, whose processes cannot be seen \
                 from here; use another name, or remove it when nobody uses it"
            ),
            Why::Full => write!(f, "the group has 256 living processes; use another name"),
            Why::NoProc => write!(f, "/proc is needed to tell who lives; mount it"),
        }
    }
}

impl Group {
    pub const fn none() -> Group {
        Group(None)
    }

    pub fn join(spec: &GroupSpec) -> Result<Group, Why> {
        // SAFETY: always succeeds.
        let user = unsafe { libc::geteuid() };
        Group::join_in(&format!("/dev/shm/vramtrace-{user}"), spec)
    }

    fn join_in(directory: &str, spec: &GroupSpec) -> Result<Group, Why> {
        let me = Member::of_this_process().ok_or(Why::NoProc)?;
        let name = format!("group.{}", spec.name);
        let path = || format!("{directory}/{name}");
        let descriptor = private::directory(directory.as_bytes())
            .map_err(|what| Why::Directory { path: directory.into(), what })?;
        let words = map(descriptor, &name);
        // SAFETY: a descriptor of our own.
        unsafe { libc::close(descriptor) };
        let words = words.map_err(|what| Why::File { path: path(), what })?;
        let page = GroupPage::open(words, Member::namespace())
            .map_err(|why| Why::Page { path: path(), why })?;
        let slot = page.join(me, |member| member.is_alive()).ok_or(Why::Full)?;
        let (looked_ns, closely_ns) = Default::default();
        let cap = spec.cap.clone();
        Ok(Group(Some(Joined { page, slot, me, cap, looked_ns, closely_ns })))
    }

    /// This process's part in a device's budget. `None`: it is in no group, or the group knows 16
    /// other devices.
    pub fn share(&self, device: DeviceId, facts: &DeviceFacts) -> Option<Share> {
        let Joined { page, slot, cap, .. } = self.0.as_ref()?;
        let number = page.device(&facts.uuid, device.0, facts.total_bytes)?;
        let limit =
            cap.as_ref().and_then(|cap| cap.limit(device.0.into(), &facts.uuid, facts.total_bytes));
        page.bring_limit(*slot, number, limit);
        Some(Share::new(*page, *slot, number))
    }

    pub fn take_out_dead(&self) {
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
            page.take_out_dead(*me, |member| member.is_alive());
        } else if is_due(looked_ns, LOOK_EVERY_NS) {
            page.take_out_dead(*me, |member| pid_is_taken(member.pid));
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct of our own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// By some process, or by what is left of one.
fn pid_is_taken(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    // SAFETY: signal 0 is none.
    let there = unsafe { libc::kill(pid, 0) } == 0;
    there || private::errno() != Wrong::Errno(libc::ESRCH)
}

/// The group's page, made if need be; mapped for good.
fn map(directory: i32, name: &str) -> Result<&'static [AtomicU64; GROUP_WORDS], Wrong> {
    let name = private::c_string(name.as_bytes())?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: files and mappings of our own. The blocks are there before the first store, the file
    // is never made shorter, and the mapping is never undone.
    unsafe {
        let descriptor = libc::openat(directory, name.as_ptr(), flags, 0o600);
        if descriptor < 0 {
            return Err(private::not_opened(directory, &name));
        }
        let mapped = private::judged(descriptor).and_then(|stat| {
            if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_nlink != 1 {
                return Err(Wrong::NotPlain);
            }
            if libc::fallocate(descriptor, 0, 0, GROUP_BYTES as libc::off_t) != 0 {
                return Err(private::errno());
            }
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let null = std::ptr::null_mut();
            match libc::mmap(null, GROUP_BYTES, access, libc::MAP_SHARED, descriptor, 0) {
                libc::MAP_FAILED => Err(private::errno()),
                at => Ok(&*at.cast::<[AtomicU64; GROUP_WORDS]>()),
            }
        });
        libc::close(descriptor);
        mapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
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
    fn who_is_gone_is_found_at_once_and_who_is_not_waited_for_at_the_next_close_look() {
        let place = scratch("gone");
        let spec = GroupSpec { name: "a".into(), cap: None };
        let group = Group::join_in(&place, &spec).ok().unwrap();
        let Joined { page, closely_ns, .. } = group.0.as_ref().unwrap();
        let member = |pid| Member { pid, start_ticks: 1, image: 0 };
        let count = || page.members().count();
        closely_ns.store(u64::MAX, Relaxed);
        let gone = (1 << 22) - 1;
        page.join(member(gone), |_| true).unwrap();
        assert_eq!(count(), 2);
        group.take_out_dead();
        assert_eq!(count(), 1);
        // This process's pid, of an earlier start.
        page.join(member(std::process::id()), |_| true).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        group.take_out_dead();
        assert_eq!(count(), 2, "no close look was due");
        closely_ns.store(0, Relaxed);
        group.take_out_dead();
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
        group.take_out_dead();
        assert_eq!(group.0.as_ref().unwrap().page.members().count(), 1);

        symlink("good", "placeholder").ok();
        let _ = std::fs::remove_file("placeholder");
        symlink(format!("{open}/group.good"), format!("{open}/group.linked")).unwrap();
        assert!(why(&open, "linked").contains("link"));
        std::fs::hard_link(format!("{open}/group.good"), format!("{open}/group.twice")).unwrap();
        assert!(why(&open, "twice").contains("one name"));
        std::fs::write(format!("{open}/group.wide"), "").unwrap();
        let wide = PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(format!("{open}/group.wide"), wide).unwrap();
        assert!(why(&open, "wide").contains("mode 644"));
        std::fs::write(format!("{open}/group.other"), [1; 100]).unwrap();
        let closed = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(format!("{open}/group.other"), closed).unwrap();
        assert!(why(&open, "other").contains("no group of this version"));
        // SAFETY: always succeeds.
        if unsafe { libc::geteuid() } == 0 {
            let name = CString::new(open.as_str()).unwrap();
            assert_eq!(unsafe { libc::chown(name.as_ptr(), 65534, 65534) }, 0);
            assert!(why(&open, "a").contains("belongs to user 65534"));
        }
        let _ = std::fs::remove_file(&link);
        let _ = std::fs::remove_dir_all(&open);
    }
}
