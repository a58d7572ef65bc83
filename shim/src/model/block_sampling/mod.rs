//! Which of PyTorch's blocks are recorded with `VRAMTRACE_RECORD=sampled`.
//!
//! * The points of a Poisson process over the bytes of all blocks: a block is recorded if a point lies in it. Each device
//!   counts down the bytes to its next point, so a block without one costs a subtraction. The distances have no memory: after a
//!   hit the next one is drawn from the block's end, and a new rate applies from the next draw on.
//! * The first block in new driver memory is recorded in any case, with the weight 1: a reader knows by it that the memory is a
//!   segment of the cache.
//! * Totals of all blocks are exact.
//! * A byte for each of some 65,000 classes of addresses tells whether a recorded block may be there. 0 is certain; otherwise
//!   the ledger knows.
//!
//! The figures of a device change under PyTorch's lock for the device, one call at a time: no atomic addition is needed. Where
//! several devices share figures (beyond the 64th) a count may be lost.

mod overhead;

use crate::model::ledger::{DEVICES, device_at, device_index};
use crate::runtime::hash_table::pages;
use overhead::Overhead;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use vramtrace_format::{DeviceId, Event, sampling};

/// The base-2 logarithm of the rate at the start, 1 MiB: 1 GiB in small blocks has a standard error of 32 MiB.
const LEAST: u32 = 20;
/// And of the highest one, 16 GiB: only large blocks and the first ones in their memory are recorded.
const MOST: u32 = 34;

const MARKS: usize = 1 << 16;

pub struct BlockSampling {
    devices: &'static [DeviceBlocks],
    marks: &'static [AtomicU8],
    /// The base-2 logarithm of the rate.
    rate: AtomicU32,
    overhead: Overhead,
}

/// All zero at first.
#[repr(C, align(64))]
struct DeviceBlocks {
    /// Bytes to the next point; below zero before the first draw.
    left: AtomicI64,
    /// The base-2 logarithm of the rate with which that was drawn; 0: not drawn yet.
    drawn: AtomicU32,
    /// Records of blocks since the counts were written.
    records: AtomicU32,
    random: AtomicU64,
    live: AtomicU64,
    allocations: AtomicU64,
    peak: AtomicU64,
    /// Driver memory in which no block has been recorded yet: its range. The end is 0 if there is none.
    new_from: AtomicU64,
    new_to: AtomicU64,
}

/// Whether a block is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    No,
    /// Whatever its size.
    Always,
    /// The base-2 logarithm of the rate.
    Sample(u8),
}

#[inline]
fn add(figure: &AtomicU64, by: u64) {
    figure.store(figure.load(Relaxed).wrapping_add(by), Relaxed);
}

impl BlockSampling {
    /// `bound`: the share of the threads' time, in millionths, above which fewer samples are taken. `None`: the kernel gives
    /// no memory.
    pub fn new(seed: u64, bound: u32) -> Option<BlockSampling> {
        let at = pages(DEVICES * size_of::<DeviceBlocks>() + MARKS).ok()?;
        // SAFETY: fresh zero pages that are never unmapped, page-aligned and large enough for both; zero bytes are valid
        // values of both types.
        let (devices, marks) = unsafe {
            let devices = std::slice::from_raw_parts(at.cast::<DeviceBlocks>(), DEVICES);
            let marks = at.add(DEVICES * size_of::<DeviceBlocks>());
            (devices, std::slice::from_raw_parts(marks.cast::<AtomicU8>(), MARKS))
        };
        let mut state = seed;
        for device in devices {
            let (next, bits) = sampling::random(state);
            state = next;
            device.random.store(bits, Relaxed);
            device.left.store(-1, Relaxed);
        }
        let (rate, overhead) = (AtomicU32::new(LEAST), Overhead::new(bound));
        Some(BlockSampling { devices, marks, rate, overhead })
    }

