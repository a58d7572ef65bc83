//! One call on its way to a hook.
//!
//! A hook is a function in `hooks/families/<family>.rs`, named in the table with what it takes of the call's arguments:
//!
//! ```ignore
//! pub fn linear(call: Call<impl Row>, kind: Kind, dptr: Out<u64>, bytesize: usize) -> CUresult {
//!     let result = call.forward(); // the driver; at most once
//!     ...
//!     result
//! }
//! ```
//!
//! A [`Row`] holds the real function and the program's arguments: [`Frame::forward`] cannot mix them up,
//! and is safe. The export around the hook takes care of depth, errno and panics (`run`), and calls
//! [`after_call::after_call`]. `forward` remembers what the driver answered, so that a hook that
//! panics AFTER the call still gives the program the driver's answer, and one that panics BEFORE it
//! passes through.

pub mod accounting;
pub mod after_call;
pub mod attribution;
pub mod before_call;
pub mod handler_exits;
pub mod request;

use crate::driver::api::{Api, Family};
use crate::driver::cuda::CUresult;
use crate::driver::depth;
use crate::driver::param::Out;
use crate::hooks::call::handler_exits::undeferred;
use crate::hooks::process::state;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::hooks::process::timed;
use crate::hooks::process::without_state;
use crate::runtime::lock::Left;
use crate::runtime::{clock, errno, panic_boundary, reserve};
use core::cell::Cell;
use core::ffi::c_int;
use core::ops::Deref;

/// A call of a line of the table: the real function, and what the program calls it with.
pub trait Row: Copy {
    const API: Api;
    /// Its stream 0 is the per-thread default one.
    const IS_PER_THREAD: bool;

    /// # Safety
    /// The program has made this call.
    unsafe fn make(&self) -> CUresult;
}

/// What is kept of the program's call while it runs.
pub struct Frame<R: Row> {
    pub(in crate::hooks) row: R,
    answer: Cell<Option<CUresult>>,
    errno: Cell<c_int>,
    /// This thread's.
    errno_here: errno::Here,
    /// The time of events at the beginning of the hook, if it was read; else 0.
    now_ns: Cell<u64>,
    /// When this call began, if it is timed; else 0. The time that the driver takes is added.
    began_ns: Cell<u64>,
    depth: depth::Guard,
}

/// The program's call, as a hook sees it.
#[derive(Clone, Copy)]
pub struct Call<'c, R: Row> {
    pub p: &'static Process,
    frame: &'c Frame<R>,
}

impl<R: Row> Deref for Call<'_, R> {
    type Target = Frame<R>;

    #[inline(always)]
    fn deref(&self) -> &Frame<R> {
        self.frame
    }
}

impl<R: Row> Call<'_, R> {
    /// The time of an event at the beginning of the hook.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self.now_ns.get() {
            0 => self.p.clock.now_ns(),
            now_ns => now_ns,
        }
    }
}

impl<R: Row> Frame<R> {
    /// # Safety
    /// The program has made the call of `row`. The result is dropped before that returns.
    #[inline]
    pub(in crate::hooks) unsafe fn new(row: R, depth: depth::Guard) -> Frame<R> {
        let errno_here = depth.errno();
        let errno = Cell::new(errno_here.get());
        Frame {
            row,
            answer: Cell::new(None),
            errno,
            errno_here,
            now_ns: Cell::new(0),
            began_ns: Cell::new(0),
            depth,
        }
    }

    #[inline(always)]
    pub fn api(&self) -> Api {
        R::API
    }

    /// Makes the program's call.
    #[inline(always)]
    pub fn forward(&self) -> CUresult {
        let result = match self.began_ns.get() {
            0 => self.through(),
            _ => self.through_timed(),
        };
        self.answer.set(Some(result));
        result
    }

    #[cold]
    #[inline(never)]
    fn through_timed(&self) -> CUresult {
        let entered = clock::mono_ns();
        let result = self.through();
        self.began_ns.set(self.began_ns.get() + clock::elapsed_ns(entered));
        result
    }

    /// Calls the driver. Meanwhile a signal handler, and asynchronous cancellation, may leave this call.
    #[inline(always)]
    fn through(&self) -> CUresult {
        // Of the call's address alone, as the closure of a hook: copies of the arguments would be made before they are passed.
        // SAFETY: the program made this call (`new`).
        let driver = || unsafe { self.row.make() };
        // The driver must see the program's errno, not that of the hook's own calls.
        self.restore_errno();
        let result = match self.depth.enters_driver() {
            false => driver(),
            true => across_undeferred(R::API, driver),
        };
        self.depth.left_driver();
        self.errno.set(self.errno_here.get());
        result
    }

    #[cold]
    fn begin_timed(&self) {
        self.began_ns.set(clock::mono_ns());
    }

    /// The end of the program's call, after `run`.
    #[inline]
    pub(in crate::hooks) fn end(self) {
        self.depth.leave();
    }

    #[inline]
    fn restore_errno(&self) {
        self.errno_here.set(self.errno.get());
    }
}

