//! The functions that the Python package `vramtrace` calls. It finds them by name with ctypes.
//!
//! Contract, version 1 (`vramtrace_python_api`). An existing function keeps its meaning; new functions
//! may be added within a version. Texts are UTF-8 with a length, without a NUL. Any thread may call at
//! any time, with or without the GIL. No function calls the driver, errno is preserved, and nothing
//! unwinds into the caller. Inside a driver call (from its callbacks) they do nothing and return 0. A
//! forked child starts with a new state.
//!
//! ```c
//! uint32_t vramtrace_python_api(void);                        // 1
//! uint32_t vramtrace_python_state(void);                      // bit 0: the driver was used, bit 1: a trace is written
//! void     vramtrace_python_push(const char *, size_t);       // begins a phase of this thread
//! void     vramtrace_python_pop(void);                        // ends it
//! uint64_t vramtrace_python_start(const char *, size_t);      // a phase that any thread may end
//! void     vramtrace_python_end(uint64_t);
//! void     vramtrace_python_mark(const char *, size_t);
//! size_t   vramtrace_python_usage(char *, size_t, uint32_t);  // writes JSON with at most that many call sites;
//!                                                             // returns its length, also if it was cut to the buffer
//! size_t   vramtrace_python_trace(char *, size_t);            // writes the trace's path, likewise; 0: no trace.
//!                                                             // The file then has all events so far
//! int32_t  vramtrace_python_limit(uint32_t device, uint64_t bytes, uint64_t before[2]);
//!                                 // lowers the cap of this process; 0: done, 1: it is already as low, 2: no such device
//! void     vramtrace_python_unlimit(uint32_t device, const uint64_t before[2]);
//!                                 // restores the cap, unless it was changed meanwhile
//! uint64_t vramtrace_python_peak_begin(uint32_t device);      // restarts the watched peak; for peak_end
//! uint64_t vramtrace_python_peak_end(uint32_t device, uint64_t);  // returns the peak since then; may be nested
//! ```

use crate::driver::param::{In, Out};
use crate::hooks::call::{before_call, beside};
use crate::hooks::entry::python_usage;
use crate::hooks::process::mark;
use crate::hooks::process::state::{self, Process};
use crate::runtime::own_stack;
use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use vramtrace_format::DeviceId;

const VERSION: u32 = 1;
/// Stands for "no cap".
const NO_CAP: u64 = u64::MAX;
/// Devices that can have a cap.
const DEVICES: u32 = 64;

/// Runs a function of the contract.
fn run<R: Default>(work: impl FnOnce(Option<&'static Process>) -> R) -> R {
    beside("a call of the Python package", |process| {
        own_stack::run(|| work(process)).unwrap_or_default()
    })
}

fn text(name: &In<u8>, length: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(name.bytes(length.min(mark::LONGEST + 4)))
}

/// Copies as much of the text as fits. Returns the length of the whole text.
fn give(text: &[u8], room: Out<u8>, size: usize) -> usize {
    room.fill(text, size);
    text.len()
}

fn device(number: u32) -> Option<DeviceId> {
    (number < DEVICES).then_some(DeviceId(number as u8))
}

macro_rules! functions {
    ($( fn $name:ident ( $($arg:ident: $ty:ty),* ) -> $out:ty = $work:expr; )*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C" fn $name($($arg: $ty),*) -> $out {
            run($work)
        }
    )*};
}

