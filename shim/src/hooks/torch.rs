//! PyTorch's blocks: pieces of the segments that its cache has taken from the driver. They are in
//! no sum and under no cap; their segments are.
//!
//! Called with PyTorch's lock for the device held: see [`crate::entry::torch`]. A device's calls
//! come one at a time, and a block's address is not given out again before the call about its free
//! has returned, so the file has them in their true order.

use super::book::site;
use crate::caches::Figures;
use crate::capture;
use crate::contexts::Place;
use crate::entry::Api;
use crate::ledger::Entry;
use crate::process::Process;
use std::ffi::c_void;
use vramtrace_format::stackspec::Tensors;
use vramtrace_format::{ContextId, DeviceId, Event, Kind, PoolId};

/// PyTorch's `Device`, of which only the low 16 bits are set: the type, and the index, which is
/// below zero for "the current one". That one is not known here: the driver may not be asked.
/// `None`: no CUDA device.
fn device(word: u64) -> Option<DeviceId> {
    const CUDA: u8 = 1;
    let [kind, index, ..] = word.to_le_bytes();
    let id = if (index as i8) < 0 { DeviceId::UNKNOWN } else { DeviceId(index) };
    (kind == CUDA).then_some(id)
}

/// A block was allocated (`size` above 0) or freed (below). The totals are the cache's own, after
/// it.
///
/// # Safety
/// None of its own: as all hooks.
pub unsafe fn memory(
    p: &'static Process,
    api: Api,
    at: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
) {
    if p.config.tensors == Tensors::Off {
        return;
    }
    let Some(device) = device(word) else { return };
    p.entry.count(api);
    let key = at as u64;
    if key != 0 && size != 0 && p.recorder.is_recording() {
        if size > 0 {
            made(p, api, device, key, size as u64);
        } else {
            freed(p, key);
        }
    }
    tell(p, device, allocated as u64, reserved as u64);
}

/// The totals of the call, written where they are due.
#[inline]
fn tell(p: &'static Process, device: DeviceId, allocated: u64, reserved: u64) {
    if p.caches.said(device, Figures { allocated, reserved }) {
        p.recorder.record(&Event::CacheState { device, allocated, reserved });
    }
}

#[inline]
fn made(p: &'static Process, api: Api, device: DeviceId, key: u64, size: u64) {
    // While the stack is looked at.
    p.ledger.prefetch_block(key);
    p.recorder.prefetch();
    let place = Place { context: ContextId(0), device };
    let entry = Entry {
        site: p.caches.site(device, api, || site(p, api, Some(Kind::Block), place, PoolId(0), 0)),
        stack: capture::block(p),
        time_ns: p.recorder.now_ns(),
        ..Entry::new(Kind::Block, key, size, device)
    };
    p.ledger.insert_block(&p.recorder, &entry);
    p.recorder.record_alloc(entry.time_ns, &entry.alloc());
}

#[inline]
fn freed(p: &'static Process, key: u64) {
    // From before a fork, or of a cache whose blocks are put back by a graph's checkpoint.
    if !p.ledger.remove_block(&p.recorder, key) {
        return p.caches.unknown_free();
    }
    p.recorder.record_block_free(p.recorder.now_ns(), key);
}

/// The cache is out of memory: it has emptied itself, asked the driver again, and gives up.
///
/// # Safety
/// None of its own: as all hooks.
pub unsafe fn out_of_memory(
    p: &'static Process,
    api: Api,
    size: i64,
    allocated: usize,
    reserved: usize,
    word: u64,
) {
    let Some(device) = device(word) else { return };
    let (allocated, reserved) = (allocated as u64, reserved as u64);
    let (size, stack) = (size.max(0) as u64, capture::stack(p));
    if p.config.tensors != Tensors::Off {
        p.entry.count(api);
        tell(p, device, allocated, reserved);
        p.recorder.record(&Event::CacheOom { device, size, allocated, reserved, stack });
    }
    p.post_mortems.gave_up(p, device, size, stack, Figures { allocated, reserved });
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