/// In a hook during which asynchronous cancellation is deferred. It stays so in calls by which memory comes and
/// goes: a thread that ended there would not tell whether the driver has given it.
#[cold]
#[inline(never)]
fn across_undeferred(api: Api, call: impl FnOnce() -> CUresult) -> CUresult {
    use Family::{ActivityGuard, Lifecycle, Noted, Nvml, Report};
    match api.family() {
        ActivityGuard | Lifecycle | Noted | Nvml | Report => undeferred(call),
        _ => call(),
    }
}

/// After a call with this result: where it succeeded, `work` gets what the driver has written. Returns the result.
#[inline(always)]
pub fn gave<T: Copy>(result: CUresult, output: Out<T>, work: impl FnOnce(T)) -> CUresult {
    if result == 0
        && let Some(value) = output.get()
    {
        work(value);
    }
    result
}

/// Runs a hook, `body`. An exception or a thread's cancellation that unwinds out of the driver
/// continues into the program's frames; the depth guard is released on its way.
#[inline]
pub(in crate::hooks) fn run<R: Row>(
    frame: &Frame<R>,
    body: impl FnOnce(Call<R>) -> CUresult,
) -> CUresult {
    frame.depth.settle();
    if frame.depth.is_sampled() {
        frame.begin_timed();
    }
    // More than any result: the hook did not run.
    const PASS: usize = 1 << 32;
    let outcome = panic_boundary::catch_word(move || {
        let process = state::current();
        // There is no host memory left to record with, and no cap to keep.
        if reserve::is_low() && !process.cap.is_set() {
            return PASS;
        }
        process.usage.test_panic(R::API);
        frame.now_ns.set(before_call::refresh_if_due(process));
        let result = body(Call { p: process, frame });
        if result != 0 {
            failed(process, R::API, result);
        }
        after_call::after_call(process);
        if frame.began_ns.get() != 0 {
            timed::ended(process, frame.began_ns.get());
        }
        result as u32 as usize
    });
    let result = match outcome {
        Ok(PASS) => frame.through(),
        Ok(result) => result as CUresult,
        Err(payload) => {
            let has_left = payload.is::<Left>();
            state::panicked(R::API.name(), payload);
            let refused = || match state::existing() {
                Some(process) if has_left => {
                    without_state::refusal_of_uncounted(process.cap.is_set(), R::API)
                }
                Some(_) => None,
                None => without_state::refusal(R::API),
            };
            frame.answer.get().or_else(refused).unwrap_or_else(|| frame.through())
        }
    };
    frame.restore_errno();
    result
}

/// A call that returned an error. Out of memory is a refusal, also of a call whose hook expects none.
#[cold]
fn failed(p: &'static Process, api: Api, result: CUresult) {
    if !depth::take_refusal() && api.family() != Family::Nvml {
        request::answered(p, api, current_target(p), 0, result);
        depth::take_refusal();
    }
    p.oom.aftermath.failed(p, api, result);
}

/// Runs `work` at a call that is not the driver's, and may come from anywhere: with the depth raised, errno kept, and without a
/// panic of this library, which ends the recording. Within a hook it does nothing. `at`: what was called.
#[inline]
pub(in crate::hooks) fn beside<R: Default>(
    at: &str,
    work: impl FnOnce(Option<&'static Process>) -> R,
) -> R {
    let Some(depth) = depth::enter() else { return R::default() };
    depth.settle();
    let errno = depth.errno();
    let kept = errno.get();
    let outcome = panic_boundary::catch(|| {
        let began_ns = if depth.is_sampled() { clock::mono_ns() } else { 0 };
        let result = work(state::existing());
        if let Some(process) = state::existing() {
            after_call::after_block(process);
            if began_ns != 0 {
                timed::ended(process, began_ns);
            }
        }
        result
    });
    let result = outcome.unwrap_or_else(|payload| {
        state::panicked(at, payload);
        R::default()
    });
    errno.set(kept);
    depth.leave();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    static REACHED: AtomicU32 = AtomicU32::new(0);

    #[derive(Clone, Copy)]
    struct Returns(CUresult);

    impl Row for Returns {
        const API: Api = Api::cuInit;
        const IS_PER_THREAD: bool = false;

        unsafe fn make(&self) -> CUresult {
            REACHED.fetch_add(1, Ordering::Relaxed);
            errno::set(77);
            self.0
        }
    }

    /// One call through a hook that panics before or after it; (answer, errno, times reached).
    fn panics(after: bool) -> (CUresult, c_int, u32) {
        let before = REACHED.load(Ordering::Relaxed);
        errno::set(5);
        // SAFETY: it stands for the driver's.
        let frame = unsafe { Frame::new(Returns(700), depth::enter().unwrap()) };
        let body = |call: Call<Returns>| {
            if after {
                call.forward();
            }
            errno::set(6);
            std::panic::resume_unwind(Box::new("a mistake of ours"))
        };
        let answer = run(&frame, body);
        frame.end();
        assert!(depth::enter().is_some(), "the depth is as before");
        (answer, errno::get(), REACHED.load(Ordering::Relaxed) - before)
    }

    #[test]
    fn a_panic_leaves_the_drivers_answer_and_one_call() {
        assert_eq!(panics(true), (700, 77, 1), "after the call: its answer stands");
        assert_eq!(panics(false), (700, 77, 1), "before it: passed through");
    }
}