functions! {
    fn vramtrace_python_api() -> u32 = |_| VERSION;
    fn vramtrace_python_state() -> u32 = |process| match process {
        None => 0,
        Some(process) => 1 | u32::from(process.trace_writer.path().is_some()) << 1,
    };
    fn vramtrace_python_push(name: In<u8>, length: usize) -> () = |process| {
        mark::push(process, 0, &text(&name, length));
    };
    fn vramtrace_python_pop() -> () = |process| {
        mark::pop(process);
    };
    fn vramtrace_python_start(name: In<u8>, length: usize) -> u64 = |process| {
        mark::start(process, 0, &text(&name, length))
    };
    fn vramtrace_python_end(range: u64) -> () = |process| mark::end(process, range);
    fn vramtrace_python_mark(name: In<u8>, length: usize) -> () = |process| {
        mark::moment(process, 0, &text(&name, length))
    };
    fn vramtrace_python_usage(room: Out<u8>, size: usize, sites: u32) -> usize = |process| {
        give(python_usage::as_json(process, sites as usize).as_bytes(), room, size)
    };
    fn vramtrace_python_trace(room: Out<u8>, size: usize) -> usize = |process| {
        let Some(process) = process else { return 0 };
        process.trace_writer.refresh();
        process.trace_writer.write_now(process);
        let path = process.trace_writer.path();
        path.map_or(0, |path| give(path.as_os_str().as_bytes(), room, size))
    };
    fn vramtrace_python_limit(number: u32, bytes: u64, before: Out<[u64; 2]>) -> i32 = |process| {
        let Some(device) = device(number) else { return 2 };
        // A cap may be set before the driver is used.
        let process = process.unwrap_or_else(state::current);
        before_call::apply_orders(process);
        let limit = process.cap.limit(device);
        if limit.is_some_and(|limit| limit <= bytes) {
            return 1;
        }
        before.set([limit.unwrap_or(NO_CAP), bytes]);
        before_call::change_limit(process, device, Some(bytes));
        0
    };
    fn vramtrace_python_unlimit(number: u32, before: In<[u64; 2]>) -> () = |process| {
        let Some((process, device)) = process.zip(device(number)) else { return };
        before_call::apply_orders(process);
        let Some([limit, lowered]) = before.get() else { return };
        if process.cap.limit(device) == Some(lowered) {
            let limit = Some(limit).filter(|limit| *limit != NO_CAP);
            before_call::change_limit(process, device, limit);
        }
    };
    fn vramtrace_python_peak_begin(number: u32) -> u64 = |process| {
        let known = process.zip(device(number));
        known.map_or(0, |(process, device)| process.ledger.begin_peak(device))
    };
    fn vramtrace_python_peak_end(number: u32, before: u64) -> u64 = |process| {
        let known = process.zip(device(number));
        known.map_or(0, |(process, device)| process.ledger.end_peak(device, before))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_cap_and_back() {
        assert!(device(63).is_some() && device(64).is_none());
        let mut before = [0; 2];
        // Of this test alone.
        let number = 61;
        let limit = || state::current().cap.limit(DeviceId(number as u8));
        // SAFETY: room for both words, here and below.
        unsafe {
            assert_eq!(vramtrace_python_limit(64, 1, Out::to(&mut before)), 2);
            assert_eq!(vramtrace_python_limit(number, 5 << 30, Out::to(&mut before)), 0);
            assert_eq!((limit(), before), (Some(5 << 30), [NO_CAP, 5 << 30]));
            let mut inner = [0; 2];
            assert_eq!(vramtrace_python_limit(number, 6 << 30, Out::to(&mut inner)), 1);
            assert_eq!(vramtrace_python_limit(number, 4 << 30, Out::to(&mut inner)), 0);
            vramtrace_python_unlimit(number, Out::to(&mut inner).input());
            assert_eq!(limit(), Some(5 << 30));
            vramtrace_python_unlimit(number, Out::to(&mut before).input());
            assert_eq!(limit(), None);
            // A limit that was set meanwhile stays.
            assert_eq!(vramtrace_python_limit(number, 5 << 30, Out::to(&mut before)), 0);
            state::current().cap.set_limit(DeviceId(number as u8), Some(3 << 30));
            vramtrace_python_unlimit(number, Out::to(&mut before).input());
            assert_eq!(limit(), Some(3 << 30));
        }
    }
}
