//! One call on its way to a hook.
//!
//! A hook is a function in `hooks/families/<family>.rs`, named in the table and shaped like this:
//!
//! ```ignore
//! pub fn mem_alloc(
//!     p: &'static Process,
//!     call: &Call<impl Function>,
//!     dptr: Out<u64>,
//!     bytesize: usize,
//! ) -> CUresult {
//!     let result = call.forward(); // the driver; at most once
//!     ...
//!     result
//! }
//! ```
//!
//! Hooks of functions that differ in their arguments alone are rows of `hooks!`.
//!
//! A [`Call`] holds the real function and the program's arguments: [`Call::forward`] cannot mix them up,
//! and is safe. The export around the hook takes care of depth, errno and panics (`run`), and calls
//! [`after_call::after_call`]. `forward` remembers what the driver answered, so that a hook that
//! panics AFTER the call still gives the program the driver's answer, and one that panics BEFORE it
//! passes through. (So a hook which lets the driver write into locals
//! copies them to the program's outputs before it does anything else.)

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
use crate::hooks::process::timed;
use crate::hooks::process::without_state;
use crate::runtime::lock::Left;
use crate::runtime::{clock, errno, panic_boundary, reserve};
use core::cell::Cell;
use core::ffi::c_int;

/// A function of the driver, by its C type.
pub trait Function: Copy {
    /// What it is called with.
    type Arguments: Copy;

    /// # Safety
    /// The arguments fulfil the contract of the driver's function.
    unsafe fn call(self, arguments: Self::Arguments) -> CUresult;
}

/// The program's call of one function of the driver.
pub struct Call<F: Function> {
    pub api: Api,
    real: F,
    arguments: F::Arguments,
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

impl<F: Function> Call<F> {
    /// # Safety
    /// `real` is the driver's function of `api`, and the program called that with these arguments. The
    /// result is dropped before the program's call returns.
    #[inline]
    pub(in crate::hooks) unsafe fn new(
        api: Api,
        real: F,
        arguments: F::Arguments,
        depth: depth::Guard,
    ) -> Call<F> {
        let errno_here = depth.errno();
        let errno = Cell::new(errno_here.get());
        Call {
            api,
            real,
            arguments,
            answer: Cell::new(None),
            errno,
            errno_here,
            now_ns: Cell::new(0),
            began_ns: Cell::new(0),
            depth,
        }
    }

    /// The arguments of the program's call.
    #[inline(always)]
    pub(in crate::hooks) fn arguments(&self) -> F::Arguments {
        self.arguments
    }

    /// Makes the program's call.
    #[inline(always)]
    pub fn forward(&self) -> CUresult {
        // Of the call's address alone, as the closure of a hook: copies of the arguments would be made before they are passed.
        // SAFETY: the program made this call, with these arguments (`new`).
        self.answered(|| unsafe { self.real.call(self.arguments) })
    }

    /// Makes the program's call with other arguments.
    ///
    /// # Safety
    /// The arguments fulfil the contract of the driver's function.
    #[inline(always)]
    pub unsafe fn real_with(&self, arguments: F::Arguments) -> CUresult {
        // SAFETY: the caller has arguments that fulfil the function's contract.
        self.answered(|| unsafe { self.real.call(arguments) })
    }

    #[inline(always)]
    fn answered(&self, driver: impl FnOnce() -> CUresult) -> CUresult {
        let result = match self.began_ns.get() {
            0 => self.across(driver),
            _ => self.across_timed(driver),
        };
        self.answer.set(Some(result));
        result
    }

    #[cold]
    #[inline(never)]
    fn across_timed(&self, driver: impl FnOnce() -> CUresult) -> CUresult {
        let entered = clock::mono_ns();
        let result = self.across(driver);
        self.began_ns.set(self.began_ns.get() + clock::elapsed_ns(entered));
        result
    }

    /// The time of an event at the beginning of the hook.
    #[inline]
    pub fn now_ns(&self, p: &Process) -> u64 {
        match self.now_ns.get() {
            0 => p.clock.now_ns(),
            now_ns => now_ns,
        }
    }

    /// Makes the program's call without a hook.
    #[inline]
    fn through(&self) -> CUresult {
        // SAFETY: the program made this call, with these arguments (`new`).
        self.across(|| unsafe { self.real.call(self.arguments) })
    }

