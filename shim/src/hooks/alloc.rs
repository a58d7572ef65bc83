//! cuMemAlloc and kin, and the frees that take any device address.

use crate::driver::cuda::CUresult;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::hooks::accounting::{Request, allocate, free};
use crate::hooks::call::Call;
use crate::hooks::state::Process;
use crate::hooks::target::current_target;
use vramtrace_format::physical::{GRAIN, round_up};
use vramtrace_format::{Kind, Space};

/// What an output held before the driver wrote it, so that a refusal leaves it untouched.
/// `None` for NULL: the driver refuses such a call.
fn before<T: Copy>(output: *mut T) -> Option<T> {
    // SAFETY: the program gave it to be written.
    (!output.is_null()).then(|| unsafe { output.read() })
}

fn restore<T: Copy>(output: *mut T, before: Option<T>) {
    if let Some(before) = before {
        // SAFETY: not NULL, and the program gave it to be written.
        unsafe { output.write(before) };
    }
}

/// Frees what does not fit under the cap, past our own hooks.
fn free_again(address: u64) {
    if let Some(free) = driver().mem_free {
        // SAFETY: the driver has just given this address.
        inside(|| unsafe { free(address) });
    }
}

/// Sizes of 0 and NULL outputs are the driver's to refuse: nothing is reserved for them.
fn wanted<T>(output: *mut T, size: u64) -> u64 {
    if output.is_null() { 0 } else { size }
}

/// # Safety
/// As the driver's function.
pub unsafe fn mem_alloc(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u64, usize) -> CUresult>,
    dptr: *mut u64,
    bytesize: usize,
) -> CUresult {
    let old = before(dptr);
    let size = wanted(dptr, bytesize as u64);
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Device, target, size),
        // SAFETY: the program's own call, with its arguments.
        || unsafe { call.real(dptr, bytesize) },
        || (before(dptr).unwrap_or(0), bytesize as u64),
        |address| {
            free_again(address);
            restore(dptr, old);
        },
    )
}

/// # Safety
/// As the driver's function.
pub unsafe fn mem_alloc_v1(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u32, u32) -> CUresult>,
    dptr: *mut u32,
    bytesize: u32,
) -> CUresult {
    let old = before(dptr);
    let size = wanted(dptr, bytesize.into());
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Device, target, size),
        // SAFETY: the program's own call, with its arguments.
        || unsafe { call.real(dptr, bytesize) },
        || (before(dptr).unwrap_or(0).into(), bytesize.into()),
        |address| {
            free_again(address);
            restore(dptr, old);
        },
    )
}

/// Rows lie 512 B apart or a multiple of it, as measured; where the real pitch is more, the
/// request is judged again once it is known.
fn pitched_size(width: u64, height: u64) -> u64 {
    round_up(width, GRAIN).saturating_mul(height)
}

/// # Safety
/// As the driver's function.
pub unsafe fn mem_alloc_pitch(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u64, *mut usize, usize, usize, u32) -> CUresult>,
    dptr: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CUresult {
    let old = (before(dptr), before(pitch));
    let forecast = pitched_size(width as u64, height as u64);
    let size = wanted(pitch, wanted(dptr, forecast));
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Pitched, target, size),
        // SAFETY: the program's own call, with its arguments.
        || unsafe { call.real(dptr, pitch, width, height, element) },
        || {
            let row = before(pitch).unwrap_or(width) as u64;
            (before(dptr).unwrap_or(0), row.saturating_mul(height as u64))
        },
        |address| {
            free_again(address);
            restore(dptr, old.0);
            restore(pitch, old.1);
        },
    )
}

/// # Safety
/// As the driver's function.
pub unsafe fn mem_alloc_pitch_v1(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u32, *mut u32, u32, u32, u32) -> CUresult>,
    dptr: *mut u32,
    pitch: *mut u32,
    width: u32,
    height: u32,
    element: u32,
) -> CUresult {
    let old = (before(dptr), before(pitch));
    let forecast = pitched_size(width.into(), height.into());
    let size = wanted(pitch, wanted(dptr, forecast));
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Pitched, target, size),
        // SAFETY: the program's own call, with its arguments.
        || unsafe { call.real(dptr, pitch, width, height, element) },
        || {
            let row = u64::from(before(pitch).unwrap_or(width));
            (before(dptr).unwrap_or(0).into(), row.saturating_mul(height.into()))
        },
        |address| {
            free_again(address);
            restore(dptr, old.0);
            restore(pitch, old.1);
        },
    )
}

/// # Safety
/// As the driver's function.
pub unsafe fn mem_alloc_managed(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u64, usize, u32) -> CUresult>,
    dptr: *mut u64,
    bytesize: usize,
    flags: u32,
) -> CUresult {
    let old = before(dptr);
    let size = wanted(dptr, bytesize as u64);
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Managed, target, size),
        // SAFETY: the program's own call, with its arguments.
        || unsafe { call.real(dptr, bytesize, flags) },
        || (before(dptr).unwrap_or(0), bytesize as u64),
        |address| {
            free_again(address);
            restore(dptr, old);
        },
    )
}

/// # Safety
/// As the driver's function.
pub unsafe fn mem_free(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(u64) -> CUresult>,
    dptr: u64,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    free(p, call.api, Space::Device, dptr, 0, || unsafe { call.real(dptr) })
}

/// # Safety
/// As the driver's function.
pub unsafe fn mem_free_v1(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(u32) -> CUresult>,
    dptr: u32,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    free(p, call.api, Space::Device, dptr.into(), 0, || unsafe { call.real(dptr) })
}
