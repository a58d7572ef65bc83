//! Code that is loaded or unloaded: memory that no allocation call shows. (Lazy loading fills the
//! device at first use: when a function is asked for, or launched.)

use super::launch::name_of;
use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::hooks::attribution::{nameless, watched};
use crate::hooks::call::Call;
use crate::hooks::launch;
use crate::hooks::state::Process;
use crate::hooks::target::current_target;
use crate::hooks::texts;
use crate::model::attribution::driver_internal::DriverActivity;
use core::ffi::{c_char, c_void};

macro_rules! loads {
    ($( $name:ident ( $($arg:ident: $ty:ty),* ) $(named by $text:ident)?; )*) => {$(
        /// # Safety
        /// As the driver's function.
        #[allow(clippy::too_many_arguments, clippy::type_complexity)]
        pub unsafe fn $name(
            p: &'static Process,
            call: &Call<unsafe extern "C-unwind" fn($($ty),*) -> CUresult>,
            $($arg: $ty),*
        ) -> CUresult {
            let name = || match call.answer() {
                // SAFETY: the program's text, which the driver has just read.
                Some(CUDA_SUCCESS) => unsafe { first_text(p, [$($text)?]) },
                _ => 0,
            };
            // SAFETY: the program's own call, with its arguments.
            let real = || unsafe { call.real($($arg),*) };
            watched(p, call.api, current_target(p), DriverActivity::Loading, name, real)
        }
    )*};
}

/// # Safety
/// Texts of the program.
unsafe fn first_text<const N: usize>(p: &'static Process, texts: [*const c_char; N]) -> u32 {
    // SAFETY: the program's text, which the driver has read.
    texts.first().map_or(0, |text| unsafe { texts::c_text_id(p, *text) })
}

loads! {
    load(module: *mut Module, file: *const c_char) named by file;
    load_data(module: *mut Module, image: *const c_void);
    load_data_ex(
        module: *mut Module,
        image: *const c_void,
        count: u32,
        options: *mut CUjit_option,
        values: *mut *mut c_void
    );
    library_load_data(
        library: *mut Library,
        code: *const c_void,
        jit: *mut CUjit_option,
        jit_values: *mut *mut c_void,
        jit_count: u32,
        options: *mut CUlibraryOption,
        values: *mut *mut c_void,
        count: u32
    );
    library_load_file(
        library: *mut Library,
        file: *const c_char,
        jit: *mut CUjit_option,
        jit_values: *mut *mut c_void,
        jit_count: u32,
        options: *mut CUlibraryOption,
        values: *mut *mut c_void,
        count: u32
    ) named by file;
    get_function(function: *mut Function, module: Module, name: *const c_char) named by name;
    get_global(dptr: *mut u64, bytes: *mut usize, module: Module, name: *const c_char) named by name;
    get_global_v1(dptr: *mut u32, bytes: *mut u32, module: Module, name: *const c_char) named by name;
    library_get_global(
        dptr: *mut u64,
        bytes: *mut usize,
        library: Library,
        name: *const c_char
    ) named by name;
    library_get_unified(function: *mut *mut c_void, library: Library, symbol: *const c_char)
        named by symbol;
    library_get_module(module: *mut Module, library: Library);
}

/// Handles of its functions may come again.
///
/// # Safety
/// As cuModuleUnload.
pub unsafe fn unload(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Module) -> CUresult>,
    module: Module,
) -> CUresult {
    p.launched_kernels.forget();
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(module) };
    watched(p, call.api, current_target(p), DriverActivity::Loading, nameless, real)
}

/// # Safety
/// As cuLibraryUnload.
pub unsafe fn library_unload(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Library) -> CUresult>,
    library: Library,
) -> CUresult {
    p.launched_kernels.library_ended(library as u64);
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(library) };
    watched(p, call.api, current_target(p), DriverActivity::Loading, nameless, real)
}

/// # Safety
/// As cuFuncLoad.
pub unsafe fn func_load(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Function) -> CUresult>,
    function: Function,
) -> CUresult {
    let name = || name_of(p, function as u64);
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(function) };
    watched(p, call.api, current_target(p), DriverActivity::Loading, name, real)
}

/// A handle to a kernel; nothing is loaded.
///
/// # Safety
/// As cuLibraryGetKernel.
pub unsafe fn library_get_kernel(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Kernel, Library, *const c_char) -> CUresult>,
    kernel: *mut Kernel,
    library: Library,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(kernel, library, name) };
    if result == CUDA_SUCCESS && !kernel.is_null() {
        // SAFETY: the driver has written it.
        p.launched_kernels.has_kernel(unsafe { *kernel } as u64, library as u64);
    }
    result
}

/// # Safety
/// As cuLibraryEnumerateKernels.
pub unsafe fn library_enumerate(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Kernel, u32, Library) -> CUresult>,
    kernels: *mut Kernel,
    room: u32,
    library: Library,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(kernels, room, library) };
    let mut count = 0;
    // SAFETY: room for the answer.
    let ask = || driver().library_get_kernel_count.map(|ask| unsafe { ask(&mut count, library) });
    if result == CUDA_SUCCESS && !kernels.is_null() && inside(ask) == Some(CUDA_SUCCESS) {
        for at in 0..room.min(count) as usize {
            // SAFETY: the driver has written so many.
            p.launched_kernels.has_kernel(unsafe { *kernels.add(at) } as u64, library as u64);
        }
    }
    result
}

/// The kernel's function in the current context: its module is loaded here.
///
/// # Safety
/// As cuKernelGetFunction.
pub unsafe fn kernel_get_function(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Function, Kernel) -> CUresult>,
    function: *mut Function,
    kernel: Kernel,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(function, kernel) };
    if p.launched_kernels.was_loaded(launch::key(p, kernel as usize)) {
        return real();
    }
    let name = || match call.answer() {
        // SAFETY: the driver has written it.
        Some(CUDA_SUCCESS) => unsafe { function.as_ref() }.map_or(0, |f| name_of(p, *f as u64)),
        _ => 0,
    };
    let result = watched(p, call.api, current_target(p), DriverActivity::Loading, name, real);
    if result == CUDA_SUCCESS {
        p.launched_kernels.loaded(launch::key(p, kernel as usize));
    }
    result
}
