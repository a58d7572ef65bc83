//! One call on its way to a hook.
//!
//! A hook is a function in `hooks/<family>.rs`, named in the table and shaped like this:
//!
//! ```ignore
//! pub unsafe fn mem_alloc(
//!     p: &'static Process,
//!     call: &Call<unsafe extern "C-unwind" fn(*mut u64, usize) -> CUresult>,
//!     dptr: *mut u64,
//!     bytesize: usize,
//! ) -> CUresult {
//!     let result = unsafe { call.real(dptr, bytesize) }; // the driver; at most once
//!     ...
//!     result
//! }
//! ```
//!
//! The export around it takes care of depth, errno and panics (`run`), and calls
//! [`after_call::after_call`]. `call.real` remembers what the driver answered, so that a hook that
//! panics AFTER the call still gives the program the driver's answer, and one that panics BEFORE it
//! passes through. (So a hook which lets the driver write into locals
//! copies them to the program's outputs before it does anything else.)

use crate::driver::api::Api;
use crate::driver::cuda::CUresult;
use crate::driver::depth;
use crate::hooks::after_call;
use crate::hooks::oom_sources::sources;
use crate::hooks::state;
use crate::hooks::state::Process;
use crate::hooks::without_state;
use crate::runtime::{clock, errno, panic_boundary, reserve};
use core::cell::Cell;
use core::ffi::c_int;

pub struct Call<F: Copy> {
    pub api: Api,
    real: F,
    answer: Cell<Option<CUresult>>,
    errno: Cell<c_int>,
    /// Where this thread's errno lies: found once a call.
    errno_at: *mut c_int,
    /// Whether its time is taken, and what of it the driver took.
    timed: Cell<bool>,
    driver_ns: Cell<u64>,
}

impl<F: Copy> Call<F> {
    #[inline]
    pub(super) fn new(api: Api, real: F) -> Call<F> {
        let errno_at = errno::place();
        // SAFETY: this thread's own, as long as it lives.
        let errno = Cell::new(unsafe { *errno_at });
        let (timed, driver_ns) = (Cell::new(false), Cell::new(0));
        Call { api, real, answer: Cell::new(None), errno, errno_at, timed, driver_ns }
    }

    /// 0: its time is not taken.
    #[inline]
    fn enters_driver(&self) -> u64 {
        if self.timed.get() { clock::mono_ns() } else { 0 }
    }

    #[cold]
    fn left_driver(&self, entered: u64) {
        let took = clock::mono_ns().saturating_sub(entered);
        self.driver_ns.set(self.driver_ns.get() + took);
    }

    #[inline]
    fn restore_errno(&self) {
        // SAFETY: as above; a call stays on its thread.
        unsafe { *self.errno_at = self.errno.get() }
    }

    #[inline]
    fn keep_errno(&self) {
        // SAFETY: as above.
        self.errno.set(unsafe { *self.errno_at })
    }

    /// The real function itself, for a second use of it that is not the program's call (a look at
    /// another device, say). Not for the program's call: that is [`Call::real`].
    pub fn pointer(&self) -> F {
        self.real
    }

    /// What the driver answered, once it was asked.
    pub fn answer(&self) -> Option<CUresult> {
        self.answer.get()
    }
}

/// `Call::real` for each number of arguments.
macro_rules! real {
    ($( ($($arg:ident: $ty:ident),*) )*) => {$(
        impl<$($ty),*> Call<unsafe extern "C-unwind" fn($($ty),*) -> CUresult> {
            /// Makes the program's call.
            ///
            /// # Safety
            /// As the driver's function.
            #[allow(clippy::too_many_arguments)]
            #[inline]
            pub unsafe fn real(&self, $($arg: $ty),*) -> CUresult {
                // What the hook did before is not to be seen by the driver either.
                let entered = self.enters_driver();
                self.restore_errno();
                let result = unsafe { (self.real)($($arg),*) };
                self.answer.set(Some(result));
                self.keep_errno();
                if entered != 0 {
                    self.left_driver(entered);
                }
                result
            }
        }
    )*};
}
real! {
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

#[cold]
fn begin_sample<F: Copy>(call: &Call<F>) -> u64 {
    call.timed.set(true);
    clock::mono_ns()
}

/// Runs a hook: `body` is the hook, `through` the bare call. Unwinding that is not ours passes: the
/// depth is lowered on its way, and the program's frames see it as without us.
#[inline]
pub(super) fn run<F: Copy>(
    call: &Call<F>,
    depth: depth::Guard,
    body: impl FnOnce(&'static Process) -> CUresult,
    through: impl FnOnce() -> CUresult,
) -> CUresult {
    depth.settle();
    let began = match depth.is_sampled() {
        true => begin_sample(call),
        false => 0,
    };
    let outcome = panic_boundary::catch(|| {
        let process = state::current();
        // Nothing can be followed any more, and without a cap nothing need be.
        if reserve::is_low() && !process.cap.is_set() {
            return None;
        }
        process.usage.test_panic(call.api);
        crate::hooks::before_call::refresh_if_due(process);
        let result = body(process);
        if result != 0 {
            process.oom.1.failed(sources(process), call.api, result);
        }
        process.usage.record_escapes(&process.trace_writer);
        after_call::after_call(process);
        if began != 0 {
            process.cost.took(clock::mono_ns() - began, call.driver_ns.get());
        }
        Some(result)
    });
    let through = || {
        call.restore_errno();
        let result = through();
        call.keep_errno();
        result
    };
    let result = match outcome {
        Ok(Some(result)) => result,
        Ok(None) => through(),
        Err(payload) => {
            state::panicked(call.api, payload);
            let refused = || match state::existing() {
                Some(_) => None,
                None => without_state::refusal(call.api),
            };
            call.answer().or_else(refused).unwrap_or_else(through)
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
        let call = Call::new(Api::cuDriverGetVersion, driver as Real);
        let body = |_: &'static Process| {
            if after {
                unsafe { call.real(700) };
            }
            errno::set(6);
            std::panic::resume_unwind(Box::new("a mistake of ours"))
        };
        let guard = depth::enter().unwrap();
        let answer = run(&call, guard, body, || unsafe { driver(1) });
        assert!(depth::enter().is_some(), "the depth is as before");
        (answer, errno::get(), REACHED.load(Ordering::Relaxed) - before)
    }

    #[test]
    fn a_panic_leaves_the_drivers_answer_and_one_call() {
        assert_eq!(panics(true), (700, 77, 1), "after the call: its answer stands");
        assert_eq!(panics(false), (1, 77, 1), "before it: passed through");
    }
}
