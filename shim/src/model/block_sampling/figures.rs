//! What a call about a block reads and writes that is not recorded, in a line for each device and a word of the marks.

use super::marks::{MarkBits, Marks};
use crate::model::ledger::{DEVICES, device_index};
use crate::model::torch_totals::CacheTotals;
use crate::model::totals_due::Passing;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use vramtrace_format::DeviceId;

/// All zero at first, and in a forked child: no call passes.
#[repr(C)]
pub struct BlockFigures {
    pub(super) devices: [DeviceBlocks; DEVICES],
    pub(super) bits: MarkBits,
    pub(super) draws: [DeviceDraws; DEVICES],
    pub(super) marks: Marks,
    pub(super) is_begun: AtomicBool,
}

#[repr(C, align(64))]
pub(super) struct DeviceBlocks {
    /// Bytes to the next point; below zero before the first draw.
    pub left: AtomicI64,
    pub live: AtomicU64,
    pub allocations: AtomicU64,
    pub peak: AtomicU64,
    /// The end of driver memory in which no block has been recorded yet; 0 if there is none.
    pub new_to: AtomicU64,
    /// The framework's totals after the last call.
    allocated: AtomicU64,
    reserved: AtomicU64,
    /// Nothing is to be recorded beside the blocks that are chosen.
    pub passing: Passing,
}

/// Written when a block is recorded, or memory comes.
#[repr(C, align(64))]
pub(super) struct DeviceDraws {
    pub random: AtomicU64,
    /// The base-2 logarithm of the rate with which [`DeviceBlocks::left`] was drawn; 0: not drawn yet.
    pub drawn: AtomicU32,
    /// Records of blocks since the counts were written.
    pub records: AtomicU32,
    pub new_from: AtomicU64,
}

const _: () = assert!(size_of::<DeviceBlocks>() == 64);

#[inline(always)]
fn add(figure: &AtomicU64, by: u64) {
    figure.store(figure.load(Relaxed).wrapping_add(by), Relaxed);
}

impl BlockFigures {
    /// In a forked child, which has this one thread.
    pub fn forget(&self) {
        // SAFETY: all of it is atomics, and nothing else runs.
        unsafe { std::ptr::write_bytes((&raw const *self).cast_mut(), 0, 1) }
    }

    /// Whether nothing is recorded for this call about a block: then it is counted, and all is done. Otherwise nothing has
    /// changed. `index` is below that of devices without a number.
    #[inline(always)]
    pub fn pass(&self, index: usize, address: u64, size: i64, totals: CacheTotals) -> bool {
        let Some(device) = self.devices[..DEVICES - 1].get(index) else { return false };
        if !device.passing.may() || self.bits.may_be_recorded(address) {
            return false;
        }
        if size > 0 {
            let left = device.left.load(Relaxed).wrapping_sub(size);
            if left < 0 || address == 0 || address < device.new_to.load(Relaxed) {
                return false;
            }
            device.left.store(left, Relaxed);
            device.allocated();
        } else {
            if size == 0 || address == 0 {
                return false;
            }
            device.freed();
        }
        device.note(totals);
        true
    }

    /// The framework's totals after the last call.
    pub fn totals(&self, device: DeviceId) -> CacheTotals {
        let device = &self.devices[device_index(device)];
        CacheTotals {
            allocated: device.allocated.load(Relaxed),
            reserved: device.reserved.load(Relaxed),
        }
    }
}

impl DeviceBlocks {
    #[inline(always)]
    pub fn allocated(&self) {
        add(&self.live, 1);
        add(&self.allocations, 1);
    }

    #[inline(always)]
    pub fn freed(&self) {
        // A block from before a fork, or one that PyTorch restored from a graph's checkpoint, was not counted.
        let live = self.live.load(Relaxed);
        self.live.store(live.saturating_sub(1), Relaxed);
    }

    #[inline(always)]
    pub fn note(&self, totals: CacheTotals) {
        self.allocated.store(totals.allocated, Relaxed);
        self.reserved.store(totals.reserved, Relaxed);
        if totals.allocated > self.peak.load(Relaxed) {
            self.peak.store(totals.allocated, Relaxed);
        }
    }
}
