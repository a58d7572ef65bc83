//! Kernel launches. Only a function's first launch is handled here: it loads the function's code and
//! takes the local memory and the heap that the function needs. The export passes later ones straight
//! to the driver after one look at a set without locks ([`passed`]; where that is not enough, [`is_known`]).
//!
//! The bytes that a first launch takes are split by cause. Local memory: the function's need per thread
//! above the context's largest so far, times the threads that can be resident. A heap: its limit and 2
//! MiB. The rest is code.

use super::prelude::*;
use crate::driver::pointers;
use crate::hooks::call::attribution::TrackedCall;
use crate::hooks::process::target::current_context;
use crate::hooks::process::{state, texts};
use crate::model::attribution::driver_internal::DriverActivity;
use core::ffi::{CStr, c_void};
use std::ptr::null;
use vramtrace_format::Cause;

const CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: u32 = 3;
/// What the driver takes for a heap beside its size.
const HEAP_BESIDE: u64 = 2 << 20;

/// `function` is launched for the first time.
pub fn first(call: Call<impl Row>, function: Function) -> CUresult {
    let (p, target) = (call.p, current_target(call.p));
    let watch = TrackedCall::start(p, target, DriverActivity::Launching);
    let result = call.forward();
    if result == CUDA_SUCCESS {
        let kernels = &p.launched_kernels;
        kernels.launched(key(p, function as usize));
        if let Some(real) = pointers::known(call.api()) {
            let are_several = || kernels.are_contexts_several();
            let launches = &state::hot().launches;
            launches.set(call.api(), real as usize, kernels.launched.in_memory(), are_several);
        }
    }
    let name = || name_of(p, function as u64);
    watch.end_in_parts(call, target, name, |bytes| parts(p, target, function, bytes));
    result
}

/// Splits `bytes` that a first launch took by cause: local memory by the function's need above the
/// context's; the heap where the bytes are exactly its size; the rest is code.
fn parts(p: &'static Process, target: Target, function: Function, bytes: u64) -> [(Cause, u64); 2] {
    let mut taken = 0;
    let local = local_size(p, target, function);
    let held = p.launched_kernels.local(target.context, || limit(CU_LIMIT_STACK_SIZE).unwrap_or(0));
    if local > held {
        let wanted = resident_threads(target).saturating_mul(local - held);
        taken = wanted.min(bytes);
        if taken > 0 {
            p.launched_kernels.set_local(target.context, local);
        }
    }
    let heap = limit(CU_LIMIT_MALLOC_HEAP_SIZE).unwrap_or(0);
    let is_heap = heap > 0 && bytes - taken == heap + HEAP_BESIDE;
    let rest = if is_heap { Cause::Heap } else { Cause::Modules };
    [(Cause::LocalMemory, taken), (rest, bytes - taken)]
}

/// Bytes of local memory that one thread of the function needs; 0: not known.
fn local_size(p: &'static Process, target: Target, function: Function) -> u64 {
    let (which, device) = (CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, target.device.0.into());
    // The program has launched this handle successfully, so it is a live function, or a live
    // kernel where it is queried as one.
    let bytes = answer(0, |bytes| match p.launched_kernels.is_kernel(function as u64) {
        // SAFETY: see above.
        true => Some(unsafe { driver().kernel_get_attribute?(bytes, which, function, device) }),
        // SAFETY: see above.
        false => Some(unsafe { driver().func_get_attribute?(bytes, which, function) }),
    });
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
}

/// The number of the name of a function or kernel.
pub(in crate::hooks) fn name_of(p: &'static Process, function: u64) -> u32 {
    let ask = match p.launched_kernels.is_kernel(function) {
        true => driver().kernel_get_name,
        false => driver().func_get_name,
    };
    // SAFETY: the program has launched this handle, so it is a live function or kernel.
    let name = answer(null(), |name| Some(unsafe { ask?(name, function as Function) }));
    let Some(name) = name.filter(|name| !name.is_null()) else { return 0 };
    // SAFETY: the driver's text, which lives as long as the function.
    texts::c_text_id(&p.names, &p.trace_writer, unsafe { CStr::from_ptr(name) })
}

/// A limit of the current context.
pub(in crate::hooks) fn limit(which: u32) -> Option<u64> {
    answer(0, |value| Some(driver().ctx_get_limit?(value, which))).map(|value| value as u64)
}

/// Threads that can be resident on the device: the driver holds local memory for each of them.
pub(in crate::hooks) fn resident_threads(target: Target) -> u64 {
    let ordinal = i32::from(target.device.0);
    let attribute = |which| {
        let value = answer(0, |value| Some(driver().device_get_attribute?(value, which, ordinal)));
        value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
    };
    attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        .saturating_mul(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR))
}

/// A function's key in the set of launched ones.
#[inline(always)]
pub fn key(p: &Process, function: usize) -> usize {
    p.launched_kernels.key(function, current_context_key)
}

/// The calling thread's context as a number, to be combined with a function's handle.
#[cold]
fn current_context_key() -> usize {
    // Handles of functions and contexts have similar addresses; the rotation keeps sums of them
    // distinct.
    (current_context() as usize).rotate_left(32)
}

/// A repeated launch, which runs nothing else: returns the real function.
#[inline(always)]
pub fn passed(api: Api, function: *mut c_void) -> Option<usize> {
    state::hot().launches.real(api, function as usize)
}

/// Whether this function was launched before in this context.
#[inline(always)]
pub fn is_known(function: *mut c_void) -> bool {
    state::existing().is_some_and(|p| p.launched_kernels.was_launched(key(p, function as usize)))
}
