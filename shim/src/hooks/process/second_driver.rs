//! A second driver file in the process: a program or a plugin opened another copy by its path.
//!
//! The copy has its own contexts and allocations, and our hooks belong to the first one. So its calls
//! are not followed, which the trace and `vramtrace doctor` report. Under a cap, which could not be
//! enforced there, its functions that initialise it or allocate are replaced by one that fails.

use crate::driver::api::Api;
use crate::driver::cuda::{CUDA_ERROR_NOT_SUPPORTED, CUresult};
use crate::driver::pointers;
use crate::hooks::process::state;
use crate::hooks::process::without_state::{initialises_or_allocates, is_cap_requested};
use crate::runtime::escapes::{Escape, escaped};
use crate::runtime::log;
use core::ffi::c_void;

/// The result of a look-up that found `found`, a function of another driver file.
#[cold]
pub fn replacement(api: Api, found: *mut c_void) -> *mut c_void {
    let Some(object) = pointers::of_other_driver(found) else { return found };
    let first = escaped(Escape::SecondDriver);
    if !is_capped() {
        return found;
    }
    if first {
        log::line(format_args!(
            "{}: a second driver in this process, whose memory the cap cannot count: its \
             allocations are refused",
            object.path().to_string_lossy()
        ));
    }
    let hands_out = matches!(api, Api::cuGetProcAddress | Api::cuGetProcAddress_v2);
    match hands_out || initialises_or_allocates(api) {
        true => refused as *const () as *mut c_void,
        false => found,
    }
}

fn is_capped() -> bool {
    match state::existing() {
        Some(process) => process.cap.is_set() && !process.cap.only_warns(),
        None => is_cap_requested(),
    }
}

/// Stands in for any of its functions, and does not read the arguments.
extern "C" fn refused() -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}
