//! Where PyTorch reports a block: the exports by whose name its call arrives, and the real function after them. What is done
//! about a block: [`crate::hooks::families::torch`].

use crate::driver::api::Api;
use crate::driver::depth;
use crate::hooks::call::after_call;
use crate::hooks::call::handler_exits::deferred;
use crate::hooks::families::torch::{Report, device, memory, recorded};
use crate::hooks::families::torch_calls::{find, index};
use crate::hooks::families::torch_samples;
use crate::hooks::process::state::{self, Process};
use crate::hooks::process::timed;
use crate::runtime::panic_boundary;
use crate::runtime::rare::rare;
use crate::runtime::{clock, errno};
use std::ffi::c_void;

/// The place of a call, and in its uppermost byte, which addresses of a program do not have, the function by its [`index`]:
/// all arguments are in registers.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Place(usize);

const FUNCTION: u32 = 56;

impl Place {
    #[inline(always)]
    pub fn new(api: Api, caller: usize) -> Place {
        Place(index(api) << FUNCTION | caller)
    }

    #[inline(always)]
    fn index(self) -> usize {
        self.0 >> FUNCTION
    }

    #[inline(always)]
    fn caller(self) -> usize {
        self.0 & ((1 << FUNCTION) - 1)
    }

    #[inline(always)]
    fn api(self) -> Api {
        match self.index() {
            0 => Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE,
            _ => Api::_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE,
        }
    }
}

/// A call that was not passed (`torch_samples.rs`).
///
/// # Safety
/// The program's own call, with its arguments.
#[inline(never)]
pub unsafe extern "C-unwind" fn not_passed(
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: u64,
    place: Place,
) {
    match depth::is_plain() {
        // SAFETY: the program's own call, with its arguments.
        true => unsafe { block_reported(at, size, allocated, reserved, device, place) },
        // SAFETY: the same.
        false => unsafe { not_plain(at, size, allocated, reserved, device, place) },
    }
}

#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn not_plain(
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: u64,
    place: Place,
) {
    // SAFETY: the program's own call, with its arguments.
    deferred(|| unsafe { block_reported(at, size, allocated, reserved, device, place) })
}

// The code of a block is together, from the begin of a line of the cache: the program's own work lies between two calls.
#[cfg(not(miri))]
core::arch::global_asm!(
    ".pushsection .text.reported,\"ax\",@progbits",
    ".balign 64",
    ".popsection"
);

/// All that is done about nearly all blocks that are recorded. Goes on to the real function, also after a panic.
///
/// # Safety
/// The program's own call, with its arguments.
#[unsafe(naked)]
// The landing pad has a name, and stands once in the library, as this function does.
#[allow(named_asm_labels)]
#[cfg_attr(not(miri), unsafe(link_section = ".text.reported"))]
unsafe extern "C-unwind" fn block_reported(
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: u64,
    place: Place,
) {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        // Relative to here, four bytes.
        ".cfi_personality 0x1b, {personality}",
        ".cfi_lsda 0x1b, .Llanding_of_block",
        "push r9",
        "push r8",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        // The stack is aligned at a call.
        "push rdi",
        ".cfi_adjust_cfa_offset 56",
        "call {reported}",
        "3:",
        "pop rdi",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop r8",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -56",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        // Here a panic of `reported` ends, with the exception in the second result register.
        ".Llanding_of_block:",
        ".cfi_adjust_cfa_offset 56",
        "endbr64",
        "mov rdi, [rsp + 48]",
        "mov rsi, rdx",
        "call {panicked}",
        "jmp 3b",
        ".cfi_endproc",
        personality = sym panic_boundary::personality,
        panicked = sym panicked,
        reported = sym reported,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        // Relative to here, four bytes.
        ".cfi_personality 0x1b, {personality}",
        ".cfi_lsda 0x1b, .Llanding_of_block",
        "stp x29, x30, [sp, -64]!",
        ".cfi_adjust_cfa_offset 64",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "mov x29, sp",
        "stp x0, x1, [sp, 16]",
        "stp x2, x3, [sp, 32]",
        "stp x4, x5, [sp, 48]",
        "bl {reported}",
        "3:",
        "mov x16, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x2, x3, [sp, 32]",
        "ldr x4, [sp, 48]",
        "ldp x29, x30, [sp], 64",
        ".cfi_adjust_cfa_offset -64",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "ret",
        // As above.
        ".Llanding_of_block:",
        ".cfi_adjust_cfa_offset 64",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        // `bti j`: the unwinder gets here by a branch.
        "hint 36",
        "ldr x0, [sp, 56]",
        "bl {panicked}",
        "b 3b",
        ".cfi_endproc",
        personality = sym panic_boundary::personality,
        panicked = sym panicked,
        reported = sym reported,
    );
}

/// All blocks are recorded, by calls whose function is known: nearly always. The rest is [`uncommon`].
#[cfg_attr(not(miri), unsafe(link_section = ".text.reported"))]
extern "C-unwind" fn reported(
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
    place: Place,
) -> usize {
    let reports = &state::hot().reports;
    let real = reports.real(place.index(), place.caller());
    let (Some(real), Some(process)) = (real, reports.recorder()) else {
        return uncommon(at, size, allocated, reserved, word, place);
    };
    let Some(depth) = depth::enter() else {
        rare();
        return real;
    };
    depth.settle();
    let errno = depth.errno();
    let kept = errno.get();
    let began = if depth.is_sampled() { began() } else { 0 };
    match device(word) {
        Some(device) => {
            let report = Report { at, size, allocated, reserved, device: word };
            recorded(process, place.api(), device, (at as u64, size), report.totals());
        }
        None => rare(),
    }
    after_call::after_block(process);
    if began != 0 {
        timed::ended(process, began);
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
    word: u64,
    place: Place,
) -> usize {
    let (api, caller) = (place.api(), place.caller());
    let report = Report { at, size, allocated, reserved, device: word };
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
        if torch_samples::timed_passed(api, caller, report) {
            began = after_timed_pass(process, began);
        }
    }
    if began != PASSED {
        process.usage.test_panic(api);
        memory(process, (api, caller), report);
        after_call::after_block(process);
        if began != 0 {
            timed::ended(process, began);
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
extern "C" fn panicked(place: Place, exception: *mut c_void) -> usize {
    let (api, kept) = (place.api(), errno::get());
    // SAFETY: the boundary has caught it.
    depth::outermost(|| state::panicked(api.name(), unsafe { panic_boundary::payload(exception) }));
    errno::set(kept);
    find(api, place.caller())
}
