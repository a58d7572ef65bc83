//! The models.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::runtime::atomics::AtomicU64 as Count;

use crate::counting::{Attempt, add_in_order, add_then_look, take_within};
use crate::room::{Place, Room, Seal};
use crate::runtime::lock::Lock;

/// Two threads in the section at once would be a data race on the cell, which loom reports.
#[test]
fn a_lock_lets_one_in() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(loom::cell::UnsafeCell::new(0)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || {
                    let held = lock.lock();
                    // SAFETY: nobody else is in the section: that is what is checked.
                    held.with_mut(|value| unsafe { *value += 1 });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: as above.
        assert_eq!(lock.lock().with(|value| unsafe { *value }), 2);
    });
}

#[test]
fn a_lock_that_is_held_is_not_tried_with_success() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(loom::cell::UnsafeCell::new(0)));
        let other = {
            let lock = lock.clone();
            thread::spawn(move || {
                if let Some(held) = lock.try_lock() {
                    // SAFETY: nobody else is in the section: that is what is checked.
                    held.with_mut(|value| unsafe { *value += 1 });
                }
            })
        };
        {
            let held = lock.lock();
            // SAFETY: as above.
            held.with_mut(|value| unsafe { *value += 1 });
        }
        other.join().unwrap();
    });
}

#[test]
fn a_budget_is_never_passed_and_never_lost() {
    const LIMIT: u64 = 10;
    loom::model(|| {
        let count = Arc::new(Count::new(0));
        let threads: Vec<_> = [6u64, 5]
            .into_iter()
            .map(|bytes| {
                let count = count.clone();
                thread::spawn(move || {
                    let taken = take_within(&count, bytes, LIMIT).is_ok();
                    assert!(count.load(Ordering::SeqCst) <= LIMIT);
                    if taken {
                        assert!(add_in_order(&count, -(bytes as i64)));
                    }
                    taken
                })
            })
            .collect();
        let taken = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|t| *t).count();
        assert!(taken >= 1, "one of two that do not fit together gets its own");
        assert_eq!(count.load(Ordering::SeqCst), 0);
    });
}

/// Two members of a group ask at once for what only one of them can have.
#[test]
fn a_group_grants_no_byte_twice() {
    const LIMIT: u64 = 10;
    loom::model(|| {
        let counts = Arc::new([Count::new(0), Count::new(0)]);
        let threads: Vec<_> = [(0, 6u64), (1, 7)]
            .into_iter()
            .map(|(member, bytes)| {
                let counts = counts.clone();
                thread::spawn(move || {
                    let own = &counts[member];
                    let sum = || counts.iter().map(|count| count.load(Ordering::SeqCst)).sum();
                    let taken = add_then_look(
                        || take_within(own, bytes, u64::MAX),
                        || Some(LIMIT),
                        sum,
                        || {
                            add_in_order(own, -(bytes as i64));
                        },
                    );
                    match taken {
                        Ok(Attempt::Granted) => bytes,
                        Ok(Attempt::TooMuch { sum, limit }) => {
                            assert!(sum > limit);
                            0
                        }
                        Err(_) => unreachable!("no limit of its own"),
                    }
                })
            })
            .collect();
        let granted: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(granted <= LIMIT, "{granted}");
        let counted: u64 = counts.iter().map(|count| count.load(Ordering::SeqCst)).sum();
        assert_eq!(counted, granted);
    });
}

/// A record whose words all carry its number.
struct Numbered(u64, Vec<u64>);

impl Numbered {
    fn new(number: u64, len: usize) -> Numbered {
        Numbered(number, vec![number; len - 1])
    }
}

impl Seal for Numbered {
    fn head(&self, _: usize) -> u64 {
        DONE | (1 + self.1.len() as u64) << 8 | self.0
    }

    fn unfinished(&self) -> u64 {
        (1 + self.1.len() as u64) << 8 | self.0
    }

    fn rest(&self) -> &[u64] {
        &self.1
    }
}

const DONE: u64 = 1 << 32;
const PADDING: u64 = 0xff;

fn padding(_: usize, len: usize) -> u64 {
    DONE | (len as u64) << 8 | PADDING
}

/// The numbers of the records that stand in a window, each whole. Where `complete`, its words are
/// covered by records and padding without a gap.
fn read(words: &[AtomicU64], complete: bool) -> Vec<u64> {
    let word = |at: usize| u64::from_le(words[at].load(Ordering::Acquire));
    let (mut at, mut numbers) = (8, Vec::new());
    while at < words.len() {
        let head = word(at);
        let len = (head >> 8 & 0xff) as usize;
        if head & DONE == 0 {
            assert!(!complete, "a complete window has no gap at {at}");
            break;
        }
        if head & 0xff != PADDING {
            (1..len).for_each(|next| assert_eq!(word(at + next), head & 0xff, "torn record"));
            numbers.push(head & 0xff);
        }
        at += len;
    }
    numbers
}

/// Every order with at most three switches away from a thread that could go on: of all orders there
/// are too many.
fn few_switches(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Two threads append, one of them across the line; the window is read meanwhile and when it is closed.
#[test]
fn records_are_whole_and_a_complete_window_has_no_gap() {
    few_switches(|| {
        // A header of 8 words, and 16 more: two lines of 12 words.
        let words: &'static [AtomicU64] =
            Box::leak((0..24).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().into_boxed_slice());
        let room: &'static Room = Box::leak(Box::new(Room::behind_header(words)));
        let append = |number: u64, len: usize| {
            thread::spawn(move || room.put(&Numbered::new(number, len), padding))
        };
        let (first, second) = (append(1, 3), append(2, 3));
        // What is read at any moment is whole.
        read(words, false);
        if room.is_complete() {
            read(words, true);
        }
        let places: Vec<Option<Place>> = [first, second].map(|t| t.join().unwrap()).to_vec();
        assert!(places.iter().all(Option::is_some));
        room.close(padding);
        assert!(room.is_complete() && room.published() == 8 * words.len());
        let mut numbers = read(words, true);
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2]);
        assert_eq!(room.put(&Numbered::new(3, 2), padding), None);
    });
}

/// One closes the window while another appends: what is appended stands in it, or learns that it is
/// full; and exactly one record passes the middle at most.
#[test]
fn closing_while_appending() {
    loom::model(|| {
        let words: &'static [AtomicU64] =
            Box::leak((0..12).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().into_boxed_slice());
        let room: &'static Room = Box::leak(Box::new(Room::behind_header(words)));
        let appender = thread::spawn(move || room.put(&Numbered::new(1, 2), padding));
        let closer = thread::spawn(move || room.close(padding));
        if room.is_complete() {
            read(words, true);
        }
        let place = appender.join().unwrap();
        closer.join().unwrap();
        assert!(room.is_complete());
        let expected: &[u64] = if place.is_some() { &[1] } else { &[] };
        assert_eq!(read(words, true), expected);
    });
}
