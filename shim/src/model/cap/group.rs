//! The group that shares a budget: this process's place in its page.
//!
//! The page is found among this user's segments of shared memory, so that members with different environments and root
//! directories find the same page. A segment that another user made or could write is none.
//!
//! Before a refusal, members that are dead are removed: one system call for each member, at most every 20 us. A
//! member lives while the segment is attached that it made when it joined (`runtime/segment.rs`). Where that is gone and
//! the pid is still there, /proc tells whether the kernel is still taking back what the process had, at most every
//! millisecond. A member of which this cannot be told is kept, and named after the refusal.
//!
//! A member that was removed while it lives joins again at its next request, with what it holds.

use super::GroupShare;
use super::group_page;
use crate::model::devices::Device;
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use crate::runtime::private_table::{self, NoTask};
use crate::runtime::segment::{self, Segment};
use crate::runtime::{clock, log, system};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use vramtrace_format::DeviceId;
use vramtrace_format::group::{GROUP_DEVICES, GROUP_MEMBERS, GroupPage};
use vramtrace_format::member::Member;
use vramtrace_format::policy::GroupSpec;
use vramtrace_format::proc::Life;

/// Least time between two checks of the members: a program that retries in a loop must not be slowed down.
const LOOK_EVERY_NS: u64 = 20_000;
/// Least time between two readings of /proc.
const CLOSELY_EVERY_NS: u64 = 1_000_000;

/// The least segment that can be made: by it others see that this process lives.
const SIGN_WORDS: usize = 512;

/// The group of a process.
pub struct Group {
    pub spec: GroupSpec,
    /// Null before the process has joined. What it points to is never freed.
    joined: AtomicPtr<Joined>,
    /// It was reported that the process cannot join, or not again.
    is_failed: AtomicBool,
    /// When members were last checked, ns of the monotonic clock; and when by /proc.
    looked_ns: AtomicU64,
    closely_ns: AtomicU64,
    /// The pids of members that could not be checked at the last look, and a sum of those that were named.
    unchecked: Lock<Vec<u32>>,
    named: AtomicU64,
}

struct Joined {
    page: GroupPage<'static>,
    slot: usize,
    me: Member,
}

impl Group {
    pub fn new(spec: GroupSpec) -> Group {
        Group {
            spec,
            joined: AtomicPtr::new(null_mut()),
            is_failed: AtomicBool::new(false),
            looked_ns: AtomicU64::new(0),
            closely_ns: AtomicU64::new(0),
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
    fn join_as(&self, before: Option<&Joined>) -> Result<(), String> {
        let enter = |_: &_| {
            let (page, me) = match before {
                Some(before) => (before.page, before.me),
                None => (group_page::open(&self.spec.name)?, sign()?),
            };
            let slot = page.join(me, |member| life(me, member)).ok_or_else(|| {
                format!("the group has {GROUP_MEMBERS} processes, the maximum; use another name")
            })?;
            Ok(Joined { page, slot, me })
        };
        let joined = private_table::run(enter).unwrap_or_else(|NoTask { errno }| {
            Err(format!(
                "the system makes no thread to look at the members of a group (errno {errno}); raise \
                 RLIMIT_NPROC or pids.max, or allow clone (seccomp)"
            ))
        })?;
        self.joined.store(Box::into_raw(Box::new(joined)), Release);
        Ok(())
    }

    /// Whether this process was removed from the group.
    pub fn is_lost(&self) -> bool {
        self.joined().is_some_and(|joined| !joined.page.is_member(joined.slot, joined.me))
    }

    /// Joins again. One thread at a time. Returns whether this process has another place now.
    pub fn join_again(&self) -> bool {
        // Another thread may have been faster.
        if !self.is_lost() {
            return false;
        }
        let why = self.join_as(self.joined()).err();
        match &why {
            None => self.say(format_args!(
                "this process was removed while it lives, and is a member again"
            )),
            Some(why) if !self.is_failed.swap(true, Relaxed) => self.say(format_args!(
                "this process was removed while it lives, and cannot join again: {why}; every \
                 request for GPU memory is refused"
            )),
            Some(_) => {}
        }
        why.is_none()
    }

    /// This process's part in a device's budget. `None`: it can have none, which is reported.
    pub fn share(&self, device: DeviceId, facts: &Device) -> Option<GroupShare> {
        let Joined { page, slot, me } = self.joined()?;
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
        Some(GroupShare::new(*page, *slot, *me, number))
    }

    /// Removes members that are dead.
    pub fn reap(&self) {
        let Some(Joined { page, me, .. }) = self.joined() else { return };
        if !is_due(&self.looked_ns, LOOK_EVERY_NS) {
            return;
        }
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
        if !pids.is_empty() && self.named.swap(sum, Relaxed) != sum { pids } else { Vec::new() }
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
    use vramtrace_format::group::GROUP_WORDS;

    /// A group of a name that no other test uses.
    fn group(what: &str) -> Group {
        Group::new(GroupSpec { name: format!("{what}-{}", std::process::id()), cap: None })
    }

    fn page(group: &Group) -> GroupPage<'static> {
        assert!(group.join());
        group.joined().unwrap().page
    }

    #[test]
    fn threads_that_join_at_once_find_one_page() {
        for round in 0..20 {
            let name = format!("once-{round}");
            let barrier = std::sync::Barrier::new(4);
            let limits = std::thread::scope(|scope| {
                let join = || {
                    barrier.wait();
                    let page = page(&group(&name));
                    let device = page.device(&[1; 16], 0, 100).unwrap();
                    page.count(0, device).fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    barrier.wait();
                    page.sum(device)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(join)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(limits, [4; 4]);
        }
    }

    #[test]
    fn a_page_of_another_container_or_version_is_refused() {
        let make = |name: &str, namespace| {
            let memory = Segment::<GROUP_WORDS>::create().unwrap();
            GroupPage::make(memory.words, name, namespace).draw_turn(0);
            memory
        };
        for (what, namespace, why) in
            [("apart", 1, "another container"), ("old", 0, "another version")]
        {
            let group = group(what);
            let memory = make(&group.spec.name, namespace);
            if what == "old" {
                memory.words[0].store(u64::from_le_bytes(*b"vtgroup2"), Relaxed);
            }
            assert!(group.join_as(None).is_err_and(|found| found.contains(why)));
            memory.detach();
            assert!(group.join(), "nobody is in it any more");
        }
    }

    #[test]
    fn who_has_ended_is_removed_and_who_cannot_be_told_is_kept() {
        let group = group("gone");
        let page = page(&group);
        let Group { looked_ns, closely_ns, .. } = &group;
        let Joined { slot, me, .. } = group.joined().unwrap();
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
    }
}
