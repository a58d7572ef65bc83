//! Code that is loaded or unloaded: memory that no allocation call shows. (Lazy loading fills the
//! device at first use: when a function is asked for, or launched.)

use super::launch::name_of;
use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::{In, Out};
use crate::hooks::call::attribution::{nameless, watched};
use crate::hooks::call::{self, Call, gave, hooks};
use crate::hooks::families::launch;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::hooks::process::texts;
use crate::model::attribution::driver_internal::DriverActivity;
use core::ffi::{c_char, c_void};

/// A call that loads code. `name`: the id of its name, if the driver has loaded it.
fn load_named(
    p: &'static Process,
    call: &Call<impl call::Function>,
    name: impl Fn() -> u32,
) -> CUresult {
    let name = || if call.answer() == Some(CUDA_SUCCESS) { name() } else { 0 };
    watched(p, call.api, current_target(p), DriverActivity::Loading, name, || call.forward())
}

fn text_of(p: &'static Process, text: In<c_char>) -> u32 {
    text.text().map_or(0, |text| texts::c_text_id(&p.names, &p.trace_writer, text))
}

hooks! { p, call:
    load(module: Out<Module>, file: In<c_char>) = load_named(p, call, || text_of(p, file));
    load_data(module: Out<Module>, image: *const c_void) = load_named(p, call, nameless);
    load_data_ex(
        module: Out<Module>,
        image: *const c_void,
        count: u32,
        options: Out<CUjit_option>,
        values: Out<*mut c_void>
    ) = load_named(p, call, nameless);
    library_load_data(
        library: Out<Library>,
        code: *const c_void,
        jit: Out<CUjit_option>,
        jit_values: Out<*mut c_void>,
        jit_count: u32,
        options: Out<CUlibraryOption>,
        values: Out<*mut c_void>,
        count: u32
    ) = load_named(p, call, nameless);
    library_load_file(
        library: Out<Library>,
        file: In<c_char>,
        jit: Out<CUjit_option>,
        jit_values: Out<*mut c_void>,
        jit_count: u32,
        options: Out<CUlibraryOption>,
        values: Out<*mut c_void>,
        count: u32
    ) = load_named(p, call, || text_of(p, file));
    get_function(function: Out<Function>, module: Module, name: In<c_char>) =
        load_named(p, call, || text_of(p, name));
    get_global(dptr: Out<u64>, bytes: Out<usize>, module: Module, name: In<c_char>) =
        load_named(p, call, || text_of(p, name));
    get_global_v1(dptr: Out<u32>, bytes: Out<u32>, module: Module, name: In<c_char>) =
        load_named(p, call, || text_of(p, name));
    library_get_global(dptr: Out<u64>, bytes: Out<usize>, library: Library, name: In<c_char>) =
        load_named(p, call, || text_of(p, name));
    library_get_unified(function: Out<*mut c_void>, library: Library, symbol: In<c_char>) =
        load_named(p, call, || text_of(p, symbol));
    library_get_module(module: Out<Module>, library: Library) = load_named(p, call, nameless);
    /// cuModuleUnload. The driver may reuse the handles of its functions.
    unload(module: Module) = {
        p.launched_kernels.forget();
        load_named(p, call, nameless)
    };
    /// cuLibraryUnload.
    library_unload(library: Library) = {
        p.launched_kernels.library_ended(library as u64);
        load_named(p, call, nameless)
    };
    /// cuFuncLoad.
    func_load(function: Function) = load_named(p, call, || name_of(p, function as u64));
    /// cuLibraryGetKernel: returns a handle and loads nothing.
    library_get_kernel(kernel: Out<Kernel>, library: Library, name: In<c_char>) =
        gave(call.forward(), kernel, |kernel| {
            p.launched_kernels.has_kernel(kernel as u64, library as u64);
        });
}

/// cuLibraryEnumerateKernels.
#[allow(clippy::not_unsafe_ptr_arg_deref)] // a handle of the program's call, which has just succeeded
pub fn library_enumerate(
    p: &'static Process,
    call: &Call<impl call::Function>,
    kernels: Out<Kernel>,
    room: u32,
    library: Library,
) -> CUresult {
    let result = call.forward();
    let mut count = 0;
    // SAFETY: room for the answer; asked only after the driver has taken the same handle.
    let ask = || driver().library_get_kernel_count.map(|ask| unsafe { ask(&mut count, library) });
    if result == CUDA_SUCCESS && inside(ask) == Some(CUDA_SUCCESS) {
        for kernel in (0..room.min(count) as usize).map_while(|at| kernels.at(at).get()) {
            p.launched_kernels.has_kernel(kernel as u64, library as u64);
        }
    }
    result
}

/// The kernel's function in the current context: its module is loaded here.
pub fn kernel_get_function(
    p: &'static Process,
    call: &Call<impl call::Function>,
    function: Out<Function>,
    kernel: Kernel,
) -> CUresult {
    if p.launched_kernels.was_loaded(launch::key(p, kernel as usize)) {
        return call.forward();
    }
    let name = || function.get().map_or(0, |function| name_of(p, function as u64));
    let result = load_named(p, call, name);
    if result == CUDA_SUCCESS {
        p.launched_kernels.loaded(launch::key(p, kernel as usize));
    }
    result
}
