//! Code that is loaded or unloaded: memory that no allocation call shows. (Lazy loading fills the
//! device at first use: when a function is asked for, or launched.)

use super::launch::name_of;
use super::place::current_place;
use super::took::{self, nameless, watched};
use crate::entry::cuda::*;
use crate::entry::{Call, driver, inside};
use crate::observe::Doing;
use crate::process::Process;
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
            let real = || unsafe { call.real($($arg),*) };
            watched(p, call.api, current_place(p), Doing::Loading, name, real)
        }
    )*};
}

/// # Safety
/// Texts of the program.
unsafe fn first_text<const N: usize>(p: &'static Process, texts: [*const c_char; N]) -> u32 {
    texts.first().map_or(0, |text| unsafe { took::text(p, *text) })
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
    p.kernels.forget();
    let real = || unsafe { call.real(module) };
    watched(p, call.api, current_place(p), Doing::Loading, nameless, real)
}

/// # Safety
/// As cuLibraryUnload.
pub unsafe fn library_unload(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Library) -> CUresult>,
    library: Library,
) -> CUresult {
    p.kernels.library_ended(library as u64);
    let real = || unsafe { call.real(library) };
    watched(p, call.api, current_place(p), Doing::Loading, nameless, real)
}

/// # Safety
/// As cuFuncLoad.
pub unsafe fn func_load(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Function) -> CUresult>,
    function: Function,
) -> CUresult {
    let name = || name_of(p, function as u64);
    let real = || unsafe { call.real(function) };
    watched(p, call.api, current_place(p), Doing::Loading, name, real)
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
    let result = unsafe { call.real(kernel, library, name) };
    if result == CUDA_SUCCESS && !kernel.is_null() {
        // SAFETY: the driver has written it.
        p.kernels.has_kernel(unsafe { *kernel } as u64, library as u64);
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
    let result = unsafe { call.real(kernels, room, library) };
    let mut count = 0;
    // SAFETY: room for the answer.
    let ask = || driver().library_get_kernel_count.map(|ask| unsafe { ask(&mut count, library) });
    if result == CUDA_SUCCESS && !kernels.is_null() && inside(ask) == Some(CUDA_SUCCESS) {
        for at in 0..room.min(count) as usize {
            // SAFETY: the driver has written so many.
            p.kernels.has_kernel(unsafe { *kernels.add(at) } as u64, library as u64);
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
    let real = || unsafe { call.real(function, kernel) };
    if p.kernels.was_loaded(kernel as u64) {
        return real();
    }
    let name = || match call.answer() {
        // SAFETY: the driver has written it.
        Some(CUDA_SUCCESS) => unsafe { function.as_ref() }.map_or(0, |f| name_of(p, *f as u64)),
        _ => 0,
    };
    let result = watched(p, call.api, current_place(p), Doing::Loading, name, real);
    if result == CUDA_SUCCESS {
        p.kernels.loaded(kernel as u64);
    }
    result
}
