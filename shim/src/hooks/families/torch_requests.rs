//! The function by which PyTorch's allocator asks how to round a request up ([`crate::model::torch_requests`]). From PyTorch
//! 2.10 on it is in libc10.so, before that in libc10_cuda.so itself; both call it through the linkage table, from `malloc`
//! alone. This library interposes both and returns the real function's answer.
//!
//! As in [`crate::hooks::families::torch_calls`] PyTorch's lock is held: nothing here waits for the GIL, and nothing calls the
//! driver. The loader is asked only where the caller's own library cannot be found.
//!
//! Where samples of blocks are recorded nothing reads the requests: the calls are [`passed`].

use crate::driver::api::Api;
use crate::hooks::call::handler_exits::deferred;
use crate::hooks::families::torch_calls;
use crate::hooks::process::state::{self, Process};
use crate::model::torch_requests::{self, Request};
use crate::runtime::log::{self, Once};
use std::sync::atomic::Ordering;
use vramtrace_format::block_size::MIN_BLOCK;
use vramtrace_format::{BLOCK_REQUESTS, Definition, DeviceId};

/// That of libc10_cuda.so.
pub const DIVISIONS_OF_CUDA: Api =
    Api::_ZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig24roundup_power2_divisionsEm;

/// The real function of a call of which nothing is noted.
#[inline(always)]
pub fn passed(api: Api, caller: usize) -> Option<usize> {
    let allocator = &state::hot().allocator;
    let function = torch_calls::index(api);
    allocator.calls(function, caller).then(|| allocator.real(function))
}

/// `static size_t roundup_power2_divisions(size_t)`: the divisions for a request of this size. Those of the real function.
#[inline(always)]
pub fn divisions(api: Api, requested: u64, caller: usize) -> u64 {
    let known = torch_calls::known(api, caller);
    let Some(real) = known.or_else(|| deferred(|| find(api, caller))) else { return 0 };
    // SAFETY: the real function of this name, with the program's own argument.
    let real = unsafe { core::mem::transmute::<usize, extern "C-unwind" fn(u64) -> u64>(real) };
    let divisions = real(requested);
    torch_requests::note(requested, divisions);
    divisions
}

#[cold]
#[inline(never)]
fn find(api: Api, caller: usize) -> Option<usize> {
    let real = torch_calls::real(api, caller);
    if real.is_none() && Once::RoundedAsByDefault.begins() {
        log::line(format_args!(
            "roundup_power2_divisions was called, and no library has it: PyTorch's requests are rounded as by default"
        ));
    }
    real
}

/// What the record of a new block of this size says of its request ([`vramtrace_format::Alloc::requested`]).
#[inline(always)]
pub fn of_block(p: &'static Process, device: DeviceId, size: u64) -> Option<u64> {
    let is_noted = p.torch_totals.are_requests_noted(device).load(Ordering::Relaxed);
    let request = torch_requests::of_block(size);
    if request == Request::Unknown {
        // Older versions name no requests, and below 512 bytes none does.
        return (is_noted && size != MIN_BLOCK).then_some(0);
    }
    if !is_noted && !note_recorded(p, device) {
        return None;
    }
    match request {
        Request::Part(bytes) => Some(bytes),
        Request::Whole | Request::Unknown => None,
    }
}

/// Notes in the trace, once for each device, that blocks have their requests. False: they have none where samples are recorded.
#[cold]
#[inline(never)]
fn note_recorded(p: &'static Process, device: DeviceId) -> bool {
    if p.block_sampling.is_some() {
        return false;
    }
    let value = "requested".into();
    let noted =
        p.trace_writer.try_define(&Definition::Setting { name: BLOCK_REQUESTS.into(), value });
    p.torch_totals.are_requests_noted(device).store(noted, Ordering::Relaxed);
    true
}
