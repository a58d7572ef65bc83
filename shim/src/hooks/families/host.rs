//! Host memory that the driver pins: not VRAM. It is a separate class, which no cap counts.

use crate::driver::cuda::CUresult;
use crate::driver::param::Out;
use crate::hooks::call::accounting::{enter, free};
use crate::hooks::call::request::{Request, Why, refuse, site};
use crate::hooks::call::{Call, Function, hooks};
use crate::hooks::process::state::Process;
use crate::hooks::process::target::{NO_TARGET, current_target};
use crate::model::contexts::Target;
use crate::model::ledger::Entry;
use core::ffi::c_void;
use vramtrace_format::{Kind, Space};

/// The context owns pinned memory and frees it at its end. It belongs to no device.
fn target(p: &'static Process) -> Target {
    Target { device: NO_TARGET.device, ..current_target(p) }
}

fn pinned(
    p: &'static Process,
    call: &Call<impl Function>,
    kind: Kind,
    size: u64,
    key: impl FnOnce() -> u64,
) -> CUresult {
    let result = call.forward();
    let target = target(p);
    if result != 0 {
        return refuse(p, &Request::new(call.api, kind, target, size), Why::Driver(result));
    }
    let entry = Entry {
        context: target.context,
        site: site(p, call.api, Some(kind), target, Default::default(), 0),
        stack: crate::hooks::process::stacks::stack(p),
        time_ns: p.clock.now_ns(),
        ..Entry::new(kind, key(), size, target.device)
    };
    enter(p, &entry);
    result
}

/// The address that a successful call has written.
fn written(pp: Out<*mut c_void>) -> u64 {
    pp.get().map_or(0, |address| address as u64)
}

hooks! { p, call:
    /// cuMemAllocHost.
    alloc_host(pp: Out<*mut c_void>, bytesize: usize) =
        pinned(p, call, Kind::HostPinned, bytesize as u64, || written(pp));
    alloc_host_v1(pp: Out<*mut c_void>, bytesize: u32) =
        pinned(p, call, Kind::HostPinned, bytesize.into(), || written(pp));
    host_alloc(pp: Out<*mut c_void>, bytesize: usize, flags: u32) =
        pinned(p, call, Kind::HostPinned, bytesize as u64, || written(pp));
    host_register(address: *mut c_void, bytesize: usize, flags: u32) =
        pinned(p, call, Kind::HostRegistered, bytesize as u64, || address as u64);
    /// cuMemFreeHost and cuMemHostUnregister.
    free_host(address: *mut c_void) = free(p, call, call.api, (Space::Host, address as u64), 0);
}
