//! cuMemAlloc and related functions, and the frees that take any device address.

use crate::driver::cuda::CUresult;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::Out;
use crate::hooks::call::accounting::{Request, allocate, free};
use crate::hooks::call::{Call, Function};
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use vramtrace_format::physical::{GRAIN, round_up};
use vramtrace_format::{Kind, Space};

/// Undoes an allocation that does not fit under the cap: frees it, and the output is as before the call.
///
/// # Safety
/// The driver has just given this address, and the program has not seen it.
pub(in crate::hooks) unsafe fn undo<T: Copy>(address: u64, output: Out<T>, before: Option<T>) {
    if let Some(free) = driver().mem_free {
        // SAFETY: the driver returned this address a moment ago (see above), so it is live, and no one
        // uses it.
        inside(|| unsafe { free(address) });
    }
    restore(output, before);
}

/// Restores the output to its value before the call. `None`: the output is NULL, and the driver refused
/// the call.
fn restore<T: Copy>(output: Out<T>, before: Option<T>) {
    if let Some(before) = before {
        output.set(before);
    }
}

/// Bytes to reserve: 0 where the size is 0 or the output is NULL, since the driver refuses those.
fn wanted<T: Copy>(output: Out<T>, size: u64) -> u64 {
    if output.is_null() { 0 } else { size }
}

pub fn mem_alloc(
    p: &'static Process,
    call: &Call<impl Function>,
    dptr: Out<u64>,
    bytesize: usize,
) -> CUresult {
    let old = dptr.get();
    let size = wanted(dptr, bytesize as u64);
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Device, target, size),
        || call.forward(),
        || (dptr.get().unwrap_or(0), bytesize as u64),
        // SAFETY: `allocate` calls this only with the address that the driver has just returned, before
        // the program sees it.
        |address| unsafe { undo(address, dptr, old) },
    )
}

pub fn mem_alloc_v1(
    p: &'static Process,
    call: &Call<impl Function>,
    dptr: Out<u32>,
    bytesize: u32,
) -> CUresult {
    let old = dptr.get();
    let size = wanted(dptr, bytesize.into());
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Device, target, size),
        || call.forward(),
        || (dptr.get().unwrap_or(0).into(), bytesize.into()),
        // SAFETY: `allocate` calls this only with the address that the driver has just returned, before
        // the program sees it.
        |address| unsafe { undo(address, dptr, old) },
    )
}

/// Bytes by the pitch that was measured: a multiple of 512 B. If the real pitch is larger, the cap is
/// checked again after the call.
fn pitched_size(width: u64, height: u64) -> u64 {
    round_up(width, GRAIN).saturating_mul(height)
}

pub fn mem_alloc_pitch(
    p: &'static Process,
    call: &Call<impl Function>,
    dptr: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    _element: u32,
) -> CUresult {
    let old = (dptr.get(), pitch.get());
    let forecast = pitched_size(width as u64, height as u64);
    let size = wanted(pitch, wanted(dptr, forecast));
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Pitched, target, size),
        || call.forward(),
        || {
            let row = pitch.get().unwrap_or(width) as u64;
            (dptr.get().unwrap_or(0), row.saturating_mul(height as u64))
        },
        |address| {
            // SAFETY: `allocate` calls this only with the address that the driver has just returned,
            // before the program sees it.
            unsafe { undo(address, dptr, old.0) };
            restore(pitch, old.1);
        },
    )
}

pub fn mem_alloc_pitch_v1(
    p: &'static Process,
    call: &Call<impl Function>,
    dptr: Out<u32>,
    pitch: Out<u32>,
    width: u32,
    height: u32,
    _element: u32,
) -> CUresult {
    let old = (dptr.get(), pitch.get());
    let forecast = pitched_size(width.into(), height.into());
    let size = wanted(pitch, wanted(dptr, forecast));
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Pitched, target, size),
        || call.forward(),
        || {
            let row = u64::from(pitch.get().unwrap_or(width));
            (dptr.get().unwrap_or(0).into(), row.saturating_mul(height.into()))
        },
        |address| {
            // SAFETY: `allocate` calls this only with the address that the driver has just returned,
            // before the program sees it.
            unsafe { undo(address, dptr, old.0) };
            restore(pitch, old.1);
        },
    )
}

pub fn mem_alloc_managed(
    p: &'static Process,
    call: &Call<impl Function>,
    dptr: Out<u64>,
    bytesize: usize,
    _flags: u32,
) -> CUresult {
    let old = dptr.get();
    let size = wanted(dptr, bytesize as u64);
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Managed, target, size),
        || call.forward(),
        || (dptr.get().unwrap_or(0), bytesize as u64),
        // SAFETY: `allocate` calls this only with the address that the driver has just returned, before
        // the program sees it.
        |address| unsafe { undo(address, dptr, old) },
    )
}

pub fn mem_free(p: &'static Process, call: &Call<impl Function>, dptr: u64) -> CUresult {
    free(p, call.api, Space::Device, dptr, 0, || call.forward())
}

pub fn mem_free_v1(p: &'static Process, call: &Call<impl Function>, dptr: u32) -> CUresult {
    free(p, call.api, Space::Device, dptr.into(), 0, || call.forward())
}
