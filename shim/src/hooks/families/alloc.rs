//! cuMemAlloc and related functions, and the frees that take any device address.

use crate::driver::cuda::CUresult;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::Out;
use crate::hooks::call::accounting::{allocate, free};
use crate::hooks::call::request::Request;
use crate::hooks::call::{Call, Function, hooks};
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

/// An allocation of `bytesize` bytes. An address has 32 bits in the first version of the API.
#[inline]
fn linear<A: Copy + Into<u64>>(
    p: &'static Process,
    call: &Call<impl Function>,
    kind: Kind,
    dptr: Out<A>,
    bytesize: u64,
) -> CUresult {
    let old = dptr.get();
    let size = wanted(dptr, bytesize);
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, kind, target, size),
        || call.forward(),
        || (dptr.get().map_or(0, Into::into), bytesize),
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

/// An allocation of `height` rows. Address and pitch have 32 bits in the first version of the API.
#[inline]
fn pitched<A: Copy + Into<u64>, R: Copy + TryInto<u64>>(
    p: &'static Process,
    call: &Call<impl Function>,
    (dptr, pitch): (Out<A>, Out<R>),
    (width, height): (u64, u64),
) -> CUresult {
    let old = (dptr.get(), pitch.get());
    let size = wanted(pitch, wanted(dptr, pitched_size(width, height)));
    let target = current_target(p);
    allocate(
        p,
        &Request::new(call.api, Kind::Pitched, target, size),
        || call.forward(),
        || {
            let row = pitch.get().and_then(|row| row.try_into().ok()).unwrap_or(width);
            (dptr.get().map_or(0, Into::into), row.saturating_mul(height))
        },
        |address| {
            // SAFETY: `allocate` calls this only with the address that the driver has just returned,
            // before the program sees it.
            unsafe { undo(address, dptr, old.0) };
            restore(pitch, old.1);
        },
    )
}

hooks! { p, call:
    mem_alloc(dptr: Out<u64>, size: usize) = linear(p, call, Kind::Device, dptr, size as u64);
    mem_alloc_v1(dptr: Out<u32>, size: u32) = linear(p, call, Kind::Device, dptr, size.into());
    mem_alloc_managed(dptr: Out<u64>, size: usize, flags: u32) =
        linear(p, call, Kind::Managed, dptr, size as u64);
    mem_alloc_pitch(dptr: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) =
        pitched(p, call, (dptr, pitch), (width as u64, height as u64));
    mem_alloc_pitch_v1(dptr: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32) =
        pitched(p, call, (dptr, pitch), (width.into(), height.into()));
    mem_free(dptr: u64) = free(p, call, call.api, (Space::Device, dptr), 0);
    mem_free_v1(dptr: u32) = free(p, call, call.api, (Space::Device, dptr.into()), 0);
}