    #[inline]
    fn mark(&self, address: u64) -> &AtomicU8 {
        &self.marks[((address >> 9).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize]
    }

    /// Whether a block at this address may be recorded. False is certain.
    #[inline]
    pub fn may_be_recorded(&self, address: u64) -> bool {
        self.mark(address).load(Relaxed) != 0
    }

    /// A block at this address is in the ledger from now on. Blocks of several devices may share the byte. At its end it is
    /// no more known how many there are, and it stays.
    pub fn is_recorded(&self, address: u64) {
        let _ = self.mark(address).fetch_update(Relaxed, Relaxed, |marks| marks.checked_add(1));
    }

    pub fn is_removed(&self, address: u64) {
        let _ = self.mark(address).fetch_update(Relaxed, Relaxed, |marks| match marks {
            0 | u8::MAX => None,
            some => Some(some - 1),
        });
    }

    /// Counts a block. Returns whether it is to be recorded.
    #[inline]
    pub fn allocated(&self, device: DeviceId, address: u64, size: u64) -> Chosen {
        let device = &self.devices[device_index(device)];
        add(&device.live, 1);
        add(&device.allocations, 1);
        if address < device.new_to.load(Relaxed) && is_in_new(device, address, size) {
            return Chosen::Always;
        }
        let left = device.left.load(Relaxed).saturating_sub(size as i64);
        if left >= 0 {
            device.left.store(left, Relaxed);
            return Chosen::No;
        }
        self.reached(device, size)
    }

    #[cold]
    fn reached(&self, device: &DeviceBlocks, size: u64) -> Chosen {
        let rate = self.rate.load(Relaxed);
        let mut drawn = device.drawn.load(Relaxed);
        if drawn == 0 {
            let left = self.draw(device, rate).saturating_sub(size as i64);
            device.drawn.store(rate, Relaxed);
            device.left.store(left, Relaxed);
            if left >= 0 {
                return Chosen::No;
            }
            drawn = rate;
        }
        device.left.store(self.draw(device, rate), Relaxed);
        device.drawn.store(rate, Relaxed);
        Chosen::Sample(drawn as u8)
    }

    fn draw(&self, device: &DeviceBlocks, rate: u32) -> i64 {
        let (next, bits) = sampling::random(device.random.load(Relaxed));
        device.random.store(next, Relaxed);
        sampling::distance(bits, 1 << rate) as i64
    }

    /// Counts the end of a block.
    #[inline]
    pub fn freed(&self, device: DeviceId) {
        let device = &self.devices[device_index(device)];
        // A block from before a fork, or one that PyTorch restored from a graph's checkpoint, was not counted.
        let live = device.live.load(Relaxed);
        device.live.store(live.saturating_sub(1), Relaxed);
    }

    /// Notes the framework's bytes in blocks after a call.
    #[inline]
    pub fn note(&self, device: DeviceId, allocated: u64) {
        let peak = &self.devices[device_index(device)].peak;
        if allocated > peak.load(Relaxed) {
            peak.store(allocated, Relaxed);
        }
    }

    /// The driver gave memory: the first block in it is recorded. PyTorch requests memory for a block that it reports right
    /// after, so one range is enough.
    pub fn memory_came(&self, device: DeviceId, address: u64, size: u64) {
        let device = &self.devices[device_index(device)];
        device.new_from.store(address, Relaxed);
        device.new_to.store(address.saturating_add(size), Relaxed);
    }

    /// Whether the counts of this device are due, after a record of one of its blocks.
    pub fn are_counts_due(&self, device: DeviceId) -> bool {
        let records = &self.devices[device_index(device)].records;
        let now = records.load(Relaxed) + 1;
        records.store(if now == RECORDS { 0 } else { now }, Relaxed);
        now == RECORDS
    }

    pub fn counts(&self, device: DeviceId) -> Event {
        let of = &self.devices[device_index(device)];
        Event::BlockCounts {
            device,
            live: of.live.load(Relaxed),
            allocations: of.allocations.load(Relaxed),
            peak: of.peak.load(Relaxed),
        }
    }

    /// The rate, and the counts of all devices with blocks.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        let used = |index: &usize| self.devices[*index].allocations.load(Relaxed) != 0;
        let counts = (0..DEVICES).filter(used).map(|index| self.counts(device_at(index)));
        std::iter::once(self.rate()).chain(counts)
    }

    pub fn rate(&self) -> Event {
        let (cost, bound) = self.overhead.figures();
        Event::Sampling { rate: 1 << self.rate.load(Relaxed), least: 1 << LEAST, cost, bound }
    }

    /// Adds a timed call, one in `one_of` of its thread: its time, and that since the last timed one. True: there is another
    /// rate.
    pub fn timed(&self, took_ns: u64, one_of: u64, since_ns: u64) -> bool {
        let Some(steps) = self.overhead.add(took_ns, one_of, since_ns) else { return false };
        let rate = self.rate.load(Relaxed);
        let next = rate.saturating_add_signed(steps).clamp(LEAST, MOST);
        self.rate.store(next, Relaxed);
        next != rate
    }
}

/// Records of a device's blocks between two records of its counts.
const RECORDS: u32 = 16;

/// Whether the block lies in new memory of the device, which is then known.
#[cold]
fn is_in_new(device: &DeviceBlocks, address: u64, size: u64) -> bool {
    let is_in = address.saturating_add(size) > device.new_from.load(Relaxed);
    if is_in {
        device.new_to.store(0, Relaxed);
    }
    is_in
}

#[cfg(test)]
mod tests;
