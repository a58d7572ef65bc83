//! The group that shares a budget: this process's place in its page.
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
use crate::runtime::lock::Lock;
use crate::runtime::private_table;
use crate::runtime::secure_dir;
use crate::runtime::segment::{self, Segment};
use crate::runtime::{clock, log, system};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use vramtrace_format::DeviceId;
use vramtrace_format::group::{GROUP_DEVICES, GROUP_MEMBERS};
use vramtrace_format::member::Member;
use vramtrace_format::policy::GroupSpec;
use vramtrace_format::proc::Life;

/// Least time between two checks of the members: a program that retries in a loop must not be slowed down.
const LOOK_EVERY_NS: u64 = 20_000;
/// Least time between two readings of /proc.
const CLOSELY_EVERY_NS: u64 = 1_000_000;
/// Least time between two looks for the page's name.
const NAME_EVERY_NS: u64 = 1_000_000_000;

/// The least segment that can be made: by it others see that this process lives.
const SIGN_WORDS: usize = 512;

/// The group of a process.
pub struct Group {
    pub spec: GroupSpec,
    directory: String,
    /// Null before the process has joined. What it points to is never freed.
    joined: AtomicPtr<Joined>,
    /// It was reported that the process cannot join, or not again.
    is_failed: AtomicBool,
    /// When members were last checked, ns of the monotonic clock; when by /proc; and when the page's name.
    looked_ns: AtomicU64,
    closely_ns: AtomicU64,
    name_ns: AtomicU64,
    /// The pids of members that could not be checked at the last look, and a sum of those that were named.
    unchecked: Lock<Vec<u32>>,
    named: AtomicU64,
}

struct Joined {
    held: Held,
    slot: usize,
    me: Member,
}

impl Group {
    pub fn new(spec: GroupSpec) -> Group {
        Group::in_directory(vramtrace_format::memory::directory(secure_dir::user()), spec)
    }

    fn in_directory(directory: String, spec: GroupSpec) -> Group {
        Group {
            spec,
            directory,
            joined: AtomicPtr::new(null_mut()),
            is_failed: AtomicBool::new(false),
            looked_ns: AtomicU64::new(0),
            closely_ns: AtomicU64::new(0),
            name_ns: AtomicU64::new(0),
            unchecked: Lock::new(Vec::new()),
            named: AtomicU64::new(0),
        }
    }

    fn joined(&self) -> Option<&Joined> {
        // SAFETY: null, or never freed.
        unsafe { self.joined.load(Acquire).as_ref() }
    }

    fn say(&self, what: std::fmt::Arguments) {
        log::line(format_args!("VRAMTRACE_CAP_GROUP={}: {what}", self.spec.name));
    }

    /// Joins at the first need. One thread at a time. False: the group cannot be joined, which is reported once.
    pub fn join(&self) -> bool {
        let why = match self.joined() {
            Some(_) => return true,
            None => self.join_as(None).err(),
        };
        if let Some(why) = &why
            && !self.is_failed.swap(true, Relaxed)
        {
            self.say(format_args!("{why}; every request for GPU memory is refused"));
        }
        why.is_none()
    }

    /// Joins, also in place of `before`, with the same identity. `Err`: why not, and what would be right.
    fn join_as(&self, before: Option<&Joined>) -> Result<&Joined, String> {
        let enter = |table: &_| {
            let me = before.map_or_else(sign, |before| Ok(before.me))?;
            let mine = before.map(|before| before.held.page);
            let held = group_page::open(table, &self.directory, &self.spec.name, mine)?;
            let made = held.page.made;
            let kept = before.filter(|before| before.is_member() && before.held.page.made == made);
            let slot = kept.map(|before| before.slot);
            let free = || held.page.words.join(me, |member| life(me, member));
            let slot = slot.or_else(free).ok_or_else(|| {
                format!("the group has {GROUP_MEMBERS} processes, the maximum; use another name")
            })?;
            Ok(Joined { held, slot, me })
        };
        let joined = private_table::run(enter).unwrap_or_else(|no| Err(group_page::no_task(no)))?;
        self.name_ns.store(clock::real_mono_ns(), Relaxed);
        let joined = Box::into_raw(Box::new(joined));
        self.joined.store(joined, Release);
        // SAFETY: never freed.
        Ok(unsafe { &*joined })
    }

    /// Whether this process is to join again: it is no member any more, or the page's file is gone, by the last look.
    pub fn is_lost_as_seen(&self) -> bool {
        self.joined().is_some_and(|joined| {
            !joined.is_member() || is_due(&self.name_ns, NAME_EVERY_NS) && joined.is_lost()
        })
    }

    /// Joins again: the page that has the name now, or the same one. One thread at a time. Returns whether this process
    /// has another place now.
    pub fn join_again(&self) -> bool {
        // Another thread may have been faster.
        let Some(before) = self.joined().filter(|joined| joined.is_lost()) else { return false };
        let was_member = before.is_member();
        let (has_moved, what) = match self.join_as(Some(before)) {
            Ok(after) if after.held.page.made != before.held.page.made => {
                before.held.page.words.leave(before.slot, before.me);
                (true, "it had two pages; this process is in the older one now")
            }
            Ok(_) if was_member => (false, "its name in memory was removed, and is there again"),
            Ok(_) => (true, "this process was removed while it lives, and is a member again"),
            // Its requests are refused, if it is no member; else its limit holds as it is.
            Err(why) => {
                if !was_member && !self.is_failed.swap(true, Relaxed) {
                    self.say(format_args!(
                        "this process was removed while it lives, and cannot join again: {why}; every \
                         request for GPU memory is refused"
                    ));
                }
                return false;
            }
        };
        self.say(format_args!("{what}"));
        has_moved
    }

