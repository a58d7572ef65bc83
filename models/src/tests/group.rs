//! The group page: members that request memory, join and die at the same time.

use loom::thread;

use super::few_switches;
use crate::group::{GROUP_WORDS, GroupPage, limit_order};
use crate::member::Member;
use crate::proc::Life;
use crate::model::cap::counting::{Refusal, add_saturating, take_within};
use crate::model::cap::group_share::GroupShare;
use crate::runtime::atomics::{AtomicU64, Ordering::SeqCst};

const LIMIT: u64 = 10;
const UUID: [u8; 16] = [7; 16];

type Words = &'static [AtomicU64; GROUP_WORDS];

fn words() -> Words {
    let words: Vec<AtomicU64> = (0..GROUP_WORDS).map(|_| AtomicU64::of_group(0)).collect();
    Box::leak(words.into_boxed_slice().try_into().unwrap())
}

fn page(words: Words) -> GroupPage<'static> {
    GroupPage::make(words, "a", 1)
}

fn member(pid: u32) -> Member {
    Member { pid, segment: 1, made: 5 }
}

/// A page with these members, which share one device.
fn page_of(members: &[u32]) -> (Words, GroupPage<'static>) {
    let words = words();
    let page = page(words);
    assert_eq!(page.device(&UUID, 0, 1 << 30), Some(0));
    for pid in members {
        let slot = page.join(member(*pid), |_| Life::Alive).unwrap();
        page.set_member_limit(slot, 0, Some(LIMIT));
    }
    (words, page)
}

/// One request of a member, as `Budget::try_take` makes it.
fn ask(page: GroupPage<'static>, slot: usize, bytes: u64) -> Result<(), Refusal> {
    let share = GroupShare::new(page, slot, member(slot as u32 + 1), 0);
    let over = |counted| Refusal { counted, limit: u64::MAX, of_group: false };
    let add = || take_within(share.count(), bytes, u64::MAX).map_err(over);
    let take_back = || {
        add_saturating(share.count(), -(bytes as i64), SeqCst);
    };
    share.take(bytes, add, take_back)
}

#[test]
fn members_that_ask_at_once_never_get_more_than_the_limit() {
    few_switches(2, || {
        let (_, page) = page_of(&[1, 2]);
        let other = thread::spawn(move || if ask(page, 0, 6).is_ok() { 6 } else { 0 });
        let own = if ask(page, 1, 7).is_ok() { 7 } else { 0 };
        let granted = own + other.join().unwrap();
        assert!(granted <= LIMIT, "{granted}");
        assert_eq!(page.sum(0), granted);
        page.begin_request(0);
        assert_eq!(page.settled(0, 0), Some(granted), "no request is left under way");
    });
}

/// The member in slot 1 makes a request and takes it back: its count is never final in between.
#[track_caller]
fn what_is_taken_back_is_never_settled(asked_before: bool) {
    few_switches(3, move || {
        let (_, page) = page_of(&[1, 2]);
        if asked_before {
            page.begin_request(1);
            page.end_request(1);
        }
        page.begin_request(0);
        let other = thread::spawn(move || {
            page.begin_request(1);
            take_within(page.count(1, 0), 7, u64::MAX).unwrap();
            add_saturating(page.count(1, 0), -7, SeqCst);
            page.end_request(1);
        });
        let settled = page.settled(0, 0);
        assert!(matches!(settled, None | Some(0)), "{settled:?}");
        other.join().unwrap();
    });
}

#[test]
fn what_a_first_request_takes_back_is_never_settled() {
    what_is_taken_back_is_never_settled(false);
}

#[test]
fn what_a_later_request_takes_back_is_never_settled() {
    what_is_taken_back_is_never_settled(true);
}

/// The same for a complete request, which is refused: member 0 has 5 of 10, and member 1 requests 7.
#[test]
fn what_a_refused_request_takes_back_is_never_settled() {
    few_switches(2, || {
        let (_, page) = page_of(&[1, 2]);
        page.count(0, 0).store(5, SeqCst);
        page.begin_request(0);
        let other = thread::spawn(move || assert!(ask(page, 1, 7).is_err()));
        let settled = page.settled(0, 0);
        assert!(matches!(settled, None | Some(5)), "{settled:?}");
        other.join().unwrap();
    });
}

