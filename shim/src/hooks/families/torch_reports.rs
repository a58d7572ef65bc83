//! The call by which PyTorch's allocator reports a block ([`crate::hooks::families::torch_calls`]), from its entry to its end.

use crate::driver::api::Api;
use crate::driver::depth;
use crate::hooks::call::after_call;
use crate::hooks::families::torch_calls::{find, index};
use crate::hooks::families::{torch, torch_samples};
use crate::hooks::process::state::{self, Process};
use crate::hooks::process::timed;
use crate::runtime::panic_boundary::{self, Outcome};
use crate::runtime::rare::rare;
use crate::runtime::{clock, errno};
use std::ffi::c_void;

/// A block is reported, by nearly all calls of this family. Returns the real function; 0: there is none.
///
/// # Safety
/// The program's own call, with its arguments.
#[inline(always)]
pub unsafe fn report(
    api: Api,
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
    caller: usize,
) -> usize {
    // SAFETY: as `reported`, with its arguments.
    let outcome = unsafe { shielded(at, size, allocated, reserved, Words::of(api, word), caller) };
    match outcome.exception.is_null() {
        true => outcome.value,
        false => panicked(api, outcome.exception, caller),
    }
}

/// The function, and the part of the device that is set, in one register: all arguments are in registers.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Words(u64);

impl Words {
    fn of(api: Api, device: u64) -> Words {
        Words((api as u64) << 16 | u64::from(device as u16))
    }

    #[inline(always)]
    fn api(self) -> Api {
        const OTHER: u64 = Api::_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE as u64;
        match self.0 >> 16 {
            OTHER => Api::_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE,
            _ => Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE,
        }
    }
}

#[unsafe(naked)]
unsafe extern "C-unwind" fn shielded(
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    words: Words,
    caller: usize,
) -> Outcome {
    panic_boundary::shielded!(reported)
}

extern "C-unwind" fn reported(
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    words: Words,
    caller: usize,
) -> usize {
    let (api, word) = (words.api(), words.0);
    let reports = &state::hot().reports;
    // First, since the hook may ask which libraries call.
    let real = reports.real(index(api), caller).unwrap_or_else(|| find(api, caller));
    let (Some(process), Some(depth)) = (state::existing(), depth::enter()) else {
        rare();
        return real;
    };
    depth.settle();
    let errno = depth.errno();
    let kept = errno.get();
    let mut began = 0;
    if torch_samples::is_timed(api, caller, word).unwrap_or_else(|| depth.is_sampled()) {
        rare();
        began = clock::mono_ns();
        if torch_samples::timed_passed(api, caller, at, size, allocated, reserved, word) {
            began = after_timed_pass(process, began);
        }
    }
    if began != PASSED {
        process.usage.test_panic(api);
        torch::memory(process, (api, caller), at, size, allocated, reserved, word);
        after_call::after_block(process);
        if began != 0 {
            timed::ended(process, began, 0);
        }
    }
    errno.set(kept);
    depth.leave();
    real
}

/// When a call began that is done.
const PASSED: u64 = u64::MAX;

/// The call took as long as those that pass untimed. These do not time themselves, nor do work that is due: that is timed by
/// itself.
#[cold]
#[inline(never)]
fn after_timed_pass(process: &'static Process, began_ns: u64) -> u64 {
    timed::add(process, timed::span_ns(began_ns));
    let began_ns = clock::mono_ns();
    if after_call::after_block(process) {
        timed::work_ended(process, began_ns);
    }
    PASSED
}

/// A panic has left [`reported`]. Returns what that would have.
#[cold]
fn panicked(api: Api, exception: *mut c_void, caller: usize) -> usize {
    let kept = errno::get();
    // SAFETY: the boundary has caught it.
    depth::outermost(|| state::panicked(api, unsafe { panic_boundary::payload(exception) }));
    errno::set(kept);
    find(api, caller)
}
