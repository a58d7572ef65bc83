//! A budget, and the counts of a group's members.

use loom::sync::Arc;
use loom::thread;

use crate::model::cap::counting::{add_saturating, take_within};
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
