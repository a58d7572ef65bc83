//! Which of PyTorch's blocks are recorded with `VRAMTRACE_RECORD=sampled`.
//!
//! * The points of a Poisson process over the bytes of all blocks: a block is recorded if a point lies in it. Each device
//!   counts down the bytes to its next point, so a block without one costs a subtraction. The distances have no memory: after a
//!   hit the next one is drawn from the block's end, and a new rate applies from the next draw on.
//! * The first block in new driver memory is recorded in any case, with the weight 1: a reader knows by it that the memory is a
//!   segment of the cache. Until it comes no call is passed; after [`NEW_CALLS`] calls the memory is another library's.
//! * Totals of all blocks are exact.
//! * A bit for each of 65,536 classes of addresses tells whether a recorded block may be there (`marks.rs`).
//! * Nearly all calls change some figures of their device and nothing else ([`BlockFigures::pass`]): these come first in the
//!   export, before a guard or a look at the process's state.
//!
//! The figures of a device change under PyTorch's lock for the device, one call at a time: no atomic addition is needed. Where
//! several devices share figures (beyond the 64th) a count may be lost.

mod figures;
mod marks;
mod overhead;

use crate::model::ledger::{DEVICES, device_at, device_index};
use crate::runtime::lock::Lock;
use figures::DeviceDraws;
pub use figures::{BlockFigures, DeviceBlocks};
use overhead::Overhead;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vramtrace_format::{CacheBytes, DeviceId, Event, sampling};

/// The base-2 logarithm of the rate at the start, 4 MiB: 1 GiB in small blocks has a standard error of 64 MiB.
const LEAST: u32 = 22;
/// And of the highest one, 16 GiB: only large blocks and the first ones in their memory are recorded.
const MOST: u32 = 34;
/// Calls after which driver memory without a block is not the framework's.
const NEW_CALLS: u32 = 256;

pub struct BlockSampling {
    figures: &'static BlockFigures,
    /// The base-2 logarithm of the rate.
    rate: AtomicU32,
    overhead: Overhead,
    /// Held while marks change.
    changing: Lock<()>,
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

impl BlockSampling {
    /// `bound`: the share of the threads' time, in millionths, above which fewer samples are taken.
    pub fn new(figures: &'static BlockFigures, seed: u64, bound: u32) -> BlockSampling {
        // Of two threads that make the process's state at once, one begins them.
        let is_first = !figures.is_begun.swap(true, Relaxed);
        let mut state = seed;
        for (device, draws) in figures.devices.iter().zip(&figures.draws).filter(|_| is_first) {
            let (next, bits) = sampling::random(state);
            state = next;
            draws.random.store(bits, Relaxed);
            device.left.store(-1, Relaxed);
        }
        // Such a call is no block's, and this saves a comparison in all others.
        figures.marks.add_null();
        let (rate, overhead) = (AtomicU32::new(LEAST), Overhead::new(bound));
        BlockSampling { figures, rate, overhead, changing: Lock::new(()) }
    }

    pub fn figures(&self) -> &'static BlockFigures {
        self.figures
    }

    #[inline]
    fn device(&self, device: DeviceId) -> (&DeviceBlocks, &DeviceDraws) {
        let index = device_index(device);
        (&self.figures.devices[index], &self.figures.draws[index])
    }

    /// Whether a block at this address may be recorded. False is certain.
    #[inline]
    pub fn may_be_recorded(&self, address: u64) -> bool {
        self.figures.marks.may_be_recorded(address)
    }

    /// A block at this address is in the ledger from now on.
    pub fn is_recorded(&self, address: u64) {
        self.figures.marks.mark(&self.changing, address, true);
    }

    pub fn is_removed(&self, address: u64) {
        self.figures.marks.mark(&self.changing, address, false);
    }

    /// The next call about a block of each device is not to be passed. After the request that it is to meet.
    pub fn ask(&self) {
        self.figures.devices.iter().for_each(|device| device.passing.stop());
    }

