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

use crate::driver::depth;
use crate::driver::param::{In, Out};
use crate::hooks::call::after_call;
use crate::hooks::call::before_call;
use crate::hooks::entry::python_usage;
use crate::hooks::process::mark;
use crate::hooks::process::state::{self, Process};
use crate::runtime::{errno, log, own_stack, panic_boundary};
use core::ffi::c_char;
use std::os::unix::ffi::OsStrExt;
use vramtrace_format::{DeviceId, StopReason};

const VERSION: u32 = 1;
/// Stands for "no cap".
const NO_CAP: u64 = u64::MAX;
/// Devices that can have a cap.
const DEVICES: u32 = 64;

/// Runs a function of the contract.
fn run<R: Default>(work: impl FnOnce(Option<&'static Process>) -> R) -> R {
    let Some(depth) = depth::enter() else { return R::default() };
    depth.settle();
    let kept = errno::get();
    let outcome = panic_boundary::catch(|| {
        let result = own_stack::run(|| work(state::existing())).unwrap_or_default();
        if let Some(process) = state::existing() {
            after_call::after_block(process);
        }
        result
    });
    errno::set(kept);
    let result = outcome.unwrap_or_else(|_| {
        if let Some(process) = state::existing().filter(|p| p.usage.first_panic()) {
            log::line(format_args!(
                "internal error in a call of the Python package; recording ends here, the program \
                 goes on"
            ));
            process.trace_writer.stop(StopReason::Panic, 0);
        }
        R::default()
    });
    depth.leave();
    result
}

/// # Safety
/// `at` is null, or points to `length` bytes.
unsafe fn text<'t>(at: *const c_char, length: usize) -> std::borrow::Cow<'t, str> {
    match at.is_null() {
        true => "".into(),
        // SAFETY: `at` is not null here, and points to `length` bytes; the slice is no longer than a
        // name that is kept.
        false => String::from_utf8_lossy(unsafe {
            core::slice::from_raw_parts(at.cast(), length.min(mark::LONGEST + 4))
        }),
    }
}

/// Copies as much of the text as fits. Returns the length of the whole text.
///
/// # Safety
/// `room` is null, or points to `size` writable bytes.
unsafe fn give(text: &[u8], room: *mut c_char, size: usize) -> usize {
    if !room.is_null() {
        let count = text.len().min(size);
        // SAFETY: `room` is not null here, and has `size` bytes, of which at most `count` are written.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), room.cast(), count) };
    }
    text.len()
}

/// For a device that the process has not used yet the limit is set, and no event is recorded.
fn change_limit(process: &'static Process, device: DeviceId, limit: Option<u64>) {
    match process.devices.known(device) {
        Some(_) => before_call::change_limit(process, device, limit),
        None => process.cap.set_limit(device, limit),
    }
    process.trace_writer.refresh();
}

fn device(number: u32) -> Option<DeviceId> {
    (number < DEVICES).then_some(DeviceId(number as u8))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramtrace_python_api() -> u32 {
    VERSION
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramtrace_python_state() -> u32 {
    run(|process| match process {
        None => 0,
        Some(process) => 1 | u32::from(process.trace_writer.path().is_some()) << 1,
    })
}

/// # Safety
/// `name` is null, or points to `length` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vramtrace_python_push(name: *const c_char, length: usize) {
    // SAFETY: `name` is null, or points to `length` bytes (see above).
    run(|process| mark::push(process, 0, &unsafe { text(name, length) }));
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramtrace_python_pop() {
    run(|process| mark::pop(process, 0));
}

/// # Safety
/// `name` is null, or points to `length` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vramtrace_python_start(name: *const c_char, length: usize) -> u64 {
    // SAFETY: `name` is null, or points to `length` bytes (see above).
    run(|process| mark::start(process, 0, &unsafe { text(name, length) }))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramtrace_python_end(range: u64) {
    run(|process| mark::end(process, range));
}

/// # Safety
/// `name` is null, or points to `length` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vramtrace_python_mark(name: *const c_char, length: usize) {
    // SAFETY: `name` is null, or points to `length` bytes (see above).
    run(|process| mark::moment(process, 0, &unsafe { text(name, length) }));
}

/// # Safety
/// `room` is null, or points to `size` writable bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vramtrace_python_usage(
    room: *mut c_char,
    size: usize,
    sites: u32,
) -> usize {
    run(|process| {
        let usage = python_usage::as_json(process, sites as usize);
        // SAFETY: `room` is null, or has `size` writable bytes (see above).
        unsafe { give(usage.as_bytes(), room, size) }
    })
}

/// # Safety
/// `room` is null, or points to `size` writable bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vramtrace_python_trace(room: *mut c_char, size: usize) -> usize {
    run(|process| {
        let Some(process) = process else { return 0 };
        process.trace_writer.refresh();
        process.trace_writer.write_now(process);
        let Some(path) = process.trace_writer.path() else { return 0 };
        // SAFETY: `room` is null, or has `size` writable bytes (see above).
        unsafe { give(path.as_os_str().as_bytes(), room, size) }
    })
}

/// # Safety
/// `before` points to two writable words.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vramtrace_python_limit(
    number: u32,
    bytes: u64,
    before: Out<[u64; 2]>,
) -> i32 {
    let Some(device) = device(number) else { return 2 };
    run(|process| {
        // A cap may be set before the driver is used.
        let process = process.unwrap_or_else(state::current);
        before_call::apply_orders(process);
        let limit = process.cap.limit(device);
        if limit.is_some_and(|limit| limit <= bytes) {
            return 1;
        }
        before.set([limit.unwrap_or(NO_CAP), bytes]);
        change_limit(process, device, Some(bytes));
        0
    })
}

/// # Safety
/// `before` points to the two words that `vramtrace_python_limit` wrote.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vramtrace_python_unlimit(number: u32, before: In<[u64; 2]>) {
    let Some(device) = device(number) else { return };
    run(|process| {
        let Some(process) = process else { return };
        before_call::apply_orders(process);
        let Some([limit, lowered]) = before.get() else { return };
        if process.cap.limit(device) == Some(lowered) {
            change_limit(process, device, Some(limit).filter(|limit| *limit != NO_CAP));
        }
    });
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramtrace_python_peak_begin(number: u32) -> u64 {
    let device = device(number);
    run(|process| {
        process.zip(device).map_or(0, |(process, device)| process.ledger.begin_peak(device))
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vramtrace_python_peak_end(number: u32, before: u64) -> u64 {
    let device = device(number);
    run(|process| {
        process.zip(device).map_or(0, |(process, device)| process.ledger.end_peak(device, before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_room() {
        let name = "vorwärts";
        // SAFETY: that many bytes.
        assert_eq!(unsafe { text(name.as_ptr().cast(), name.len()) }, name);
        // SAFETY: null.
        assert_eq!(unsafe { text(core::ptr::null(), 7) }, "");
        let mut room = [0u8; 4];
        // SAFETY: room for 4.
        assert_eq!(unsafe { give(b"abcdef", room.as_mut_ptr().cast(), 4) }, 6);
        assert_eq!(&room, b"abcd");
        // SAFETY: none.
        assert_eq!(unsafe { give(b"abc", core::ptr::null_mut(), 0) }, 3);
        assert!(device(63).is_some() && device(64).is_none());
    }

    #[test]
    fn a_lower_cap_and_back() {
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
