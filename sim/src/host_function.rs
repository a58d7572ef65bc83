//! The program's host functions: they run on a thread of the driver, on which calls are refused (800), as
//! measured on an H100.

use crate::error::{Done, Error};
use std::cell::Cell;

/// A small one, so that calls from host functions are tested on it.
const STACK: usize = 64 << 10;

thread_local! {
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host function to its end.
pub(crate) fn run(function: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(STACK);
        let work = || {
            RUNS.set(true);
            function();
        };
        builder.spawn_scoped(scope, work).expect("a thread for a host function");
    });
}

/// Whether calls of the driver may be made on this thread.
#[inline]
pub(crate) fn permits() -> Done {
    if RUNS.get() { Err(Error::NOT_PERMITTED) } else { Ok(()) }
}
