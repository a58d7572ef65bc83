//! The call by which PyTorch's allocator reports a block ([`crate::hooks::families::torch_calls`]), from its entry to its end.

use crate::driver::api::Api;
use crate::driver::depth;
use crate::hooks::call::after_call;
use crate::hooks::families::torch_calls::{find, index};
use crate::hooks::families::{torch, torch_samples};
use crate::hooks::process::state::{self, Process};
use crate::hooks::process::timed;
use crate::model::torch_totals::CacheTotals;
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

/// The function, by its [`index`], and the part of the device that is set, in one register: all arguments are in registers.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Words(u64);

impl Words {
    fn of(api: Api, device: u64) -> Words {
        Words((index(api) as u64) << 16 | u64::from(device as u16))
    }

    #[inline(always)]
    fn index(self) -> usize {
        (self.0 >> 16) as usize
    }

    #[inline(always)]
    fn api(self) -> Api {
        match self.index() {
            0 => Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE,
            _ => Api::_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE,
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

/// All blocks are recorded, by calls whose function is known: nearly always. The rest is [`uncommon`].
#[cfg_attr(not(miri), unsafe(link_section = ".text.reported.0"))]
extern "C-unwind" fn reported(
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    words: Words,
    caller: usize,
) -> usize {
    let reports = &state::hot().reports;
    let (Some(real), Some(process)) =
        (reports.real(words.index(), caller), reports.recorder())
    else {
        return uncommon(at, size, allocated, reserved, words, caller);
    };
    let Some(depth) = depth::enter() else {
        rare();
        return real;
    };
    depth.settle();
    let errno = depth.errno();
    let kept = errno.get();
    let began = if depth.is_sampled() { began() } else { 0 };
    match torch::device(words.0) {
        Some(device) => {
            let totals = CacheTotals { allocated: allocated as u64, reserved: reserved as u64 };
            torch::recorded(process, words.api(), device, (at as u64, size), totals);
        }
        None => rare(),
    }
    after_call::after_block(process);
    if began != 0 {
        timed::ended(process, began, 0);
    }
    errno.set(kept);
    depth.leave();
    real
}

#[cold]
#[inline(never)]
fn began() -> u64 {
    clock::mono_ns()
}

/// The first call, those where samples are recorded or none, and of other libraries than the first.
#[cold]
#[inline(never)]
extern "C-unwind" fn uncommon(
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
