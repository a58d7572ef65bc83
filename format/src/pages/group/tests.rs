//! Tests of the page of a group. `models/` has those of what its members do at once.

use super::*;
use std::sync::atomic::AtomicBool;

/// As one store: Miri takes minutes for a page whose words are stored one after the other.
fn words() -> Box<[AtomicU64; GROUP_WORDS]> {
    Box::new([const { AtomicU64::new(0) }; GROUP_WORDS])
}

fn member(pid: u32) -> Member {
    Member { pid, segment: 1000 + pid as i32, made: 5 }
}

fn join(page: GroupPage, pid: u32) -> usize {
    page.join(member(pid), |_| Life::Alive).unwrap()
}

fn alive_if(yes: bool) -> Life {
    if yes { Life::Alive } else { Life::Dead }
}

const UUID: [u8; 16] = [7; 16];

#[test]
fn the_lowest_member_limit_holds_until_a_limit_is_set_by_command() {
    let words = words();
    let page = GroupPage::make(&words, "a", 9);
    assert!(page.is_of_namespace(9) && page.is_of_namespace(0) && !page.is_of_namespace(8));
    let (a, b) = (join(page, 1), join(page, 2));
    let device = page.device(&UUID, 3, 100).unwrap();
    assert_eq!(page.device(&UUID, 0, 100), Some(device), "the same by another ordinal");
    assert_ne!(page.device(&[8; 16], 0, 100), Some(device));
    assert_eq!(page.limit(device), None);
    page.set_member_limit(a, device, Some(80));
    page.set_member_limit(b, device, Some(60));
    page.count(a, device).store(10, SeqCst);
    page.count(b, device).store(20, SeqCst);
    assert_eq!((page.limit(device), page.sum(device)), (Some(60), 30));
    let (at, word) = limit_order(device, Some(90));
    words[at as usize / 8].store(word, SeqCst);
    let (_, shown) = page.devices().next().unwrap();
    assert_eq!((shown.uuid, shown.ordinal, shown.limit, shown.counted), (UUID, 3, Some(90), 30));
    let (at, word) = limit_order(device, None);
    words[at as usize / 8].store(word, SeqCst);
    assert_eq!(page.limit(device), None);
}

#[test]
fn an_exited_member_is_removed_once_with_its_count_and_limit() {
    let words = words();
    let page = GroupPage::make(&words, "a", 9);
    let device = page.device(&UUID, 0, 100).unwrap();
    let dead = join(page, 1);
    let me = join(page, 2);
    page.count(dead, device).store(70, SeqCst);
    page.set_member_limit(dead, device, Some(1));
    page.count(me, device).store(5, SeqCst);
    let alive = |member: Member| alive_if(member.pid == 2);
    assert!(page.remove_dead_members(member(2), alive));
    assert!(!page.remove_dead_members(member(2), alive));
    assert_eq!((page.sum(device), page.limit(device)), (5, None));
    // Its place is free, and a later one starts from nothing.
    assert_eq!(page.join(member(3), |_| Life::Alive), Some(dead));
    assert_eq!(page.sum(device), 5);
}

#[test]
fn a_group_has_at_most_128_devices() {
    let words = words();
    let page = GroupPage::make(&words, "a", 9);
    let uuid = |n: usize| std::array::from_fn(|at| if at == 0 { n as u8 } else { 1 });
    for n in 0..GROUP_DEVICES {
        assert_eq!(page.device(&uuid(n), n as u8, 100), Some(n));
    }
    assert_eq!(page.device(&uuid(200), 0, 100), None);
    assert_eq!(page.device(&uuid(127), 0, 100), Some(127));
    let slot = join(page, 1);
    page.count(slot, 127).store(70, SeqCst);
    assert_eq!((page.devices().count(), page.sum(127), page.sum(126)), (128, 70, 0));
    assert!(page.remove_dead_members(member(2), |_| Life::Dead));
    assert_eq!(page.sum(127), 0);
}

#[test]
fn a_page_has_its_name_and_one_of_another_version_is_recognised() {
    let (words, longest) = (words(), "x".repeat(64));
    assert!(GroupPage::look(&words).is_none());
    let page = GroupPage::make(&words, &longest, 9);
    assert_eq!((page.name(), page.turn(), page.devices().count()), (longest.clone(), 0, 0));
    let other = |magic: &[u8; 8], name: &str| {
        words[0].store(u64::from_le_bytes(*magic), SeqCst);
        is_of_other_version(&words, name)
    };
    assert!(other(b"vtgroup2", &longest) && other(b"vtgroup9", &longest));
    assert!(!other(b"vtgroup4", &longest), "this version");
    assert!(!other(b"vtgroup2", "x"), "another group");
    assert!(!other(b"vtlive\0\0", &longest));
}

