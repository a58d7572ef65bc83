//! Code that is loaded or unloaded: memory that no allocation call shows. (Lazy loading fills the
//! device at first use: when a function is asked for, or launched.)

use super::launch;
use super::prelude::*;
use crate::hooks::call::attribution::{TrackedCall, watched};
use crate::hooks::process::texts::c_text_id;
use crate::model::attribution::driver_internal::DriverActivity;
use core::ffi::c_char;

/// A call that loads code. `name`: the id of its name, if the driver has loaded it.
fn loading(call: Call<impl Row>, name: impl Fn() -> u32) -> CUresult {
    let target = current_target(call.p);
    let watch = TrackedCall::start(call.p, target, DriverActivity::Loading);
    let result = call.forward();
    watch.end_named(call, target, || if result == CUDA_SUCCESS { name() } else { 0 });
    result
}

pub fn load(call: Call<impl Row>) -> CUresult {
    watched(call, DriverActivity::Loading)
}

/// What is loaded has this name: a file's, a function's or a variable's.
pub fn load_named(call: Call<impl Row>, name: In<c_char>) -> CUresult {
    let p = call.p;
    loading(call, || name.text().map_or(0, |text| c_text_id(&p.names, &p.trace_writer, text)))
}

/// cuModuleUnload. The driver may reuse the handles of its functions.
pub fn unload(call: Call<impl Row>) -> CUresult {
    call.p.launched_kernels.forget();
    load(call)
}

pub fn library_unload(call: Call<impl Row>, library: Library) -> CUresult {
    call.p.launched_kernels.library_ended(library as u64);
    load(call)
}

pub fn func_load(call: Call<impl Row>, function: Function) -> CUresult {
    loading(call, || launch::name_of(call.p, function as u64))
}

/// cuLibraryGetKernel: returns a handle and loads nothing.
pub fn library_get_kernel(call: Call<impl Row>, kernel: Out<Kernel>, library: Library) -> CUresult {
    gave(call.forward(), kernel, |kernel| {
        call.p.launched_kernels.has_kernel(kernel as u64, library as u64);
    })
}

/// cuLibraryEnumerateKernels.
pub(crate) fn library_enumerate(
    call: Call<impl Row>,
    kernels: Out<Kernel>,
    room: u32,
    library: Library,
) -> CUresult {
    let result = call.forward();
    if result != CUDA_SUCCESS {
        return result;
    }
    // SAFETY: room for the answer; asked only after the driver has taken the same handle.
    let ask = |count: &mut u32| Some(unsafe { driver().library_get_kernel_count?(count, library) });
    let count = answer(0, ask).unwrap_or(0);
    for kernel in (0..room.min(count) as usize).map_while(|at| kernels.at(at).get()) {
        call.p.launched_kernels.has_kernel(kernel as u64, library as u64);
    }
    result
}

/// The kernel's function in the current context: its module is loaded here.
pub fn kernel_get_function(
    call: Call<impl Row>,
    function: Out<Function>,
    kernel: Kernel,
) -> CUresult {
    let p = call.p;
    if p.launched_kernels.loaded.has(launch::key(p, kernel as usize)) {
        return call.forward();
    }
    let name = || function.get().map_or(0, |function| launch::name_of(p, function as u64));
    let result = loading(call, name);
    if result == CUDA_SUCCESS {
        p.launched_kernels.loaded(launch::key(p, kernel as usize));
    }
    result
}