    /// Calls about blocks of the device may be passed from now on, unless there is new memory. Before the caller looks at what
    /// else is to be recorded: see [`totals_due`](crate::model::totals_due).
    pub fn may_pass(&self, device: DeviceId) {
        let (device, draws) = self.device(device);
        device.passing.allow();
        if draws.new_to.load(Relaxed) != 0 && draws.is_still_new() {
            device.passing.stop();
        }
    }

    /// Counts a block. Returns whether it is to be recorded.
    #[inline]
    pub fn allocated(&self, device: DeviceId, address: u64, size: u64) -> Chosen {
        let (device, draws) = self.device(device);
        device.allocated();
        if address < draws.new_to.load(Relaxed) && is_in_new(draws, address, size) {
            return Chosen::Always;
        }
        let left = device.left.load(Relaxed).saturating_sub(size as i64);
        if left >= 0 {
            device.left.store(left, Relaxed);
            return Chosen::No;
        }
        self.reached(device, draws, size)
    }

    #[cold]
    fn reached(&self, device: &DeviceBlocks, draws: &DeviceDraws, size: u64) -> Chosen {
        let rate = self.rate.load(Relaxed);
        let mut drawn = draws.drawn.load(Relaxed);
        if drawn == 0 {
            let left = draw(draws, rate).saturating_sub(size as i64);
            draws.drawn.store(rate, Relaxed);
            device.left.store(left, Relaxed);
            if left >= 0 {
                return Chosen::No;
            }
            drawn = rate;
        }
        device.left.store(draw(draws, rate), Relaxed);
        draws.drawn.store(rate, Relaxed);
        Chosen::Sample(drawn as u8)
    }

    /// Counts the end of a block.
    #[inline]
    pub fn freed(&self, device: DeviceId) {
        self.device(device).0.freed();
    }

    /// Notes the framework's totals after a call.
    #[inline]
    pub fn note(&self, device: DeviceId, totals: CacheBytes) {
        self.device(device).0.note(totals);
    }

    /// The driver gave memory: the first block in it is recorded. PyTorch requests memory for a block that it reports right
    /// after, so one range is enough.
    pub fn memory_came(&self, device: DeviceId, address: u64, size: u64) {
        let (device, draws) = self.device(device);
        draws.new_from.store(address, Relaxed);
        draws.new_calls.store(NEW_CALLS, Relaxed);
        draws.new_to.store(address.saturating_add(size), Relaxed);
        device.passing.stop();
    }

    /// Whether the counts of this device are due, after a record of one of its blocks.
    pub fn are_counts_due(&self, device: DeviceId) -> bool {
        let records = &self.device(device).1.records;
        let now = records.load(Relaxed) + 1;
        records.store(if now == RECORDS { 0 } else { now }, Relaxed);
        now == RECORDS
    }

    pub fn counts(&self, device: DeviceId) -> Event {
        let of = self.device(device).0;
        Event::BlockCounts {
            device,
            live: of.live(),
            allocations: of.allocations.load(Relaxed),
            peak: of.peak.load(Relaxed),
        }
    }

    /// The rate, and the counts of all devices with blocks.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        let used = |index: &usize| self.figures.devices[*index].allocations.load(Relaxed) != 0;
        let counts = (0..DEVICES).filter(used).map(|index| self.counts(device_at(index)));
        std::iter::once(self.rate()).chain(counts)
    }

    pub fn rate(&self) -> Event {
        let (cost, bound) = self.overhead.figures();
        Event::Sampling { rate: 1 << self.rate.load(Relaxed), least: 1 << LEAST, cost, bound }
    }

    /// Adds work that is not part of a timed call.
    pub fn add_work(&self, ns: u64) {
        self.overhead.add_work(ns);
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

fn draw(draws: &DeviceDraws, rate: u32) -> i64 {
    let (next, bits) = sampling::random(draws.random.load(Relaxed));
    draws.random.store(next, Relaxed);
    sampling::distance(bits, 1 << rate) as i64
}

/// Whether the block lies in new memory of the device, which is then known.
#[cold]
fn is_in_new(draws: &DeviceDraws, address: u64, size: u64) -> bool {
    let is_in = address.saturating_add(size) > draws.new_from.load(Relaxed);
    if is_in {
        draws.new_to.store(0, Relaxed);
    }
    is_in
}

#[cfg(test)]
mod tests;
