//! Code that is loaded or unloaded: memory that no allocation call shows. The calls pass; the
//! figures are read anew after them. (Lazy loading fills the device later, at first use.)

use crate::entry::Call;
use crate::entry::cuda::*;
use crate::process::Process;
use core::ffi::{c_char, c_void};

macro_rules! watched {
    ($( $name:ident ( $($arg:ident: $ty:ty),* ); )*) => {$(
        /// # Safety
        /// As the driver's function.
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name(
            p: &'static Process,
            call: &Call<unsafe extern "C-unwind" fn($($ty),*) -> CUresult>,
            $($arg: $ty),*
        ) -> CUresult {
            let result = unsafe { call.real($($arg),*) };
            p.observe.soon();
            result
        }
    )*};
}

watched! {
    load(module: *mut Module, file: *const c_char);
    load_data(module: *mut Module, image: *const c_void);
    load_data_ex(
        module: *mut Module,
        image: *const c_void,
        count: u32,
        options: *mut CUjit_option,
        values: *mut *mut c_void
    );
    unload(module: Module);
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
    );
    library_unload(library: Library);
}
