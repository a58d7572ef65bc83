//! PyTorch's blocks: parts of the segments that its caching allocator requested from the driver. Only
//! the segments count in sums and under the cap, not the blocks.
//!
//! Called with PyTorch's lock for the device held: see [`crate::hooks::families::torch_calls`]. A device's calls
//! come one at a time, and a block's address is not given out again before the call about its free
//! has returned, so the file has them in their true order.
//!
//! * Blocks are in the ledger under a separate space. Checkpoints carry them. A block that is allocated
//!   again while it is live ends first; the free of an unknown block is counted and not recorded.
//! * A block's site carries its stream, and as its pool the number of the capture that it belongs to
//!   ([`crate::model::torch_lanes`]). Its record carries the bytes that were requested ([`torch_requests`]).
//! * A program makes millions of blocks, so the path touches little code and memory: the site is cached
//!   for each device, nothing is summed, the live page is updated at the next driver call, and cache
//!   lines that will be written are prefetched.
//! * The cache's own totals are recorded by the first call after a new window or checkpoint begins:
//!   only inside a call do they equal the sum of the blocks.
//! * Stacks are Python frames where Python runs and native ones elsewhere (backward, NCCL); both with
//!   `VRAMTRACE_TENSORS=full`.

use crate::driver::api::Api;
use crate::driver::depth;
use crate::hooks::call::after_call;
use crate::hooks::call::request::site;
use crate::hooks::families::torch_calls::{find, index};
use crate::hooks::families::{torch_requests, torch_samples, torch_streams};
use crate::hooks::process::oom_sources::sources;
use crate::hooks::process::stacks;
use crate::hooks::process::state::{self, Process};
use crate::hooks::process::timed;
use crate::model::contexts::Target;
use crate::model::ledger::Entry;
use crate::model::torch_lanes::{self, Lane};
use crate::model::torch_totals::CacheTotals;
use crate::runtime::panic_boundary;
use crate::runtime::rare::rare;
use crate::runtime::{clock, errno};
use std::ffi::c_void;
use vramtrace_format::stackspec::Tensors;
use vramtrace_format::{Alloc, ContextId, DeviceId, Event, Kind, SiteId, Space};

/// The type of PyTorch's `Device`.
pub(super) const CUDA: u8 = 1;

/// PyTorch's `Device`, of which only the low 16 bits are set: the type, and the index, which is below
/// zero for "the current one". The current device is not known here, as the driver may not be called.
/// `None`: not a CUDA device, or not known.
fn device(word: u64) -> Option<DeviceId> {
    let [kind, index, ..] = word.to_le_bytes();
    let id = if (index as i8) < 0 { DeviceId::UNKNOWN } else { DeviceId(index) };
    (kind == CUDA).then_some(id)
}

/// The function, by its [`index`], and the part of the device that is set, in one register: all arguments are in registers.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Words(u64);

