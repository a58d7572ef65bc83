//! The exported `dlsym` and `dlvsym`: look-ups of the table's names find the hooks.

use crate::driver::api::{Api, Home};
use crate::driver::pointers;
use crate::hooks::entry::exports;
use crate::hooks::process::second_driver;
use crate::interpose::dlsym::{self as lookup, HookTable};
use crate::runtime::elf::Object;
use crate::runtime::trampoline::{Verdict, trampoline};
use core::ffi::{c_char, c_void};

struct CudaTable;

impl HookTable for CudaTable {
    type Id = Api;

    #[inline]
    fn may_begin_with(start: [u8; 2]) -> bool {
        start == *b"cu" || start == *b"nv"
    }

    fn by_name(name: &[u8]) -> Option<Api> {
        Api::from_name(name)
    }

    fn real(api: Api) -> Option<*mut c_void> {
        pointers::known(api)
    }

    fn replacement(api: Api, found: *mut c_void) -> *mut c_void {
        if !pointers::adopt_at(api.home(), found) {
            return found;
        }
        if pointers::known(api) == Some(found) {
            return exports::replacement(api);
        }
        match pointers::at(found) {
            Some(api) => exports::replacement(api),
            None => second_driver::replacement(api, found),
        }
    }

    fn is_vendor_library(object: &Object) -> bool {
        [Home::Cuda, Home::Nvml].iter().any(|home| home.is_in(object))
    }

    fn exported() -> [usize; 2] {
        [dlsym as *const () as usize, dlvsym as *const () as usize]
    }
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    trampoline!(filter)
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    trampoline!(filter_versioned)
}

extern "C" fn filter(handle: *mut c_void, name: *const c_char, _: usize, caller: usize) -> Verdict {
    // SAFETY: the arguments of the program's own look-up.
    unsafe { lookup::resolve::<CudaTable>(handle, name, None, caller) }
}

extern "C" fn filter_versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Verdict {
    // SAFETY: the arguments of the program's own look-up.
    unsafe { lookup::resolve::<CudaTable>(handle, name, Some(version), caller) }
}
