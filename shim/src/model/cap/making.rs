//! Contexts that are made under a cap. What one takes is known once the device's first was measured: a further one reserves
//! as much before the driver's call. So they are made one at a time: a thread that begins while another makes the first would
//! not know its size, and two measurements at once would each show both.

use crate::runtime::atomics::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::runtime::futex;
use crate::runtime::thread_slot;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

const NOBODY: u32 = 0;
const SLEEP: Duration = Duration::from_millis(1);
/// Sleeps, some 5 s, after which nobody waits for the thread that has the turn: it may hang in the driver, or have left it by
/// a long jump. Sleeps and not time: a process that is stopped does not count them.
const PATIENCE: u32 = 5_000;

/// Of one device.
#[derive(Default)]
pub struct Making {
    /// The thread whose turn it is. Not a lock of the recorder's: it is held across the driver's call.
    thread: AtomicU32,
    /// Bytes of the first context that was measured; 0: none.
    first: AtomicU64,
}

/// Ends when it is dropped.
pub struct Turn<'a>(Option<&'a Making>);

impl Making {
    pub fn turn(&self) -> Turn<'_> {
        let own = thread_slot::tid() as u32;
        let (mut last, mut sleeps) = (NOBODY, 0);
        while sleeps < PATIENCE {
            match self.thread.compare_exchange(NOBODY, own, Acquire, Relaxed) {
                Ok(_) => return Turn(Some(self)),
                // In a signal handler, or after a long jump out of the driver's call.
                Err(thread) if thread == own => return Turn(None),
                Err(thread) => {
                    sleeps = if thread == last { sleeps + 1 } else { 0 };
                    last = thread;
                    futex::wait(&self.thread, thread, SLEEP);
                }
            }
        }
        self.thread.store(own, Relaxed);
        Turn(Some(self))
    }

    /// A context was measured.
    pub fn measured(&self, bytes: u64) {
        let _ = self.first.compare_exchange(0, bytes, Relaxed, Relaxed);
    }

    /// What a further one is expected to take; 0: not known.
    pub fn forecast(&self) -> u64 {
        self.first.load(Relaxed)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(making) = self.0 {
            let own = thread_slot::tid() as u32;
            // Another thread may have taken over.
            let _ = making.thread.compare_exchange(own, NOBODY, Release, Relaxed);
            futex::wake_one(&making.thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_and_no_thread_waits_for_itself() {
        let making = Making::default();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _turn = making.turn();
                    let _again = making.turn();
                    assert_eq!(inside.fetch_add(1, Relaxed), 0);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Relaxed);
                });
            }
        });
        assert_eq!(making.thread.load(Relaxed), NOBODY);
    }

    #[test]
    fn the_first_measurement_stays() {
        let making = Making::default();
        making.measured(0);
        assert_eq!(making.forecast(), 0);
        making.measured(500);
        making.measured(400);
        assert_eq!(making.forecast(), 500);
    }
}