impl Words {
    /// Without a device.
    const fn of(api: Api) -> Words {
        Words((index(api) as u64) << 16)
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

// The code of a block is together, from the begin of a line of the cache: the program's own work lies between two calls.
#[cfg(not(miri))]
core::arch::global_asm!(
    ".pushsection .text.reported,\"ax\",@progbits",
    ".balign 64",
    ".popsection"
);

/// The functions by which a block is reported: all that is done about nearly all calls of this family.
macro_rules! block_reported {
    ($($name:ident = $api:expr;)*) => {$(
        /// Goes on to the real function, after a panic from [`landing`].
        ///
        /// # Safety
        /// The program's own call, with its arguments.
        #[unsafe(naked)]
        #[cfg_attr(not(miri), unsafe(link_section = ".text.reported"))]
        pub unsafe extern "C-unwind" fn $name(
            at: *mut c_void,
            size: i64,
            allocated: usize,
            reserved: usize,
            device: u64,
            caller: usize,
        ) {
            body!(Words::of($api).0)
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
macro_rules! body {
    ($words:expr) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            // Relative to here, four bytes.
            ".cfi_personality 0x1b, {personality}",
            ".cfi_lsda 0x1b, {landing}",
            "push r9",
            "push {words}",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "push rdi",
            ".cfi_adjust_cfa_offset 56",
            "movzx r8d, r8w",
            "or r8d, {words}",
            "call {reported}",
            "pop rdi",
            "pop rsi",
            "pop rdx",
            "pop rcx",
            "pop r8",
            "add rsp, 16",
            ".cfi_adjust_cfa_offset -56",
            "test rax, rax",
            "je 2f",
            "jmp rax",
            "2:",
            "ret",
            // Not reached: the linker drops what only a table of the unwinder refers to.
            "jmp {landing}",
            ".cfi_endproc",
            words = const $words,
            personality = sym panic_boundary::personality,
            landing = sym landing,
            reported = sym reported,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! body {
    ($words:expr) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            // Relative to here, four bytes.
            ".cfi_personality 0x1b, {personality}",
            ".cfi_lsda 0x1b, {landing}",
            "stp x29, x30, [sp, -80]!",
            ".cfi_adjust_cfa_offset 80",
            ".cfi_rel_offset x29, 0",
            ".cfi_rel_offset x30, 8",
            "mov x29, sp",
            "mov w9, {words}",
            "stp x0, x1, [sp, 16]",
            "stp x2, x3, [sp, 32]",
            "stp x4, x5, [sp, 48]",
            "str x9, [sp, 64]",
            "and x4, x4, 0xffff",
            "orr x4, x4, x9",
            "bl {reported}",
            "mov x16, x0",
            "ldp x0, x1, [sp, 16]",
            "ldp x2, x3, [sp, 32]",
            "ldr x4, [sp, 48]",
            "ldp x29, x30, [sp], 80",
            ".cfi_adjust_cfa_offset -80",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "ret",
            // Not reached: as above.
            "b {landing}",
            ".cfi_endproc",
            words = const $words,
            personality = sym panic_boundary::personality,
            landing = sym landing,
            reported = sym reported,
        )
    };
}

block_reported! {
    block_reported = Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE;
    block_reported_signed = Api::_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE;
}

/// Where a panic of [`reported`] ends: in the frame of the function above after its call, with the exception in the second
/// result register.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn landing() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa_offset 64",
        "endbr64",
        "mov rdi, [rsp + 40]",
        "mov rsi, rdx",
        "mov rdx, [rsp + 48]",
        "call {panicked}",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop r8",
        "add rsp, 16",
        ".cfi_def_cfa_offset 8",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        ".cfi_endproc",
        panicked = sym panicked,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn landing() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa_offset 80",
        ".cfi_offset x29, -80",
        ".cfi_offset x30, -72",
        // `bti j`: the unwinder gets here by a branch.
        "hint 36",
        "ldr x0, [sp, 64]",
        "ldr x2, [sp, 56]",
        "bl {panicked}",
        "mov x16, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x2, x3, [sp, 32]",
        "ldr x4, [sp, 48]",
        "ldp x29, x30, [sp], 80",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "ret",
        ".cfi_endproc",
        panicked = sym panicked,
    )
}

/// All blocks are recorded, by calls whose function is known: nearly always. The rest is [`uncommon`].
#[cfg_attr(not(miri), unsafe(link_section = ".text.reported"))]
extern "C-unwind" fn reported(
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    words: Words,
    caller: usize,
) -> usize {
    let reports = &state::hot().reports;
    let (Some(real), Some(process)) = (reports.real(words.index(), caller), reports.recorder())
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
    match device(words.0) {
        Some(device) => {
            let totals = CacheTotals { allocated: allocated as u64, reserved: reserved as u64 };
            recorded(process, words.api(), device, (at as u64, size), totals);
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
        memory(process, (api, caller), at, size, allocated, reserved, word);
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
extern "C" fn panicked(words: Words, exception: *mut c_void, caller: usize) -> usize {
    let (api, kept) = (words.api(), errno::get());
    // SAFETY: the boundary has caught it.
    depth::outermost(|| state::panicked(api, unsafe { panic_boundary::payload(exception) }));
    errno::set(kept);
    find(api, caller)
}

/// A block was allocated (`size` above 0) or freed (below). The totals are the cache's own, after
/// it.
fn memory(
    p: &'static Process,
    (api, caller): (Api, usize),
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
) {
    let Some(device) = device(word).filter(|_| p.config.tensors != Tensors::Off) else {
        return rare();
    };
    let key = at as u64;
    let totals = CacheTotals { allocated: allocated as u64, reserved: reserved as u64 };
    if let Some(sampling) = &p.block_sampling {
        rare();
        return torch_samples::memory(p, sampling, (api, caller), device, (key, size), totals);
    }
    if !p.usage.is_to_panic() {
        state::hot().reports.record(p, p.config.stacks.wanted());
    }
    recorded(p, api, device, (key, size), totals);
}

/// The same where all blocks are recorded.
#[inline(always)]
fn recorded(
    p: &'static Process,
    api: Api,
    device: DeviceId,
    (key, size): (u64, i64),
    totals: CacheTotals,
) {
    if key == 0 || size == 0 || p.trace_writer.is_silent() {
        rare();
    } else if size > 0 {
        block_allocated(p, api, device, key, size as u64, 0);
    } else if !block_freed(p, key) {
        // A block from before a fork, or one that PyTorch restored from a graph's checkpoint.
        rare();
        p.torch_totals.unknown_free();
    }
    report(p, api, device, totals);
}

/// Stores the totals that the call reports, and records them if that is due: at the first call of a device it is.
#[inline(always)]
pub(super) fn report(p: &'static Process, api: Api, device: DeviceId, totals: CacheTotals) -> bool {
    let is_due = p.torch_totals.update(device, totals);
    if is_due {
        totals_due(p, api, device, totals);
    }
    is_due
}

#[cold]
#[inline(never)]
fn totals_due(p: &'static Process, api: Api, device: DeviceId, totals: CacheTotals) {
    p.usage.count(api);
    record_totals(p, device, totals);
}

#[cold]
#[inline(never)]
pub(super) fn record_totals(p: &'static Process, device: DeviceId, totals: CacheTotals) {
    let CacheTotals { allocated, reserved } = totals;
    p.trace_writer.record(&Event::CacheState { device, allocated, reserved });
}

/// Enters a new block in the ledger, and records it. `sampled`: as [`Entry::sampled`]. Of a sample no request is recorded.
#[inline(never)]
#[cfg_attr(not(miri), unsafe(link_section = ".text.reported"))]
pub(super) fn block_allocated(
    p: &'static Process,
    api: Api,
    device: DeviceId,
    key: u64,
    size: u64,
    sampled: u8,
) {
    // Loads the line while the stack is captured.
    p.ledger.prefetch_block(key);
    p.trace_writer.prefetch();
    let lane = torch_lanes::current(device, || p.stream_captures.any());
    let entry = Entry {
        site: match p.torch_totals.site(device, api as u16, lane) {
            Some(site) => site,
            None => block_site(p, api, device, lane.stream, lane.capture),
        },
        stack: stacks::block_stack(p),
        time_ns: p.trace_writer.now_ns(),
        sampled,
        ..Entry::new(Kind::Block, key, size, device)
    };
    if sampled != 0 {
        return sample_allocated(p, entry);
    }
    let requested = torch_requests::of_block(p, device, size);
    p.ledger.insert_block(&p.trace_writer, entry);
    p.trace_writer.record_block(entry.time_ns, &Alloc { requested, ..entry.alloc() });
}

#[cold]
#[inline(never)]
fn sample_allocated(p: &'static Process, entry: Entry) {
    p.ledger.insert_block(&p.trace_writer, entry);
    let event = Event::SampledAlloc { rate: entry.rate(), alloc: entry.alloc() };
    p.trace_writer.record_at(entry.time_ns, &event);
}

/// The site of the blocks of a lane.
#[cold]
#[inline(never)]
fn block_site(
    p: &'static Process,
    api: Api,
    device: DeviceId,
    stream: u64,
    capture: u64,
) -> SiteId {
    p.usage.count(api);
    torch_streams::note_recorded(p);
    let target = Target { context: ContextId(0), device };
    let pool = p.torch_captures.pool(capture);
    let site = site(p, api, Some(Kind::Block), target, pool, stream);
    p.torch_totals.set_site(device, api as u16, Lane { stream, capture }, site);
    site
}

/// Removes a freed block from the ledger, and records its end. False: the ledger does not have it.
#[inline(never)]
#[cfg_attr(not(miri), unsafe(link_section = ".text.reported"))]
pub(super) fn block_freed(p: &'static Process, key: u64) -> bool {
    if !p.ledger.remove_block(&p.trace_writer, key) {
        return false;
    }
    p.trace_writer.record_free(p.trace_writer.now_ns(), key, Space::Block, SiteId(0));
    true
}

/// The caching allocator is out of memory: it has freed its unused segments, asked the driver again, and
/// gives up.
pub fn out_of_memory(
    p: &'static Process,
    api: Api,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
) {
    let Some(device) = device(word) else { return };
    let (allocated, reserved) = (allocated as u64, reserved as u64);
    let (size, stack) = (size.max(0) as u64, stacks::stack(p));
    crate::model::torch_requests::forget();
    if p.config.tensors != Tensors::Off {
        p.usage.count(api);
        report(p, api, device, CacheTotals { allocated, reserved });
        p.trace_writer.record(&Event::CacheOom { device, size, allocated, reserved, stack });
    }
    p.oom.gave_up(sources(p), device, size, stack, CacheTotals { allocated, reserved });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices() {
        assert_eq!(device(0x0001), Some(DeviceId(0)));
        assert_eq!(device(0x0701), Some(DeviceId(7)));
        assert_eq!(device(0xdead_beef_1234_0301), Some(DeviceId(3)));
        assert_eq!(device(0xff01), Some(DeviceId::UNKNOWN));
        for other in [0x0000, 0xff00, 0x0006, 0xffff_ffff_ffff_ff00, 0x0114] {
            assert_eq!(device(other), None, "{other:#x}");
        }
    }
}
