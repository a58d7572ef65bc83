//! Kernel launches. Only a function's first launch is handled here: it loads the function's code and
//! takes the local memory and the heap that the function needs. The export passes later ones straight
//! to the driver after one look at a set without locks ([`passed`]; where that is not enough, [`is_known`]).
//!
//! The bytes that a first launch takes are split by cause. Local memory: the function's need per thread
//! above the context's largest so far, times the threads that can be resident. A heap: its limit and 2
//! MiB. The rest is code.

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::pointers;
use crate::hooks::call::attribution::TrackedCall;
use crate::hooks::call::hooks;
use crate::hooks::process::state;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::hooks::process::texts;
use crate::model::attribution::driver_internal::DriverActivity;
use crate::model::contexts::Target;
use crate::runtime::fallible::TryPush;
use core::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use vramtrace_format::Cause;

const CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: u32 = 3;
/// What the driver takes for a heap beside its size.
const HEAP_BESIDE: u64 = 2 << 20;

hooks! { p, call:
    kernel(
        function: Function,
        grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: Stream, params: *mut *mut c_void, extra: *mut *mut c_void
    ) = first(p, call.api, function, || call.forward());
    cooperative(
        function: Function,
        grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: Stream, params: *mut *mut c_void
    ) = first(p, call.api, function, || call.forward());
    kernel_ex(
        config: *const CUlaunchConfig,
        function: Function,
        params: *mut *mut c_void, extra: *mut *mut c_void
    ) = first(p, call.api, function, || call.forward());
    plain(function: Function) = first(p, call.api, function, || call.forward());
    grid(function: Function, width: i32, height: i32) =
        first(p, call.api, function, || call.forward());
    grid_async(function: Function, width: i32, height: i32, stream: Stream) =
        first(p, call.api, function, || call.forward());
}

/// `function` is launched for the first time.
fn first(
    p: &'static Process,
    api: Api,
    function: Function,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let target = current_target(p);
    let watch = TrackedCall::start(p, target, DriverActivity::Launching);
    let result = real();
    if result == CUDA_SUCCESS {
        p.launched_kernels.launched(key(p, function as usize));
        let kernels = &p.launched_kernels;
        if let Some(real) = pointers::known(api) {
            let are_several = || kernels.are_contexts_several();
            let launches = &state::hot().launches;
            launches.set(api, real as usize, kernels.all_launched(), are_several);
        }
    }
    let name = || name_of(p, function as u64);
    watch.end_in_parts(p, api, target, name, |bytes| parts(p, target, function, bytes));
    result
}

/// Splits `bytes` that a first launch took by cause: local memory by the function's need above the
/// context's; the heap where the bytes are exactly its size; the rest is code.
fn parts(p: &'static Process, target: Target, function: Function, bytes: u64) -> Vec<(Cause, u64)> {
    let mut parts = Vec::new();
    let mut left = bytes;
    let local = local_size(p, target, function);
    let held = p.launched_kernels.local(target.context, || limit(CU_LIMIT_STACK_SIZE).unwrap_or(0));
    if local > held {
        let wanted = resident_threads(target).saturating_mul(local - held);
        let taken = wanted.min(left);
        let _ = parts.try_push((Cause::LocalMemory, taken));
        left -= taken;
        if taken > 0 {
            p.launched_kernels.set_local(target.context, local);
        }
    }
    let heap = limit(CU_LIMIT_MALLOC_HEAP_SIZE).unwrap_or(0);
    if heap > 0 && left == heap + HEAP_BESIDE {
        let _ = parts.try_push((Cause::Heap, left));
    } else {
        let _ = parts.try_push((Cause::Modules, left));
    }
    parts
}

/// Bytes of local memory that one thread of the function needs; 0: not known.
fn local_size(p: &'static Process, target: Target, function: Function) -> u64 {
    let mut bytes = 0;
    let which = CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
    let is_kernel = p.launched_kernels.is_kernel(function as u64);
    // SAFETY: the program has launched this handle successfully, so it is a live function, or a live
    // kernel where it is queried as one.
    let result = inside(|| unsafe {
        match is_kernel {
            true => {
                let device = target.device.0.into();
                driver().kernel_get_attribute.map(|get| get(&mut bytes, which, function, device))
            }
            false => driver().func_get_attribute.map(|get| get(&mut bytes, which, function)),
        }
    });
    if result == Some(CUDA_SUCCESS) { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// The number of the name of a function or kernel.
pub(in crate::hooks) fn name_of(p: &'static Process, function: u64) -> u32 {
    let mut name: *const c_char = null();
    let is_kernel = p.launched_kernels.is_kernel(function);
    // SAFETY: the program has launched this handle, so it is a live function or kernel; `name` has room.
    let result = inside(|| unsafe {
        let ask = match is_kernel {
            true => driver().kernel_get_name,
            false => driver().func_get_name,
        };
        ask.map(|ask| ask(&mut name, function as Function))
    });
    if result != Some(CUDA_SUCCESS) || name.is_null() {
        return 0;
    }
    // SAFETY: the driver's text, which lives as long as the function.
    texts::c_text_id(&p.names, &p.trace_writer, unsafe { CStr::from_ptr(name) })
}

/// A limit of the current context.
pub(in crate::hooks) fn limit(which: CUlimit) -> Option<u64> {
    let mut value = 0;
    let result = inside(|| driver().ctx_get_limit.map(|get| get(&mut value, which)));
    (result == Some(CUDA_SUCCESS)).then_some(value as u64)
}

/// Threads that can be resident on the device: the driver holds local memory for each of them.
pub(in crate::hooks) fn resident_threads(target: Target) -> u64 {
    let ordinal = i32::from(target.device.0);
    let attribute = |which| {
        let mut value = 0;
        let get = driver().device_get_attribute;
        let result = inside(|| get.map(|get| get(&mut value, which, ordinal)));
        if result == Some(CUDA_SUCCESS) { u64::try_from(value).unwrap_or(0) } else { 0 }
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
    let mut context: Ctx = null_mut();
    let ask = || driver().ctx_get_current.map(|ask| ask(&mut context));
    let _: Option<CUresult> = inside(ask);
    // Handles of functions and contexts have similar addresses; the rotation keeps sums of them
    // distinct.
    (context as usize).rotate_left(32)
}

/// A repeated launch, which runs nothing else: returns the real function.
#[inline(always)]
pub fn passed(api: Api, function: *mut core::ffi::c_void) -> Option<usize> {
    state::hot().launches.real(api, function as usize)
}

/// Whether this function was launched before in this context.
#[inline(always)]
pub fn is_known(function: *mut core::ffi::c_void) -> bool {
    state::existing().is_some_and(|p| p.launched_kernels.was_launched(key(p, function as usize)))
}
