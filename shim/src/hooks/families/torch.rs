//! PyTorch's blocks: parts of the segments that its caching allocator requested from the driver. Only
//! the segments count in sums and under the cap, not the blocks.
//!
//! Called with PyTorch's lock for the device held: see [`crate::hooks::families::torch_calls`]. A device's calls
//! come one at a time, and a block's address is not given out again before the call about its free
//! has returned, so the file has them in their true order.
//!
//! * Blocks are in the ledger under a separate space. Checkpoints carry them. A block that is allocated
//!   again while it is live ends first; the free of an unknown block is counted and not recorded.
//! * A block's site carries its stream, and as its pool the number of the capture that it belongs to
//!   ([`crate::model::torch_lanes`]). Its record carries the bytes that were requested ([`torch_requests`]).
//! * A program makes millions of blocks, so the path touches little code and memory: the site is cached
//!   for each device, nothing is summed, the live page is updated at the next driver call, and cache
//!   lines that will be written are prefetched.
//! * The cache's own totals are recorded by the first call after a new window or checkpoint begins:
//!   only inside a call do they equal the sum of the blocks.
//! * Stacks are Python frames where Python runs and native ones elsewhere (backward, NCCL); both with
//!   `VRAMTRACE_TENSORS=full`.

use crate::driver::api::Api;
use crate::hooks::call::request::site;
use crate::hooks::families::{torch_calls, torch_requests, torch_samples, torch_streams};
use crate::hooks::process::stacks;
use crate::hooks::process::state::{self, Process};
use crate::model::contexts::Target;
use crate::model::ledger::Entry;
use crate::model::torch_lanes::{self, Lane};
use crate::model::torch_requests::forget;
use crate::runtime::rare::rare;
use std::ffi::c_void;
use vramtrace_format::stackspec::Tensors;
use vramtrace_format::{Alloc, CacheBytes, ContextId, DeviceId, Event, Kind, SiteId, Space};

/// The type of PyTorch's `Device`.
pub(super) const CUDA: u8 = 1;

/// PyTorch's `Device`, of which only the low 16 bits are set: the type, and the index, which is below
/// zero for "the current one". The current device is not known here, as the driver may not be called.
/// `None`: not a CUDA device, or not known.
pub(super) fn device(word: u64) -> Option<DeviceId> {
    let [kind, index, ..] = word.to_le_bytes();
    let id = if (index as i8) < 0 { DeviceId::UNKNOWN } else { DeviceId(index) };
    (kind == CUDA).then_some(id)
}

/// What a call reports: a block that was allocated (`size` above 0) or freed (below), and the cache's own totals after it.
#[derive(Clone, Copy)]
pub struct Report {
    pub at: *mut c_void,
    pub size: i64,
    pub allocated: usize,
    pub reserved: usize,
    /// See [`device`].
    pub device: u64,
}

impl Report {
    #[inline(always)]
    pub(super) fn totals(self) -> CacheBytes {
        CacheBytes { allocated: self.allocated as u64, reserved: self.reserved as u64 }
    }
}

pub(super) fn memory(p: &'static Process, (api, caller): (Api, usize), report: Report) {
    let Some(device) = device(report.device).filter(|_| p.config.tensors != Tensors::Off) else {
        return rare();
    };
    let (key, size, totals) = (report.at as u64, report.size, report.totals());
    if let Some(sampling) = &p.block_sampling {
        rare();
        return torch_samples::memory(p, sampling, (api, caller), device, (key, size), totals);
    }
    if !p.usage.is_to_panic() {
        state::hot().reports.record(p, p.config.stacks.wanted());
    }
    recorded(p, api, device, (key, size), totals);
}

/// The same where all blocks are recorded.
#[inline(always)]
pub(super) fn recorded(
    p: &'static Process,
    api: Api,
    device: DeviceId,
    (key, size): (u64, i64),
    totals: CacheBytes,
) {
    if key == 0 || size == 0 || p.trace_writer.is_silent() {
        rare();
    } else if size > 0 {
        block_allocated(p, api, device, key, size as u64, 0);
    } else if !block_freed(p, key) {
        // A block from before a fork, or one that PyTorch restored from a graph's checkpoint.
        rare();
    }
    report(p, device, totals);
}

/// Stores the totals that the call reports, and records them if that is due: at the first call of a device it is.
#[inline(always)]
pub(super) fn report(p: &'static Process, device: DeviceId, totals: CacheBytes) -> bool {
    let is_due = p.torch_totals.update(device, totals);
    if is_due {
        record_totals(p, device, totals);
    }
    is_due
}

