//! The thread that calls NVML.
//!
//! NVML of a faulty GPU may never answer, while the driver calls of the program still do. Such a call
//! cannot be cancelled, so the thread that makes it hangs. A hook must not hang where the program would
//! not. So NVML is called on a separate thread, and the hook waits at most one second for the answer.
//! After that no hook waits, until NVML has answered.
//!
//! The thread is made in cuInit and nowhere else: making one takes locks of the C library and calls
//! malloc, and the driver makes its own threads there. A forked child has none until its own cuInit:
//! until then NVML is not called there. The thread takes no signal, and runs nothing of the program's.
//! It does not keep the process alive: if it is the last thread it ends too.

use crate::driver::depth::inside;
use crate::runtime::{futex, log};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for one answer.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for NVML's initialisation.
pub const PATIENCE_AT_START: Duration = Duration::from_secs(5);
/// After this time without a query the thread checks whether it is the last one.
const IDLE: Duration = Duration::from_secs(1);
const STACK: usize = 1 << 20;
/// Polls for the answer before the calling thread sleeps: a few microseconds.
const SPINS: u32 = 400;

type Question = Box<dyn FnOnce() + Send>;

/// The slot for a query. A forked child has its own slot and thread.
struct Desk {
    process: u32,
    /// FREE, TAKEN or ASKED.
    state: AtomicU32,
    question: UnsafeCell<Option<Question>>,
    /// The last query timed out.
    sick: AtomicBool,
}

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const ASKED: u32 = 2;

// SAFETY: the query is accessed by the thread that took the slot, and by the NVML thread once the state
// is ASKED.
unsafe impl Sync for Desk {}

static DESK: AtomicPtr<Desk> = AtomicPtr::new(null_mut());

struct Answer<T> {
    there: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: written once before `there` is set, read after it.
unsafe impl<T: Send> Send for Answer<T> {}
// SAFETY: written once before `there` is set, and only read after it.
unsafe impl<T: Send> Sync for Answer<T> {}

/// Runs a query. `None`: there was no answer in time, or there is no NVML thread.
pub fn ask<T: Send + 'static>(
    patience: Duration,
    question: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let until = Instant::now() + patience;
    let desk = desk()?;
    if !desk.take(until) {
        return None;
    }
    let answer = Arc::new(Answer { there: AtomicU32::new(0), value: UnsafeCell::new(None) });
    let back = Arc::clone(&answer);
    let asked: Question = Box::new(move || {
        let value = question();
        // SAFETY: nobody reads it before `there` is set.
        unsafe { *back.value.get() = Some(value) };
        back.there.store(1, Ordering::Release);
        futex::wake_all(&back.there);
    });
    // SAFETY: this thread has taken the slot.
    unsafe { *desk.question.get() = Some(asked) };
    desk.state.store(ASKED, Ordering::Release);
    futex::wake_all(&desk.state);
    if !wait_until(until, || answer.there.load(Ordering::Acquire) == 1, &answer.there, 0) {
        desk.give_up();
        return None;
    }
    // SAFETY: `there` is set, after which the NVML thread does not access it.
    unsafe { (*answer.value.get()).take() }
}

/// Waits for `is` while `word` has this value. False: the time is over.
fn wait_until(until: Instant, is: impl Fn() -> bool, word: &AtomicU32, value: u32) -> bool {
    for _ in 0..SPINS {
        if is() {
            return true;
        }
        core::hint::spin_loop();
    }
    while !is() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        futex::wait(word, value, left);
    }
    true
}

impl Desk {
    /// Takes the slot. False: another query is still unanswered.
    fn take(&self, until: Instant) -> bool {
        let free = || {
            let order = (Ordering::Acquire, Ordering::Relaxed);
            self.state.compare_exchange(FREE, TAKEN, order.0, order.1).is_ok()
        };
        if free() {
            return true;
        }
        loop {
            if self.sick.load(Ordering::Relaxed) || Instant::now() >= until {
                return false;
            }
            let state = self.state.load(Ordering::Relaxed);
            if state == FREE && free() {
                return true;
            }
            futex::wait(&self.state, state, Duration::from_millis(1));
        }
    }

