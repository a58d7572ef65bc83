//! Calls about PyTorch's blocks where samples of them are recorded.
//!
//! Nearly all of these calls record nothing. They are [`passed`] before anything else is done: they take no lock, call
//! nothing and change a few words of their device, so that a handler of a signal may leave them at any instruction, and
//! a thread may be cancelled there. The first call of a function, and the next one of each device after totals are asked
//! for, take the path of [`memory`], and so does one call in [`SAMPLED_ONE_OF`] of a device: it is timed, and does the work
//! that is due.
//!
//! Each line of the cache counts: the program's own work lies between two calls. A call finds all in one line of the hot
//! page, one of its device and one of the marks, and nothing of the thread's or on the stack.

use crate::driver::api::Api;
use crate::driver::depth::SAMPLED_ONE_OF;
use crate::hooks::families::torch::{
    CUDA, Report, block_allocated, block_freed, record_totals, report,
};
use crate::hooks::families::torch_calls;
use crate::hooks::process::state::{self, Process};
use crate::model::block_sampling::{BlockSampling, Chosen, DeviceBlocks};
use vramtrace_format::{CacheBytes, DeviceId};

/// Counts a call for which nothing is recorded: returns the real function.
#[inline(always)]
pub fn passed(api: Api, caller: usize, report: Report) -> Option<usize> {
    let device = counted_device(api, caller, report.device)?;
    (device.is_untimed() && is_passed(device, report))
        .then(|| state::hot().allocator.real(torch_calls::index(api)))
}

/// Whether a call that was not passed is timed; `None`: it was not counted.
#[inline(always)]
pub fn is_timed(api: Api, caller: usize, word: u64) -> Option<bool> {
    counted_device(api, caller, word).map(|device| device.is_timed(SAMPLED_ONE_OF as u32))
}

/// The same as [`passed`] for a call that is timed.
#[inline(always)]
pub fn timed_passed(api: Api, caller: usize, report: Report) -> bool {
    counted_device(api, caller, report.device).is_some_and(|device| is_passed(device, report))
}

/// The device of a call that may pass. The first look is that at the caller: with all blocks recorded it is the only one.
#[inline(always)]
fn counted_device(api: Api, caller: usize, word: u64) -> Option<&'static DeviceBlocks> {
    let hot = state::hot();
    if !hot.allocator.calls(torch_calls::index(api), caller) {
        return None;
    }
    // The number is in the upper byte: one test for it and the type.
    let of_cuda = u32::from(word as u16).wrapping_sub(u32::from(CUDA));
    (of_cuda & !0x3f00 == 0).then(|| hot.figures.device(of_cuda as usize >> 8))?
}

#[inline(always)]
fn is_passed(device: &DeviceBlocks, report: Report) -> bool {
    state::hot().figures.pass(device, report.at as u64, report.size, report.totals())
}

/// A call that is not passed. Of the block: its address and size.
pub fn memory(
    p: &'static Process,
    sampling: &'static BlockSampling,
    (api, caller): (Api, usize),
    device: DeviceId,
    (key, size): (u64, i64),
    totals: CacheBytes,
) {
    torch_calls::may_pass(caller);
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
    if report(p, device, totals) {
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
    totals: CacheBytes,
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
