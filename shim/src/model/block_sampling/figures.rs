//! What a call about a block reads and writes that is not recorded, in a line for each device and a word of the marks.

use super::marks::Marks;
use crate::model::ledger::{DEVICES, device_index};
use crate::model::totals_due::Passing;
use crate::runtime::opaque;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed,
};
use vramtrace_format::{CacheBytes, DeviceId};

/// All zero at first, and in a forked child: no call passes.
#[repr(C)]
pub struct BlockFigures {
    pub(super) devices: [DeviceBlocks; DEVICES],
    pub(super) marks: Marks,
    pub(super) draws: [DeviceDraws; DEVICES],
    pub(super) is_begun: AtomicBool,
}

#[repr(C, align(64))]
pub struct DeviceBlocks {
    /// Bytes to the next point; below zero before the first draw.
    pub(super) left: AtomicI64,
    pub(super) allocations: AtomicU64,
    frees: AtomicU64,
    pub(super) peak: AtomicU64,
    /// The framework's totals after the last call.
    allocated: AtomicU64,
    reserved: AtomicU64,
    /// Calls until one is timed; below zero: this one is.
    turn: AtomicI32,
    /// Nothing is to be recorded beside the blocks that are chosen.
    pub(super) passing: Passing,
}

/// Written when a block is recorded, or memory comes.
#[repr(C, align(64))]
pub(super) struct DeviceDraws {
    pub random: AtomicU64,
    /// The base-2 logarithm of the rate with which [`DeviceBlocks::left`] was drawn; 0: not drawn yet.
    pub drawn: AtomicU32,
    /// Records of blocks since the counts were written.
    pub records: AtomicU32,
    /// Driver memory in which no block has been recorded yet; its end is 0 if there is none.
    pub new_from: AtomicU64,
    pub new_to: AtomicU64,
    /// Calls that may still not pass because of it.
    pub new_calls: AtomicU32,
}

const _: () = assert!(size_of::<DeviceBlocks>() == 64);

/// The same, but the compiler does not know what it is: it keeps the address in a register and makes each access relative to
/// it, which takes four bytes less than its place on the page.
#[inline(always)]
fn in_register<T>(value: &T) -> &T {
    let at = opaque::address((&raw const *value).expose_provenance());
    let at = std::ptr::with_exposed_provenance::<T>(at);
    // SAFETY: the same address, which is a reference's.
    unsafe { std::hint::assert_unchecked(!at.is_null()) };
    // SAFETY: the same.
    unsafe { &*at }
}

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

    /// The figures of a device with a number.
    #[inline(always)]
    pub fn device(&self, index: usize) -> Option<&DeviceBlocks> {
        let devices = in_register(&self.devices);
        devices[..DEVICES - 1].get(index).map(in_register)
    }

    /// Whether nothing is recorded for this call about a block: then it is counted, and all is done. Otherwise nothing has
    /// changed. Of address 0 there may always be a record: see [`BlockSampling::new`](super::BlockSampling::new).
    #[inline(always)]
    pub fn pass(&self, device: &DeviceBlocks, address: u64, size: i64, totals: CacheBytes) -> bool {
        if !device.passing.may() || self.marks.may_be_recorded(address) {
            return false;
        }
        if size > 0 {
            let left = device.left.load(Relaxed).wrapping_sub(size);
            if left < 0 {
                return false;
            }
            device.left.store(left, Relaxed);
            device.allocated();
        } else {
            if size == 0 {
                return false;
            }
            device.freed();
        }
        device.note(totals);
        true
    }

    /// The framework's totals after the last call.
    pub fn totals(&self, device: DeviceId) -> CacheBytes {
        let device = &self.devices[device_index(device)];
        CacheBytes {
            allocated: device.allocated.load(Relaxed),
            reserved: device.reserved.load(Relaxed),
        }
    }
}

impl DeviceDraws {
    /// Whether the memory without a block may still be the framework's: one call less is waited for it.
    #[cold]
    pub fn is_still_new(&self) -> bool {
        let calls = self.new_calls.load(Relaxed);
        if calls == 0 {
            self.new_to.store(0, Relaxed);
            return false;
        }
        self.new_calls.store(calls - 1, Relaxed);
        true
    }
}

impl DeviceBlocks {
    /// Counts a call. Returns whether it is not timed.
    #[inline(always)]
    pub fn is_untimed(&self) -> bool {
        let turn = self.turn.load(Relaxed).wrapping_sub(1);
        self.turn.store(turn, Relaxed);
        turn >= 0
    }

    /// Whether this call, which was counted, is timed: one in `one_of`.
    pub fn is_timed(&self, one_of: u32) -> bool {
        let is_due = self.turn.load(Relaxed) < 0;
        if is_due {
            self.turn.store(one_of as i32 - 1, Relaxed);
        }
        is_due
    }

    #[inline(always)]
    pub fn allocated(&self) {
        add(&self.allocations, 1);
    }

    #[inline(always)]
    pub fn freed(&self) {
        add(&in_register(self).frees, 1);
    }

    pub fn live(&self) -> u64 {
        // A block from before a fork, or one that PyTorch restored from a graph's checkpoint, was not counted.
        self.allocations.load(Relaxed).saturating_sub(self.frees.load(Relaxed))
    }

    #[inline(always)]
    pub fn note(&self, totals: CacheBytes) {
        self.allocated.store(totals.allocated, Relaxed);
        self.reserved.store(totals.reserved, Relaxed);
        if totals.allocated > self.peak.load(Relaxed) {
            self.peak.store(totals.allocated, Relaxed);
        }
    }
}
