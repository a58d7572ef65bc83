//! cuMemAlloc and related functions, and the frees that take any device address.

use super::prelude::*;
use crate::hooks::call::accounting;
use crate::hooks::call::accounting::allocate;
use vramtrace_format::physical::{GRAIN, round_up};

/// Undoes an allocation that does not fit under the cap: frees it, and the output is as now. For [`allocate`] alone, which
/// has the address from the driver.
#[inline(always)]
pub(in crate::hooks) fn undo<T: Copy>(output: Out<T>) -> impl FnOnce(u64) {
    let before = output.get();
    move |address| {
        if let Some(free) = driver().mem_free {
            // SAFETY: the driver returned this address a moment ago, and the program has not seen it: it is live, and no
            // one uses it.
            inside(|| unsafe { free(address) });
        }
        restore(output, before);
    }
}

/// Restores the output to its value before the call. `None`: the output is NULL, and the driver refused
/// the call.
pub(in crate::hooks) fn restore<T: Copy>(output: Out<T>, before: Option<T>) {
    if let Some(before) = before {
        output.set(before);
    }
}

/// Bytes to reserve: 0 where the size is 0 or the output is NULL, since the driver refuses those.
fn wanted<T: Copy>(output: Out<T>, size: u64) -> u64 {
    if output.is_null() { 0 } else { size }
}

/// The address that the driver has written.
#[inline(always)]
pub(in crate::hooks) fn given<A: Copy + Into<u64>>(dptr: Out<A>) -> u64 {
    dptr.get().map_or(0, Into::into)
}

/// An allocation of `bytesize` bytes. An address has 32 bits in the first version of the API.
#[inline]
pub fn linear<A: Copy + Into<u64>>(
    call: Call<impl Row>,
    kind: Kind,
    dptr: Out<A>,
    bytesize: usize,
) -> CUresult {
    let (undo, bytesize) = (undo(dptr), bytesize as u64);
    let target = current_target(call.p);
    let request = Request::new(call.api(), kind, target, wanted(dptr, bytesize));
    allocate(call, &request, || (given(dptr), bytesize), undo)
}

/// An allocation of `height` rows. Address and pitch have 32 bits in the first version of the API. Its bytes are those by the
/// pitch that was measured, a multiple of 512 B; if the real pitch is larger, the cap is checked again after the call.
pub fn pitched<A: Copy + Into<u64>, P: Copy + TryInto<u64>>(
    call: Call<impl Row>,
    dptr: Out<A>,
    pitch: Out<P>,
    width: usize,
    height: usize,
) -> CUresult {
    let (undo, before, width, height) = (undo(dptr), pitch.get(), width as u64, height as u64);
    let size = wanted(pitch, wanted(dptr, round_up(width, GRAIN).saturating_mul(height)));
    let request = Request::new(call.api(), Kind::Pitched, current_target(call.p), size);
    let taken = || {
        let row = pitch.get().and_then(|row| row.try_into().ok()).unwrap_or(width);
        (given(dptr), row.saturating_mul(height))
    };
    allocate(call, &request, taken, |address| {
        undo(address);
        restore(pitch, before);
    })
}

pub fn free(call: Call<impl Row>, dptr: u64) -> CUresult {
    accounting::free(call, (Space::Device, dptr), 0)
}