#[cold]
#[inline(never)]
pub(super) fn record_totals(p: &'static Process, device: DeviceId, totals: CacheBytes) {
    let CacheBytes { allocated, reserved } = totals;
    p.trace_writer.record(&Event::CacheState { device, allocated, reserved });
}

/// Enters a new block in the ledger, and records it. `sampled`: as [`Entry::sampled`]. Of a sample no request is recorded.
#[inline(never)]
#[cfg_attr(not(miri), unsafe(link_section = ".text.reported"))]
pub(super) fn block_allocated(
    p: &'static Process,
    api: Api,
    device: DeviceId,
    key: u64,
    size: u64,
    sampled: u8,
) {
    // Loads the line while the stack is captured.
    p.ledger.prefetch_block(key);
    p.trace_writer.prefetch();
    let lane = torch_lanes::current(device, || p.stream_captures.any());
    let entry = Entry {
        site: match p.torch_totals.site(device, api as u16, lane) {
            Some(site) => site,
            None => block_site(p, api, device, lane.stream, lane.capture),
        },
        stack: stacks::block_stack(p),
        time_ns: p.trace_writer.now_ns(),
        sampled,
        ..Entry::new(Kind::Block, key, size, device)
    };
    if sampled != 0 {
        return sample_allocated(p, entry);
    }
    let requested = torch_requests::of_block(p, device, size);
    p.ledger.insert_block(&p.trace_writer, entry);
    p.trace_writer.record_block(entry.time_ns, &Alloc { requested, ..entry.alloc() });
}

#[cold]
#[inline(never)]
fn sample_allocated(p: &'static Process, entry: Entry) {
    p.ledger.insert_block(&p.trace_writer, entry);
    let event = Event::SampledAlloc { rate: entry.rate(), alloc: entry.alloc() };
    p.trace_writer.record_at(entry.time_ns, &event);
}

/// The site of the blocks of a lane.
#[cold]
#[inline(never)]
fn block_site(
    p: &'static Process,
    api: Api,
    device: DeviceId,
    stream: u64,
    capture: u64,
) -> SiteId {
    torch_streams::note_recorded(p);
    let target = Target { context: ContextId(0), device };
    let pool = p.torch_captures.pool(capture);
    let site = site(p, api, Some(Kind::Block), target, pool, stream);
    p.torch_totals.set_site(device, api as u16, Lane { stream, capture }, site);
    site
}

/// Removes a freed block from the ledger, and records its end. False: the ledger does not have it.
#[inline(never)]
#[cfg_attr(not(miri), unsafe(link_section = ".text.reported"))]
pub(super) fn block_freed(p: &'static Process, key: u64) -> bool {
    let now = p.trace_writer.now_ns();
    if !p.ledger.remove_block(&p.trace_writer, key) {
        return false;
    }
    p.trace_writer.record_free(now, key, Space::Block, SiteId(0));
    true
}

/// The caching allocator is out of memory: it has freed its unused segments, asked the driver again, and
/// gives up.
pub fn out_of_memory(
    api: Api,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
    caller: usize,
) {
    type Real = extern "C-unwind" fn(i64, usize, usize, u64);
    let real = torch_calls::real(api, caller);
    let totals = CacheBytes { allocated: allocated as u64, reserved: reserved as u64 };
    torch_calls::run(api, |p| gave_up(p, size.max(0) as u64, totals, word));
    if let Some(real) = real {
        // SAFETY: the real function of this name, with its type: the program's own call, with its arguments.
        unsafe { core::mem::transmute::<usize, Real>(real)(size, allocated, reserved, word) }
    }
}

fn gave_up(p: &'static Process, size: u64, totals: CacheBytes, word: u64) {
    let Some(device) = device(word) else { return };
    let (stack, CacheBytes { allocated, reserved }) = (stacks::stack(p), totals);
    forget();
    if p.config.tensors != Tensors::Off {
        report(p, device, totals);
        p.trace_writer.record(&Event::CacheOom { device, size, allocated, reserved, stack });
    }
    p.oom.gave_up(p, device, size, stack, totals);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices() {
        assert_eq!(device(0x0001), Some(DeviceId(0)));
        assert_eq!(device(0x0701), Some(DeviceId(7)));
        assert_eq!(device(0xdead_beef_1234_0301), Some(DeviceId(3)));
        assert_eq!(device(0xff01), Some(DeviceId::UNKNOWN));
        for other in [0x0000, 0xff00, 0x0006, 0xffff_ffff_ffff_ff00, 0x0114] {
            assert_eq!(device(other), None, "{other:#x}");
        }
    }
}
