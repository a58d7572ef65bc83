//! cuMemAlloc and kin, and the frees that take any device address.

use crate::driver::cuda::CUresult;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::Out;
use crate::hooks::accounting::{Request, allocate, free};
use crate::hooks::call::{Call, Function};
use crate::hooks::state::Process;
use crate::hooks::target::current_target;
use vramtrace_format::physical::{GRAIN, round_up};
use vramtrace_format::{Kind, Space};

/// Undoes an allocation that does not fit under the cap: frees it, and the output is as before the call.
///
/// # Safety
/// The driver has just given this address, and the program has not seen it.
pub(super) unsafe fn undo<T: Copy>(address: u64, output: Out<T>, before: Option<T>) {
    if let Some(free) = driver().mem_free {
        // SAFETY: as the caller promises; nothing uses the memory.
        inside(|| unsafe { free(address) });
    }
    restore(output, before);
}

/// A refusal leaves an output as it was. `None`: the output is NULL, which the driver refuses.
fn restore<T: Copy>(output: Out<T>, before: Option<T>) {
    if let Some(before) = before {
        output.set(before);
    }
}

/// Sizes of 0 and NULL outputs are the driver's to refuse: nothing is reserved for them.
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
        // SAFETY: as `allocate` promises.
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
        // SAFETY: as `allocate` promises.
        |address| unsafe { undo(address, dptr, old) },
    )
}

/// Rows lie 512 B apart or a multiple of it, as measured; where the real pitch is more, the
/// request is judged again once it is known.
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
            // SAFETY: as `allocate` promises.
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
            // SAFETY: as `allocate` promises.
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
        // SAFETY: as `allocate` promises.
        |address| unsafe { undo(address, dptr, old) },
    )
}

pub fn mem_free(p: &'static Process, call: &Call<impl Function>, dptr: u64) -> CUresult {
    free(p, call.api, Space::Device, dptr, 0, || call.forward())
}

pub fn mem_free_v1(p: &'static Process, call: &Call<impl Function>, dptr: u32) -> CUresult {
    free(p, call.api, Space::Device, dptr.into(), 0, || call.forward())
}
