//! Host memory that the driver pins: not VRAM. It is a separate class, which no cap counts.

use super::prelude::*;
use crate::hooks::call::accounting::{enter, free, given};
use core::ffi::c_void;
use core::ptr::null_mut;

fn pinned(
    call: Call<impl Row>,
    kind: Kind,
    size: usize,
    key: impl FnOnce() -> *mut c_void,
) -> CUresult {
    let (p, size, result) = (call.p, size as u64, call.forward());
    // The context owns pinned memory and frees it at its end. It belongs to no device.
    let target = Target { device: NO_TARGET.device, ..current_target(p) };
    if result != 0 {
        return refuse(p, &Request::new(call.api(), kind, target, size), Why::Driver(result));
    }
    enter(p, &given(p, call.api(), kind, (Space::Host, key() as u64), size, target));
    result
}

/// cuMemAllocHost and cuMemHostAlloc.
pub fn pin(call: Call<impl Row>, pp: Out<*mut c_void>, bytesize: usize) -> CUresult {
    pinned(call, Kind::HostPinned, bytesize, || pp.get().unwrap_or(null_mut()))
}

pub fn register(call: Call<impl Row>, address: *mut c_void, bytesize: usize) -> CUresult {
    pinned(call, Kind::HostRegistered, bytesize, || address)
}

/// cuMemFreeHost and cuMemHostUnregister.
pub fn unpin(call: Call<impl Row>, address: *mut c_void) -> CUresult {
    free(call, (Space::Host, address as u64), 0)
}
