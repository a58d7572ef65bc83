//! The lock, also when a thread leaves it held.

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

/// One thread ends with the lock held. Another, which waits, is told so, and never enters.
#[test]
fn a_lock_that_was_left_lets_nobody_in() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(loom::cell::UnsafeCell::new(0)));
        let leaver = {
            let lock = lock.clone();
            thread::spawn(move || {
                let held = lock.lock();
                // SAFETY: nobody else is in the section: that is what is checked.
                held.with_mut(|value| unsafe { *value += 1 });
                std::mem::forget(held);
                // Back in the program, it calls again.
                assert!(lock.lock_unless_left().is_none());
            })
        };
        if let Some(held) = lock.lock_unless_left() {
            // SAFETY: as above.
            held.with_mut(|value| unsafe { assert_eq!(*value, 0) });
        }
        leaver.join().unwrap();
        assert!(lock.lock_unless_left().is_none());
    });
}

/// A holder that was only slow: a waiting thread gave it up, its unlocking makes the lock usable again.
#[test]
fn a_lock_that_was_given_up_too_early_is_usable_again() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(loom::cell::UnsafeCell::new(0)));
        let held = lock.lock();
        let other = {
            let lock = lock.clone();
            thread::spawn(move || {
                if let Some(held) = lock.lock_unless_left() {
                    // SAFETY: nobody else is in the section: that is what is checked.
                    held.with_mut(|value| unsafe { *value += 1 });
                }
            })
        };
        // It is this thread's own: given up at once.
        assert!(lock.lock_unless_left().is_none());
        // SAFETY: as above.
        held.with_mut(|value| unsafe { *value += 1 });
        drop(held);
        other.join().unwrap();
        let held = lock.lock();
        // SAFETY: as above.
        assert!(held.with(|value| unsafe { *value }) >= 1);
    });
}
