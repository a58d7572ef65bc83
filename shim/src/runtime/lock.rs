//! A lock for short critical sections: it spins, then sleeps on a futex. It never allocates. It is
//! never held across a driver call, dlopen or dlsym.

use crate::runtime::atomics::{AtomicU32, Ordering, spin_loop};
use crate::runtime::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const FREE: u32 = 0;
const HELD: u32 = 1;

/// Turns of the spin before the thread sleeps: about a microsecond, longer than any section here.
const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };

/// The longest sleep. Unlocking is a plain store, with no fence before it looks for sleepers; a sleeper
/// that it misses wakes up after this time.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

/// The lock's words come first, on the cache line of the value's first fields: a thread that waits
/// for both fetches one.
#[repr(C)]
pub struct Lock<T> {
    state: AtomicU32,
    sleepers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock owns its value, so sending the one sends the other.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Lock {
            state: AtomicU32::new(FREE),
            sleepers: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// The model's atomics are not made at compile time.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Lock {
            state: AtomicU32::new(FREE),
            sleepers: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    fn take(&self) -> bool {
        let taken =
            self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            held::add(1);
        }
        taken
    }

    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.take() {
            self.wait();
        }
        Guard { lock: self }
    }

    /// `None` if another thread holds the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.take().then(|| Guard { lock: self })
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == FREE && self.take() {
                return;
            }
            spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.take() {
            futex::wait(&self.state, HELD, LONGEST_SLEEP);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many locks this thread holds. Counted in builds with assertions only.
mod held {
    #[cfg(all(debug_assertions, not(loom)))]
    mod counted {
        use crate::runtime::tls::thread_block;

        thread_block!(fn locks() -> *mut i32 = "vramtrace_locks_held", 4, align 4);

        pub fn add(more: i32) {
            // SAFETY: this thread's own.
            unsafe { *locks() += more };
        }

        pub fn any() -> bool {
            // SAFETY: this thread's own.
            unsafe { *locks() != 0 }
        }
    }

    #[cfg(not(all(debug_assertions, not(loom))))]
    mod counted {
        #[inline(always)]
        pub fn add(_: i32) {}

        #[inline(always)]
        pub fn any() -> bool {
            false
        }
    }

    pub use counted::{add, any};
}

/// Checks, in builds with assertions, that this thread holds none of the recorder's locks: to be called
/// where code waits, reads another runtime's memory, or may come back into the recorder.
#[inline(always)]
pub fn debug_assert_none_held() {
    debug_assert!(!held::any(), "a lock of the recorder is held");
}

pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value is reached only through a guard, and only one exists at a time.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value is reached only through a guard, and only one exists at a time.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        held::add(-1);
        self.lock.state.store(FREE, Ordering::Release);
        if self.lock.sleepers.load(Ordering::Relaxed) != 0 {
            futex::wake_one(&self.lock.state);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        const TIMES: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 8 * TIMES);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_held_lock_is_known_to_its_thread() {
        let (lock, other) = (Lock::new(()), Lock::new(()));
        debug_assert_none_held();
        let outer = lock.lock();
        let inner = other.try_lock();
        assert!(lock.try_lock().is_none() && held::any());
        std::thread::scope(|scope| drop(scope.spawn(debug_assert_none_held)));
        drop(outer);
        assert!(std::panic::catch_unwind(debug_assert_none_held).is_err());
        drop(inner);
        debug_assert_none_held();
    }

    #[test]
    fn a_held_lock_is_not_taken_twice() {
        let lock = Lock::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
