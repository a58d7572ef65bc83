//! Host memory that the driver pins: no VRAM, a class of its own. No cap counts it.

use super::book::site;
use super::{NOWHERE, Request, Why, current_place, give_back, refuse};
use crate::contexts::Place;
use crate::entry::cuda::CUresult;
use crate::entry::{Api, Call};
use crate::ledger::Entry;
use crate::process::Process;
use core::ffi::c_void;
use vramtrace_format::{Event, Kind, Space};

/// The context owns it (its end frees it); no device does.
fn place(p: &'static Process) -> Place {
    Place { device: NOWHERE.device, ..current_place(p) }
}

fn pinned(
    p: &'static Process,
    api: Api,
    kind: Kind,
    size: u64,
    result: CUresult,
    key: impl FnOnce() -> u64,
) -> CUresult {
    let place = place(p);
    if result != 0 {
        return refuse(p, &Request::new(api, kind, place, size), Why::Driver(result));
    }
    let entry = Entry {
        context: place.context,
        site: site(p, api, Some(kind), place, Default::default(), 0),
        stack: crate::capture::stack(p),
        time_ns: p.recorder.now_ns(),
        ..Entry::new(kind, key(), size, place.device)
    };
    p.ledger.insert(&p.recorder, &entry);
    p.recorder.record_at(entry.time_ns, &Event::Alloc(entry.alloc()));
    result
}

/// # Safety
/// A successful call has written it.
unsafe fn written(pp: *mut *mut c_void) -> u64 {
    if pp.is_null() { 0 } else { unsafe { *pp as u64 } }
}

/// # Safety
/// As the driver's function.
pub unsafe fn alloc_host(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut *mut c_void, usize) -> CUresult>,
    pp: *mut *mut c_void,
    bytesize: usize,
) -> CUresult {
    let result = unsafe { call.real(pp, bytesize) };
    pinned(p, call.api, Kind::HostPinned, bytesize as u64, result, || unsafe { written(pp) })
}

/// # Safety
/// As the driver's function.
pub unsafe fn alloc_host_v1(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut *mut c_void, u32) -> CUresult>,
    pp: *mut *mut c_void,
    bytesize: u32,
) -> CUresult {
    let result = unsafe { call.real(pp, bytesize) };
    pinned(p, call.api, Kind::HostPinned, bytesize.into(), result, || unsafe { written(pp) })
}

/// # Safety
/// As the driver's function.
pub unsafe fn host_alloc(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut *mut c_void, usize, u32) -> CUresult>,
    pp: *mut *mut c_void,
    bytesize: usize,
    flags: u32,
) -> CUresult {
    let result = unsafe { call.real(pp, bytesize, flags) };
    pinned(p, call.api, Kind::HostPinned, bytesize as u64, result, || unsafe { written(pp) })
}

/// # Safety
/// As the driver's function.
pub unsafe fn host_register(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut c_void, usize, u32) -> CUresult>,
    address: *mut c_void,
    bytesize: usize,
    flags: u32,
) -> CUresult {
    let result = unsafe { call.real(address, bytesize, flags) };
    pinned(p, call.api, Kind::HostRegistered, bytesize as u64, result, || address as u64)
}

/// cuMemFreeHost and cuMemHostUnregister.
///
/// # Safety
/// As the driver's function.
pub unsafe fn free_host(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut c_void) -> CUresult>,
    address: *mut c_void,
) -> CUresult {
    give_back(p, call.api, Space::Host, address as u64, 0, || unsafe { call.real(address) })
}