    /// This process's part in a device's budget. `None`: it can have none, which is reported.
    pub fn share(&self, device: DeviceId, facts: &DeviceFacts) -> Option<GroupShare> {
        let Joined { held, slot, me } = self.joined()?;
        let page = held.page.words;
        let Some(number) = page.device(&facts.uuid, device.0, facts.total_bytes) else {
            self.say(format_args!(
                "cuda:{}: the group has {GROUP_DEVICES} other devices, the maximum; every request on \
                 this one is refused; use another group name for some of them",
                device.0
            ));
            return None;
        };
        let cap = self.spec.cap.as_ref();
        let limit = cap.and_then(|cap| cap.limit(device.0.into(), &facts.uuid, facts.total_bytes));
        page.set_member_limit(*slot, number, limit);
        Some(GroupShare::new(page, *slot, *me, number))
    }

    /// Removes members that are dead.
    pub fn reap(&self) {
        let Some(Joined { held, me, .. }) = self.joined() else { return };
        if !is_due(&self.looked_ns, LOOK_EVERY_NS) {
            return;
        }
        let page = held.page.words;
        let mut are_all_clear = true;
        page.remove_dead_members(*me, |member| match is_attached(*me, member) {
            Some(true) => Life::Alive,
            Some(false) if !system::exists(member.pid) => Life::Dead,
            _ => {
                are_all_clear = false;
                Life::Unknown
            }
        });
        let mut unchecked = Vec::new();
        if !are_all_clear {
            if !is_due(&self.closely_ns, CLOSELY_EVERY_NS) {
                return;
            }
            // Without a task they are kept.
            let _ = private_table::run(|_| {
                page.remove_dead_members(*me, |member| {
                    let life = life(*me, member);
                    if life == Life::Unknown {
                        let _ = unchecked.try_push(member.pid);
                    }
                    life
                });
            });
        }
        *self.unchecked.lock() = unchecked;
    }

    /// The pids of members that could not be checked, if they are others than the last time.
    pub fn unchecked(&self) -> Vec<u32> {
        let pids = core::mem::take(&mut *self.unchecked.lock());
        let sum = pids.iter().fold(0, |sum: u64, pid| sum.rotate_left(7) ^ u64::from(*pid));
        match !pids.is_empty() && self.named.swap(sum, Relaxed) != sum {
            true => pids,
            false => Vec::new(),
        }
    }
}

impl Joined {
    fn is_member(&self) -> bool {
        self.held.page.words.is_member(self.slot, self.me)
    }

    fn is_lost(&self) -> bool {
        !self.is_member() || self.held.has_lost_its_name()
    }
}

/// This process, as a member: others see by a segment that it lives.
fn sign() -> Result<Member, String> {
    let made = Segment::<SIGN_WORDS>::create().map_err(group_page::no_shared_memory)?;
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
    let now = clock::real_mono_ns();
    let due = now.saturating_sub(last.load(Relaxed)) >= every;
    if due {
        last.store(now, Relaxed);
    }
    due
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
        let group = Group::in_directory(directory.into(), spec);
        let why = group.join_as(None).err().expect("it must be refused");
        assert!(why.contains(directory), "{why}");
        why
    }

    /// A name that no other test uses: a page is found by it.
    fn named(what: &str) -> GroupSpec {
        GroupSpec { name: format!("{what}-{}", std::process::id()), cap: None }
    }

    fn join(place: &str, spec: &GroupSpec) -> Group {
        let group = Group::in_directory(place.into(), spec.clone());
        assert!(group.join());
        group
    }

    #[test]
    fn who_has_ended_is_removed_and_who_cannot_be_told_is_kept_and_named() {
        let (place, spec) = (scratch("gone"), named("gone"));
        let group = join(&place, &spec);
        let Group { looked_ns, closely_ns, .. } = &group;
        let Joined { held, slot, me } = group.joined().unwrap();
        let page = held.page.words;
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
            let Joined { held, slot, me } = group.joined().unwrap();
            (held.page.words, *slot, *me, held.page.made)
        };
        let is_lost = |group: &Group| {
            group.name_ns.store(0, Relaxed);
            group.is_lost_as_seen()
        };
        let (page, slot, me, made) = parts(&group);
        assert!(!group.is_lost_as_seen() && !group.join_again());
        page.leave(slot, me);
        assert!(group.is_lost_as_seen() && group.join_again());
        assert!(parts(&group).3 == made && page.is_member(slot, me));
        std::fs::remove_dir_all(&place).unwrap();
        assert!(is_lost(&group));
        // Who joins finds it without its name.
        let other = join(&place, &spec);
        assert_eq!(parts(&other).3, made);
        assert!(!is_lost(&group), "its name is there again");
        std::fs::remove_dir_all(&place).unwrap();
        assert!(is_lost(&group) && !group.join_again() && !is_lost(&group));
        // A newer page gets the name: it is given up.
        let newer = join(&place, &named("newer"));
        let given_up = parts(&newer).0;
        assert!(parts(&newer).3 > made);
        let path = |spec: &GroupSpec| format!("{place}/group.{}", spec.name);
        std::fs::remove_dir_all(path(&spec)).unwrap();
        std::fs::rename(path(&named("newer")), path(&spec)).unwrap();
        assert!(is_lost(&group) && !group.join_again());
        assert_eq!(parts(&group).3, made);
        let newer = Group { spec: spec.clone(), ..newer };
        assert!(is_lost(&newer) && newer.join_again());
        assert_eq!(parts(&newer).3, made);
        assert_eq!((given_up.members().count(), page.members().count()), (0, 3));
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
        assert_eq!(group.joined().unwrap().held.page.words.members().count(), 1);
        group.reap();
        assert_eq!(group.joined().unwrap().held.page.words.members().count(), 1);

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
