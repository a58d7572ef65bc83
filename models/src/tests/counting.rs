//! A budget, and the counts of a group's members.

use loom::sync::Arc;
use loom::thread;

use crate::model::cap::counting::{Attempt, add_saturating, add_then_look, take_within};
use crate::runtime::atomics::{AtomicU64 as Count, Ordering};

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
                        assert!(add_saturating(&count, -(bytes as i64), Ordering::SeqCst));
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

/// Two members of a group request memory at the same time, of which only one can have it.
#[test]
fn a_group_grants_no_byte_twice() {
    const LIMIT: u64 = 10;
    loom::model(|| {
        let counts = Arc::new([Count::of_group(0), Count::of_group(0)]);
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
                            add_saturating(own, -(bytes as i64), Ordering::SeqCst);
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
