//! A lock for short critical sections: it spins, then sleeps on a futex. It never allocates. It is
//! never held across a driver call, dlopen or dlsym.
//!
//! A thread may leave the recorder in the middle of such a section: by `setcontext` out of a signal
//! handler, or by its end. Then the lock stays held, and what it guards may be half changed. So the lock
//! says who holds it. One who finds that it holds the lock itself, or who has waited too long, marks it as
//! left: from then on nobody waits, and [`Lock::lock`] panics with [`Left`], which ends the recording. If
//! the holder was only slow, its unlocking ends that state.

use crate::runtime::atomics::{AtomicU32, Ordering, spin_loop};
use crate::runtime::futex;
use crate::runtime::tls::{thread_cells, thread_pointer};
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const FREE: u32 = 0;
/// Its holder has left it. Other values are the holder's [`token`].
const LEFT: u32 = u32::MAX;

/// Turns of the spin before the thread sleeps: about a microsecond, longer than any section here.
const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };

/// The longest sleep. Unlocking is a plain store, with no fence before it looks for sleepers; a sleeper
/// that it misses wakes up after this time.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

/// Sleeps, about 10 s, after which the holder is taken to have left the lock. Sleeps and not time: a process
/// that is stopped does not count them.
const PATIENCE: u32 = if cfg!(loom) { u32::MAX - 1 } else { 40_000 };

/// The panic of one who needs a lock that was left.
pub struct Left;

impl Left {
    pub const WHY: &str = "a thread was taken out of the recorder and keeps one of its locks";
}

/// A number of this thread: threads have their own pages.
#[inline(always)]
fn token() -> u32 {
    (thread_pointer() >> 12) as u32
}

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
        let taken = self
            .state
            .compare_exchange(FREE, token(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if taken {
            count(1);
        }
        taken
    }

    /// Panics with [`Left`] if the lock was left.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.take() && !self.wait() {
            left();
        }
        Guard { lock: self }
    }

    /// `None` if the lock was left.
    #[inline]
    pub fn lock_unless_left(&self) -> Option<Guard<'_, T>> {
        // `then`, not `then_some`: dropping an unused guard would unlock.
        #[allow(clippy::unnecessary_lazy_evaluations)]
        (self.take() || self.wait()).then(|| Guard { lock: self })
    }

    /// `None` if another thread holds the lock, or has left it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.take().then(|| Guard { lock: self })
    }

    /// False: the lock was left.
    #[cold]
    fn wait(&self) -> bool {
        for _ in 0..SPINS {
            match self.state.load(Ordering::Relaxed) {
                FREE if self.take() => return true,
                LEFT => return false,
                _ => spin_loop(),
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let taken = self.sleep();
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        taken
    }

    fn sleep(&self) -> bool {
        let (mut holder, mut sleeps) = (FREE, 0);
        loop {
            if self.take() {
                return true;
            }
            let state = self.state.load(Ordering::Relaxed);
            if state == LEFT {
                return false;
            }
            (holder, sleeps) = if state == holder { (state, sleeps + 1) } else { (state, 0) };
            // One that this thread holds itself: it has left the section.
            if state == token() || state != FREE && sleeps >= PATIENCE {
                // The holder may unlock meanwhile.
                let order = Ordering::Relaxed;
                let _ = self.state.compare_exchange(holder, LEFT, order, order);
                continue;
            }
            if state != FREE {
                futex::wait(&self.state, state, LONGEST_SLEEP);
            }
        }
    }
}

#[cold]
fn left() -> ! {
    // Without the panic hook: a thread that left it in the middle cannot panic again.
    std::panic::resume_unwind(Box::new(Left))
}

/// Builds with assertions count how many locks each thread holds.
const COUNTED: bool = cfg!(all(debug_assertions, not(loom)));

thread_cells!(fn locks() -> &Cell<u64>, 8 bytes of the block at 264);

#[inline(always)]
fn count(more: i64) {
    if COUNTED {
        locks().update(|held| held.wrapping_add_signed(more));
    }
}

/// This thread has left the recorder's code in the middle: locks that it took there are not counted any more.
#[cold]
pub fn thread_left() {
    locks().set(0);
}

/// Checks, in builds with assertions, that this thread holds none of the recorder's locks: to be called
/// where code waits, reads another runtime's memory, or may come back into the recorder.
#[inline(always)]
pub fn debug_assert_none_held() {
    assert!(!COUNTED || locks().get() == 0, "a lock of the recorder is held");
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
        count(-1);
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
        assert!(lock.try_lock().is_none() && locks().get() == 2);
        std::thread::scope(|scope| drop(scope.spawn(debug_assert_none_held)));
        drop(outer);
        assert!(std::panic::catch_unwind(debug_assert_none_held).is_err());
        drop(inner);
        debug_assert_none_held();
    }

    #[test]
    fn one_that_its_own_thread_has_left_is_not_waited_for() {
        let lock = Lock::new(0u64);
        std::mem::forget(lock.lock());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| *lock.lock() += 1));
        assert!(panic.unwrap_err().is::<Left>());
        let elsewhere = std::thread::scope(|scope| {
            scope.spawn(|| lock.lock_unless_left().is_none()).join().unwrap()
        });
        assert!(elsewhere, "at once");
        assert!(lock.try_lock().is_none());
    }

    /// Who waited too long for a thread that was only slow.
    #[test]
    fn unlocking_ends_the_state_of_a_lock_that_was_left() {
        let lock = Lock::new(0u64);
        let held = lock.lock();
        assert!(lock.lock_unless_left().is_none());
        drop(held);
        assert!(lock.lock_unless_left().is_some());
    }
}