    #[cold]
    fn give_up(&self) {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        self.sick.store(true, Ordering::Relaxed);
        if !REPORTED.swap(true, Ordering::Relaxed) {
            log::line(format_args!(
                "NVML does not answer (a faulty GPU?): until it does, the driver's own memory is \
                 counted at its last known size"
            ));
        }
    }

    /// The thread's loop. It ends when it is the last thread.
    fn serve(&self) {
        loop {
            while self.state.load(Ordering::Acquire) != ASKED {
                let state = self.state.load(Ordering::Relaxed);
                let began = Instant::now();
                if state != ASKED {
                    futex::wait(&self.state, state, IDLE);
                }
                if began.elapsed() >= IDLE && is_last_thread() {
                    return;
                }
            }
            // SAFETY: the state is ASKED, so this thread may access the query.
            let question = unsafe { (*self.question.get()).take() };
            if let Some(question) = question {
                // After a panic there is no answer: the caller times out.
                let _ = catch_unwind(AssertUnwindSafe(question));
            }
            self.sick.store(false, Ordering::Relaxed);
            self.state.store(FREE, Ordering::Release);
            futex::wake_all(&self.state);
        }
    }
}

/// This process's slot, if it has an NVML thread.
fn desk() -> Option<&'static Desk> {
    let process = std::process::id();
    // SAFETY: never freed.
    unsafe { DESK.load(Ordering::Acquire).as_ref() }.filter(|desk| desk.process == process)
}

/// Whether this process has an NVML thread.
pub fn is_there() -> bool {
    desk().is_some()
}

/// Starts the thread if this process has none. Called in cuInit.
pub fn open() {
    if !is_there() {
        let process = std::process::id();
        open_desk(DESK.load(Ordering::Acquire), process);
    }
}

#[cold]
fn open_desk(known: *mut Desk, process: u32) {
    let fresh = Box::into_raw(Box::new(Desk {
        process,
        state: AtomicU32::new(FREE),
        question: UnsafeCell::new(None),
        sick: AtomicBool::new(false),
    }));
    // SAFETY: never freed once it is known.
    let desk = unsafe { &*fresh };
    match DESK.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // Without a thread there are no answers: marked as not answering from the start.
        Ok(_) if !start(desk) => {
            desk.state.store(ASKED, Ordering::Relaxed);
            desk.sick.store(true, Ordering::Relaxed);
            log::line(format_args!(
                "cannot create the thread that queries NVML: the driver's own memory is not counted"
            ));
        }
        Ok(_) => {}
        // SAFETY: nobody has seen it.
        Err(_) => unsafe { drop(Box::from_raw(fresh)) },
    }
}

fn start(desk: &'static Desk) -> bool {
    extern "C" fn run(desk: *mut c_void) -> *mut c_void {
        // SAFETY: the slot that `start` passes, which is never freed.
        let desk = unsafe { &*desk.cast::<Desk>() };
        // SAFETY: a name that ends.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"vramtrace-nvml".as_ptr()) };
        inside(|| desk.serve());
        null_mut()
    }
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = 0;
    // SAFETY: the attributes are made and used here; this thread's mask is put back.
    unsafe {
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return false;
        }
        let attributes = attributes.as_mut_ptr();
        libc::pthread_attr_setstacksize(attributes, STACK);
        libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
        let (mut all, mut before) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, &mut before);
        let desk = (&raw const *desk).cast_mut().cast();
        let made = inside(|| libc::pthread_create(&mut thread, attributes, run, desk));
        libc::sigprocmask(libc::SIG_SETMASK, &before, null_mut());
        // The attributes hold no memory, and are left: below glibc 2.32 destroying them calls the program's free().
        made == 0
    }
}

/// Whether the main thread has ended and this is the only thread left: the C library ends the process
/// with its last thread.
fn is_last_thread() -> bool {
    let Ok(stat) = std::fs::read("/proc/self/stat") else { return false };
    let Some(name_end) = stat.iter().rposition(|byte| *byte == b')') else { return false };
    let mut fields = stat[name_end + 1..].split(|byte| *byte == b' ').skip(1);
    let is_zombie = fields.next() == Some(b"Z");
    is_zombie && fields.nth(16) == Some(b"2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for_twice() {
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
