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
use crate::runtime::lock::Lock;
use crate::runtime::task::{SignalsBlocked, Storage};
use crate::runtime::{futex, log};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for one answer.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for NVML's initialisation.
pub const PATIENCE_AT_START: Duration = Duration::from_secs(5);

type Question = Box<dyn FnOnce() + Send>;

/// The slot for a query. A forked child has its own.
struct Desk {
    process: u32,
    /// FREE, TAKEN or LEFT.
    state: AtomicU32,
    /// `None`: the system permits no thread, so there are no answers.
    storage: Option<Storage>,
}

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// The task of the last query did not end in time.
const LEFT: u32 = 2;

static DESK: AtomicPtr<Desk> = AtomicPtr::new(null_mut());

/// Runs a query. `None`: there was no answer in time, or NVML is not called in this process.
pub fn ask<T: Send + 'static>(
    patience: Duration,
    question: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let desk = desk()?;
    let storage = desk.storage.as_ref()?;
    let until = Instant::now() + patience;
    // A handler of the program's would see the task, and might leave this function for good.
    let _blocked = SignalsBlocked::new();
    if !desk.take(storage, until) {
        return None;
    }
    let answer = Arc::new(Lock::new(None));
    let back = Arc::clone(&answer);
    let asked: Question = Box::new(move || {
        let found = question();
        *back.lock() = Some(found);
    });
    let asked = Box::into_raw(Box::new(asked));
    // SAFETY: this thread has taken the slot, and there is no task. `serve` may run anywhere.
    let task = unsafe { storage.start(serve, asked.cast()) };
    if task.is_some_and(|task| !storage.wait(task, until)) {
        desk.give_up();
        return None;
    }
    if task.is_none() {
        // SAFETY: made above, and nobody took it.
        drop(unsafe { Box::from_raw(asked) });
        no_task();
    }
    desk.give_back();
    answer.lock().take()
}

/// A filter of system calls, or a limit of tasks.
#[cold]
fn no_task() {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        log::line(format_args!(
            "cannot create a task that queries NVML: while that is so, the driver's own memory is counted \
             at its last known size"
        ));
    }
}

/// The work of a task.
fn serve(question: *mut c_void) {
    // SAFETY: the box that `ask` passes.
    let question = unsafe { Box::from_raw(question.cast::<Question>()) };
    // SAFETY: a name that ends.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"vramtrace-nvml".as_ptr()) };
    // After a panic there is no answer.
    let _ = inside(|| catch_unwind(AssertUnwindSafe(question)));
}

impl Desk {
    /// Takes the slot. False: another query is still unanswered.
    fn take(&self, storage: &Storage, until: Instant) -> bool {
        loop {
            let state = self.state.load(Ordering::Relaxed);
            if state == LEFT && !storage.is_free() {
                return false;
            }
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if state == TAKEN {
                if Instant::now() >= until {
                    return false;
                }
                futex::wait(&self.state, state, Duration::from_millis(1));
            } else if self.state.compare_exchange(state, TAKEN, order.0, order.1).is_ok() {
                return true;
            }
        }
    }

    fn give_back(&self) {
        self.state.store(FREE, Ordering::Release);
        futex::wake_one(&self.state);
    }

    #[cold]
    fn give_up(&self) {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        self.state.store(LEFT, Ordering::Release);
        futex::wake_all(&self.state);
        if !REPORTED.swap(true, Ordering::Relaxed) {
            log::line(format_args!(
                "NVML does not answer (a faulty GPU?): until it does, the driver's own memory is \
                 counted at its last known size"
            ));
        }
    }
}

/// This process's slot, if it has one.
fn desk() -> Option<&'static Desk> {
    let process = std::process::id();
    // SAFETY: never freed.
    unsafe { DESK.load(Ordering::Acquire).as_ref() }.filter(|desk| desk.process == process)
}

/// Whether NVML may be called in this process.
pub fn is_there() -> bool {
    desk().is_some()
}

/// Makes the slot if this process has none. Called in cuInit.
pub fn open() {
    if !is_there() {
        open_desk(DESK.load(Ordering::Acquire));
    }
}

#[cold]
fn open_desk(known: *mut Desk) {
    let fresh = Box::into_raw(Box::new(Desk {
        process: std::process::id(),
        state: AtomicU32::new(FREE),
        storage: inside(Storage::make),
    }));
    // SAFETY: never freed once it is known.
    let lacks_storage = unsafe { (*fresh).storage.is_none() };
    match DESK.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) if lacks_storage => log::line(format_args!(
            "cannot create the thread that queries NVML: the driver's own memory is not counted"
        )),
        Ok(_) => {}
        // SAFETY: nobody has seen it. Its storage stays, as that of a thread that is not joined must.
        Err(_) => unsafe { drop(Box::from_raw(fresh)) },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Of the tests that ask, one runs at a time: one of them leaves a question without an answer.
    pub fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for_twice() {
        let _alone = alone();
        open();
        assert_eq!(ask(PATIENCE, || 7), Some(7));
        let ended = testkit::in_child(|| !is_there() && ask(PATIENCE, || 7).is_none());
        assert_eq!(ended, Ok(true), "a child asks nobody, and makes no thread");
        let (gate, closed) = (Arc::new(AtomicU32::new(0)), Duration::from_millis(20));
        let inner = Arc::clone(&gate);
        let hangs = move || {
            while inner.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        assert_eq!(ask(closed, hangs), None);
        let began = Instant::now();
        assert_eq!(ask(PATIENCE, || 8), None, "it is ill");
        assert!(began.elapsed() < PATIENCE / 2);
        gate.store(1, Ordering::Relaxed);
        let mut again = None;
        for _ in 0..1000 {
            again = again.or_else(|| ask(PATIENCE, || 9));
            std::thread::sleep(Duration::from_millis(1));
            if again.is_some() {
                break;
            }
        }
        assert_eq!(again, Some(9), "it has answered after all");
    }
}