/// Member 1 is dead. Member 2 removes it while member 3 takes over its slot: the count of member 3 stays.
#[track_caller]
fn a_dead_members_place(who_empties: Option<u32>) {
    few_switches(3, move || {
        let (words, page) = page_of(&[1, 2]);
        page.count(0, 0).store(7, SeqCst);
        if let Some(pid) = who_empties {
            // It died after it had marked the slot.
            let marked = member(pid).to_word() | 1 << 63;
            let who = words.iter().find(|word| word.load(SeqCst) == member(1).to_word());
            who.unwrap().store(marked, SeqCst);
        }
        let alive = |member: Member| match member.pid {
            2 | 3 => Life::Alive,
            _ => Life::Dead,
        };
        let other = thread::spawn(move || page.remove_dead_members(member(2), alive));
        let slot = page.join(member(3), alive);
        let twos = page.members().filter(|member| member.pid == 2).count();
        assert_eq!(twos, 1, "who empties a place is not its member");
        if let Some(slot) = slot {
            assert_eq!(slot, 0, "the other place is a living member's");
            page.set_member_limit(slot, 0, Some(LIMIT));
            take_within(page.count(slot, 0), 5, u64::MAX).unwrap();
        }
        other.join().unwrap();
        let mut pids: Vec<u32> = page.members().map(|member| member.pid).collect();
        pids.sort_unstable();
        match slot {
            Some(_) => assert_eq!((page.sum(0), &*pids), (5, &[2, 3][..])),
            None => assert_eq!((page.sum(0), &*pids), (0, &[2][..]), "2 was about to empty it"),
        }
    });
}

#[test]
fn a_dead_members_place_is_emptied_once_and_is_then_the_next_ones() {
    a_dead_members_place(None);
}

#[test]
fn a_place_is_emptied_where_the_one_who_emptied_it_died() {
    a_dead_members_place(Some(4));
}

/// The page has an order of an earlier run. The first members of the next run join at the same time.
#[test]
fn members_that_come_at_once_forget_what_was_ordered_in_the_last_run() {
    few_switches(3, || {
        let (words, page) = page_of(&[]);
        let (at, word) = limit_order(0, Some(3));
        words[at as usize / 8].store(word, SeqCst);
        let join = move |pid| {
            let slot = page.join(member(pid), |_| Life::Alive).unwrap();
            page.set_member_limit(slot, 0, Some(LIMIT));
        };
        let other = thread::spawn(move || join(1));
        join(2);
        other.join().unwrap();
        assert_eq!((page.limit(0), page.members().count()), (Some(LIMIT), 2));
    });
}

/// `vramtrace cap` writes an order when it sees a member. It is not mistaken for an order of an earlier run.
#[test]
fn what_is_ordered_when_a_member_is_seen_stays() {
    few_switches(3, || {
        let (words, page) = page_of(&[]);
        let (at, old) = limit_order(0, Some(3));
        let word = &words[at as usize / 8];
        word.store(old, SeqCst);
        let first = thread::spawn(move || page.join(member(1), |_| Life::Alive).unwrap());
        let is_seen = page.members().next().is_some();
        if is_seen {
            word.store(limit_order(0, Some(4)).1, SeqCst);
        }
        first.join().unwrap();
        assert_eq!(page.limit(0), is_seen.then_some(4));
    });
}

/// The same while another member joins, which may not have seen the order yet.
#[test]
fn what_is_ordered_while_another_member_joins_stays() {
    few_switches(3, || {
        let (words, page) = page_of(&[]);
        let (at, old) = limit_order(0, Some(3));
        let word = &words[at as usize / 8];
        word.store(old, SeqCst);
        let other = thread::spawn(move || page.join(member(1), |_| Life::Alive).unwrap());
        page.join(member(2), |_| Life::Alive).unwrap();
        // Loom could order an exchange of the other thread before a plain store that precedes it.
        word.swap(limit_order(0, Some(4)).1, SeqCst);
        other.join().unwrap();
        assert_eq!(page.limit(0), Some(4));
    });
}

/// Two processes open a fresh page and name their devices: the same device has one number, different
/// ones have different numbers.
#[test]
fn devices_that_are_named_at_once_have_one_number_each() {
    few_switches(3, || {
        let words = words();
        let name = move |uuids: [u8; 2]| {
            let page = page(words);
            uuids.map(|byte| page.device(&[byte; 16], byte, 100).unwrap())
        };
        let other = thread::spawn(move || name([7, 8]));
        let [eight, seven] = name([8, 7]);
        assert_eq!(other.join().unwrap(), [seven, eight]);
        assert_ne!(seven, eight);
        let uuids = page(words).devices().map(|(_, device)| device.uuid[0]).collect::<Vec<_>>();
        assert_eq!((uuids[seven], uuids[eight]), (7, 8));
    });
}
