//! Calls about PyTorch's blocks where samples of them are recorded.
//!
//! Nearly all of these calls record nothing. They are [`passed`] before anything else is done: they take no lock, call
//! nothing and change a few words of their device, so that a handler of a signal may leave them at any instruction. The
//! first call of a function, and the next one of each device after totals are asked for, take the path of [`memory`], and
//! so does one call in [`SAMPLED_ONE_OF`](crate::driver::depth::SAMPLED_ONE_OF) of a thread: it is timed, and does the
//! work that is due.

use crate::driver::api::Api;
use crate::hooks::families::torch::{CUDA, block_allocated, block_freed, record_totals, report};
use crate::hooks::families::torch_calls;
use crate::hooks::process::state::{self, Process};
use crate::model::block_sampling::{BlockFigures, BlockSampling, Chosen};
use crate::model::torch_totals::CacheTotals;
use std::ffi::c_void;
use vramtrace_format::DeviceId;

/// What PyTorch reports of a block: its address, its size, and the totals of the device that the word names.
type Reported = (*mut c_void, i64, usize, usize, u64);

/// Counts a call for which nothing is recorded, of a thread that is in no hook: returns the real function. The caller is one
/// whose calls may pass.
#[inline(always)]
pub fn passed(
    api: Api,
    caller: usize,
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
) -> Option<usize> {
    let hot = state::hot();
    let real = hot.block_calls.real(torch_calls::index(api), caller)?;
    let next = hot.block_calls.untimed()?;
    if !is_passed(&hot.figures, (at, size, allocated, reserved, word)) {
        return None;
    }
    next.count();
    Some(real)
}

/// The same for a call that is timed.
#[inline(always)]
pub fn timed_passed(
    caller: usize,
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
) -> bool {
    let hot = state::hot();
    hot.block_calls.may_pass(caller)
        && is_passed(&hot.figures, (at, size, allocated, reserved, word))
}

#[inline(always)]
fn is_passed(figures: &BlockFigures, (at, size, allocated, reserved, word): Reported) -> bool {
    let totals = CacheTotals { allocated: allocated as u64, reserved: reserved as u64 };
    let [kind, index, ..] = word.to_le_bytes();
    kind == CUDA && figures.pass(usize::from(index), at as u64, size, totals)
}

/// A call that is not passed. Of the block: its address and size.
pub fn memory(
    p: &'static Process,
    sampling: &'static BlockSampling,
    api: Api,
    device: DeviceId,
    (key, size): (u64, i64),
    totals: CacheTotals,
) {
    state::hot().block_calls.pass();
    // First: see there.
    sampling.may_pass(device);
    if key != 0 && size != 0 {
        let mut chosen = Chosen::No;
        if size > 0 {
            chosen = sampling.allocated(device, key, size as u64);
        } else {
            sampling.freed(device);
        }
        if chosen != Chosen::No || sampling.may_be_recorded(key) {
            record_sample(p, sampling, api, device, (key, size), chosen, totals);
        }
    }
    sampling.note(device, totals);
    if report(p, api, device, totals) {
        p.trace_writer.record(&sampling.counts(device));
    }
}

/// A block that is recorded begins or ends; or, if there is one at an address that is given out again, its end was not reported.
#[cold]
fn record_sample(
    p: &'static Process,
    sampling: &'static BlockSampling,
    api: Api,
    device: DeviceId,
    (key, size): (u64, i64),
    chosen: Chosen,
    totals: CacheTotals,
) {
    if p.trace_writer.is_silent() {
        return;
    }
    let ended = sampling.may_be_recorded(key) && block_freed(p, key);
    if ended {
        sampling.is_removed(key);
    }
    let rate = match chosen {
        Chosen::No if !ended => return,
        Chosen::No | Chosen::Always => 0,
        Chosen::Sample(rate) => rate,
    };
    if chosen != Chosen::No {
        block_allocated(p, api, device, key, size as u64, rate);
        sampling.is_recorded(key);
    }
    // The samples do not give the totals.
    record_totals(p, device, totals);
    if sampling.are_counts_due(device) {
        p.trace_writer.record(&sampling.counts(device));
    }
}