    /// Calls the driver. Meanwhile a signal handler, and asynchronous cancellation, may leave this call.
    #[inline(always)]
    fn across(&self, driver: impl FnOnce() -> CUresult) -> CUresult {
        // The driver must see the program's errno, not that of the hook's own calls.
        self.restore_errno();
        let result = match self.depth.enters_driver() {
            false => driver(),
            true => across_undeferred(self.api, driver),
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

    /// Where a signal handler wants to leave the hook, which has not begun its work: leaves it.
    #[inline]
    pub fn leave_if_requested(&self) {
        self.depth.leave_if_requested();
    }

    #[inline]
    fn restore_errno(&self) {
        self.errno_here.set(self.errno.get());
    }

    /// The driver's result, if it was called.
    pub fn answer(&self) -> Option<CUresult> {
        self.answer.get()
    }
}

/// In a hook during which asynchronous cancellation is deferred. It stays so in calls by which memory comes and
/// goes: a thread that ended there would not tell whether the driver has given it.
#[cold]
#[inline(never)]
fn across_undeferred(api: Api, call: impl FnOnce() -> CUresult) -> CUresult {
    use Family::*;
    match api.family() {
        ActivityGuard | Lifecycle | Noted | Nvml | Report => undeferred(call),
        Contexts | Create | Free | Graphs | Host | Implied | Pools | Share | Torch | Virtual => {
            call()
        }
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

/// Hooks whose work is one expression, which is shared with other versions of a function or needs few of the arguments.
/// `p`, `call`: what the expression has for the state of the process and the call.
macro_rules! hooks {
    ($p:ident, $call:ident: $(
        $(#[$attribute:meta])* $name:ident ( $($argument:ident: $ty:ty),* $(,)? ) = $work:expr;
    )*) => {$(
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments, unused_variables)]
        pub fn $name(
            $p: &'static crate::hooks::process::state::Process,
            $call: &crate::hooks::call::Call<impl crate::hooks::call::Function>,
            $($argument: $ty),*
        ) -> CUresult {
            $work
        }
    )*};
}
pub(in crate::hooks) use hooks;

macro_rules! function {
    ($( ($($arg:ident: $ty:ident),*) )*) => {$(
        impl<$($ty: Copy),*> Function for unsafe extern "C-unwind" fn($($ty),*) -> CUresult {
            type Arguments = ($($ty,)*);

            #[inline]
            unsafe fn call(self, ($($arg,)*): Self::Arguments) -> CUresult {
                // SAFETY: the caller has arguments that fulfil the function's contract.
                unsafe { self($($arg),*) }
            }
        }
    )*};
}
function! {
    ()
    (a: A)
    (a: A, b: B)
    (a: A, b: B, c: C)
    (a: A, b: B, c: C, d: D)
    (a: A, b: B, c: C, d: D, e: E)
    (a: A, b: B, c: C, d: D, e: E, f: F)
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G)
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H)
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J)
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K)
}

/// Runs a hook, `body`. An exception or a thread's cancellation that unwinds out of the driver
/// continues into the program's frames; the depth guard is released on its way.
#[inline]
pub(in crate::hooks) fn run<F: Function>(
    call: &Call<F>,
    body: impl FnOnce(&'static Process, &Call<F>) -> CUresult,
) -> CUresult {
    call.depth.settle();
    if call.depth.is_sampled() {
        call.begin_timed();
    }
    // More than any result: the hook did not run.
    const PASS: usize = 1 << 32;
    let outcome = panic_boundary::catch_word(move || {
        let process = state::current();
        // There is no host memory left to record with, and no cap to keep.
        if reserve::is_low() && !process.cap.is_set() {
            return PASS;
        }
        process.usage.test_panic(call.api);
        call.now_ns.set(before_call::refresh_if_due(process));
        let result = body(process, call);
        if result != 0 {
            process.oom.aftermath.failed(process, call.api, result);
        }
        after_call::after_call(process);
        if call.began_ns.get() != 0 {
            timed::ended(process, call.began_ns.get());
        }
        result as u32 as usize
    });
    let result = match outcome {
        Ok(PASS) => call.through(),
        Ok(result) => result as CUresult,
        Err(payload) => {
            let has_left = payload.is::<Left>();
            state::panicked(call.api, payload);
            let refused = || match state::existing() {
                Some(process) if has_left => {
                    without_state::refusal_of_uncounted(process.cap.is_set(), call.api)
                }
                Some(_) => None,
                None => without_state::refusal(call.api),
            };
            call.answer().or_else(refused).unwrap_or_else(|| call.through())
        }
    };
    call.restore_errno();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    static REACHED: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C-unwind" fn driver(result: i32) -> CUresult {
        REACHED.fetch_add(1, Ordering::Relaxed);
        errno::set(77);
        result
    }

    /// One call through a hook that panics before or after it; (answer, errno, times reached).
    fn panics(after: bool) -> (CUresult, c_int, u32) {
        type Real = unsafe extern "C-unwind" fn(i32) -> CUresult;
        let before = REACHED.load(Ordering::Relaxed);
        errno::set(5);
        // SAFETY: it can be called with any number, and stands for the driver's.
        let call = unsafe {
            let guard = depth::enter().unwrap();
            Call::new(Api::cuDriverGetVersion, driver as Real, (700,), guard)
        };
        let body = |_: &'static Process, call: &Call<Real>| {
            if after {
                call.forward();
            }
            errno::set(6);
            std::panic::resume_unwind(Box::new("a mistake of ours"))
        };
        let answer = run(&call, body);
        call.end();
        assert!(depth::enter().is_some(), "the depth is as before");
        (answer, errno::get(), REACHED.load(Ordering::Relaxed) - before)
    }

    #[test]
    fn a_panic_leaves_the_drivers_answer_and_one_call() {
        assert_eq!(panics(true), (700, 77, 1), "after the call: its answer stands");
        assert_eq!(panics(false), (700, 77, 1), "before it: passed through");
    }
}
