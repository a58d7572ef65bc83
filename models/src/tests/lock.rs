//! The lock.

use loom::sync::Arc;
use loom::thread;

use crate::runtime::lock::Lock;

/// Two threads in the critical section would be a data race on the cell, which loom reports.
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