#[test]
fn settled_omits_members_with_a_request_in_flight() {
    let words = words();
    let page = GroupPage::make(&words, "a", 9);
    let device = page.device(&UUID, 0, 100).unwrap();
    let [a, b, c] = [1, 2, 3].map(|pid| join(page, pid));
    for (slot, count) in [(a, 1), (b, 20), (c, 300)] {
        page.count(slot, device).store(count, SeqCst);
    }
    page.begin_request(a);
    assert_eq!(page.settled(a, device), Some(321));
    page.begin_request(b);
    assert_eq!(page.settled(a, device), Some(301), "some of the 20 may be taken back");
    page.end_request(b);
    page.begin_request(a);
    assert_eq!(page.settled(a, device), Some(320), "another of its threads has a request");
    // Killed while it asked: nobody waits for it any more.
    page.begin_request(c);
    page.end_request(a);
    assert!(page.remove_dead_members(member(1), |member| alive_if(member.pid != 3)));
    assert_eq!(page.settled(a, device), Some(21));
    assert_eq!(page.join(member(4), |_| Life::Alive), Some(c));
    assert_eq!(page.settled(a, device), Some(21), "the place comes without them");
}

#[test]
fn a_member_killed_while_emptying_a_slot_is_replaced() {
    let words = words();
    let page = GroupPage::make(&words, "a", 9);
    let device = page.device(&UUID, 0, 100).unwrap();
    let dead = join(page, 1);
    join(page, 2);
    page.count(dead, device).store(70, SeqCst);
    page.who(dead).store(member(7).to_word() | EMPTYING, SeqCst);
    // Process 7 is emptying the slot.
    assert!(!page.remove_dead_members(member(2), |_| Life::Alive));
    assert!(page.remove_dead_members(member(2), |member| alive_if(member.pid == 2)));
    assert_eq!(page.sum(device), 0);
}

#[test]
fn whom_nobody_can_check_stays() {
    let words = words();
    let page = GroupPage::make(&words, "a", 0);
    assert!(page.is_of_namespace(9), "the first did not know its namespace");
    page.join(member(1), |_| Life::Unknown).unwrap();
    page.join(member(2), |_| Life::Unknown).unwrap();
    assert!(!page.remove_dead_members(member(2), |_| Life::Unknown));
    assert_eq!(page.members().count(), 2);
}

#[test]
fn a_new_run_clears_the_limits_set_in_the_last() {
    let words = words();
    let page = GroupPage::make(&words, "a", 9);
    let device = page.device(&UUID, 0, 100).unwrap();
    join(page, 1);
    let (at, word) = limit_order(device, Some(90));
    words[at as usize / 8].store(word, SeqCst);
    join(page, 2);
    assert_eq!(page.limit(device), Some(90));
    page.join(member(3), |member| alive_if(member.pid == 3)).unwrap();
    assert_eq!(page.limit(device), None);
}

#[test]
#[cfg_attr(miri, ignore = "256 members that look at each other take minutes")]
fn a_full_group_accepts_a_member_only_after_one_has_exited() {
    let words = words();
    let page = GroupPage::make(&words, "a", 9);
    for pid in 1..=GROUP_MEMBERS as u32 {
        assert!(page.join(member(pid), |_| Life::Alive).is_some());
    }
    assert_eq!(page.join(member(999), |_| Life::Alive), None);
    assert!(page.join(member(999), |member| alive_if(member.pid != 77)).is_some());
    assert!(page.members().all(|member| member.pid != 77));
}

#[test]
fn threads_remove_each_exited_member_once() {
    let (times, dead) = if cfg!(miri) { (1, 8) } else { (50, 64) };
    for _ in 0..times {
        let words = words();
        let page = GroupPage::make(&words, "a", 9);
        for pid in 1..=dead {
            join(page, pid);
        }
        let taken = AtomicU64::new(0);
        let go = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for pid in 100..104 {
                let (taken, go) = (&taken, &go);
                scope.spawn(move || {
                    while !go.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                    let slot =
                        page.join(member(pid), |member| alive_if(member.pid >= 100)).unwrap();
                    taken.fetch_add(slot as u64 + 1, SeqCst);
                });
            }
            go.store(true, SeqCst);
        });
        let mut left: Vec<u32> = page.members().map(|member| member.pid).collect();
        left.sort_unstable();
        assert_eq!(left, [100, 101, 102, 103]);
    }
}
