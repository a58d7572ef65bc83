//! Calls of NVML, each on a task that ends with the answer.
//!
//! NVML of a faulty GPU may never answer, while the driver calls of the program still do. Such a call
//! cannot be cancelled, so whoever makes it hangs. A hook must not hang where the program would not. So a
//! task ([`crate::runtime::task`]) calls NVML, and the hook waits at most one second for its end. A task
//! that did not end is left behind; until it ends no hook asks, and figures stay as last known.
//!
//! A task and no thread, because a program sees the threads of its process:
//! * the thread that ends last runs the program's `exit` handlers, and the C library counts a thread that
//!   it made: a task is not counted;
//! * `unshare` and `setns` of a user namespace fail in a process of several threads, and Python warns at
//!   `fork`: a task ends before the hook returns, and the hook waits until the kernel counts it no more.
//!   The thread in the hook takes no signal meanwhile, so no handler sees the task either.
//!
//! What else was weighed: a call on the program's own thread cannot be left behind. A thread made for each
//! reading takes locks of the C library and calls malloc. A helper process hangs alone, but it is a child
//! that the program's job control and process limits see, and it needs a file to execute. A task costs
//! 32 to 60 us where a kept thread costs 4 to 33 (medians of runs by `scripts/bench.sh nvml`, simulated
//! driver, 4 busy cores). The share of the time that readings may take is bounded
//! ([`crate::hooks::process::nvml_reading`]). The real libraries do start threads: the CUDA driver one in
//! cuInit and one with the first context, NVML one in nvmlInit (H100, driver 580). They are the drivers' own.
//!
//! The storage of the task is made in cuInit and nowhere else: making it takes locks of the C library and
//! calls malloc, and the driver makes its own threads there. A forked child has none until its own cuInit:
//! until then NVML is not called there.

use crate::driver::depth::inside;
use crate::runtime::futex;
use crate::runtime::lock::Lock;
use crate::runtime::log::{self, Once};
use crate::runtime::task::{SignalsBlocked, Storage, Work};
use core::sync::atomic::{AtomicU32, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for one answer.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for NVML's initialisation.
pub const PATIENCE_AT_START: Duration = Duration::from_secs(5);

/// The slot for queries of one process.
pub struct Desk {
    /// FREE, TAKEN or LEFT.
    state: AtomicU32,
    /// `None`: the system permits no thread, so there are no answers.
    storage: Option<Storage>,
}

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// The task of the last query did not end in time.
const LEFT: u32 = 2;

#[cold]
fn say_once(which: Once, why: &str) {
    if which.begins() {
        log::line(format_args!("{why}, the driver's own memory is counted at its last known size"));
    }
}

impl Desk {
    /// Called in cuInit. It stays.
    pub fn open() -> &'static Desk {
        let storage = inside(Storage::make);
        if storage.is_none() {
            log::line(format_args!(
                "cannot create the thread that queries NVML: the driver's own memory is not counted"
            ));
        }
        Box::leak(Box::new(Desk { state: AtomicU32::new(FREE), storage }))
    }

    /// Runs a query. `None`: there was no answer in time.
    pub fn ask<T: Send + 'static>(
        &'static self,
        patience: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let storage = self.storage.as_ref()?;
        let until = Instant::now() + patience;
        // A handler of the program's would see the task, and might leave this function for good.
        let _blocked = SignalsBlocked::new();
        if !self.take(storage, until) {
            return None;
        }
        let answer = Arc::new(Lock::new(None));
        let back = Arc::clone(&answer);
        let work: Work = Box::new(move || {
            // SAFETY: a name that ends.
            unsafe { libc::prctl(libc::PR_SET_NAME, c"vramtrace-nvml".as_ptr()) };
            // After a panic there is no answer.
            let found = inside(|| catch_unwind(AssertUnwindSafe(question)));
            *back.lock() = found.ok();
        });
        // SAFETY: this thread has taken the slot, and there is no task.
        let task = unsafe { storage.start(work) };
        if task.is_some_and(|task| !storage.wait(task, until)) {
            self.give_up();
            return None;
        }
        if task.is_none() {
            // A filter of system calls, or a limit of tasks.
            say_once(Once::NoTask, "cannot create a task that queries NVML: while that is so");
        }
        self.give_back();
        answer.lock().take()
    }

    /// Takes the slot. False: another query is still unanswered.
    fn take(&self, storage: &Storage, until: Instant) -> bool {
        loop {
            match self.state.load(Ordering::Relaxed) {
                LEFT if !storage.is_free() => return false,
                TAKEN if Instant::now() >= until => return false,
                TAKEN => futex::wait(&self.state, TAKEN, Duration::from_millis(1)),
                free => {
                    let order = (Ordering::Acquire, Ordering::Relaxed);
                    if self.state.compare_exchange(free, TAKEN, order.0, order.1).is_ok() {
                        return true;
                    }
                }
            }
        }
    }

    fn give_back(&self) {
        self.state.store(FREE, Ordering::Release);
        futex::wake_one(&self.state);
    }

    #[cold]
    fn give_up(&self) {
        self.state.store(LEFT, Ordering::Release);
        futex::wake_all(&self.state);
        say_once(Once::NvmlIsSilent, "NVML does not answer (a faulty GPU?): until it does");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for_twice() {
        let desk = Desk::open();
        let ask = |patience, answer| desk.ask(patience, move || answer);
        assert_eq!(ask(PATIENCE, 7), Some(7));
        let (gate, closed) = (Arc::new(AtomicU32::new(0)), Duration::from_millis(20));
        let inner = Arc::clone(&gate);
        let hangs = move || {
            while inner.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        assert_eq!(desk.ask(closed, hangs), None);
        let began = Instant::now();
        assert_eq!(ask(PATIENCE, 8), None, "it is ill");
        assert!(began.elapsed() < PATIENCE / 2);
        gate.store(1, Ordering::Relaxed);
        let mut again = None;
        for _ in 0..1000 {
            again = again.or_else(|| ask(PATIENCE, 9));
            std::thread::sleep(Duration::from_millis(1));
            if again.is_some() {
                break;
            }
        }
        assert_eq!(again, Some(9), "it has answered after all");
    }
}
