//! Sums: per device (atomics, with the peak), per device and kind, and per (site, stack) with
//! the values that a running checkpoint still needs.

use super::peaks::{KeptEpoch, Peaks};
use crate::runtime::hash_table::{Slot, spread};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use vramtrace_format::summary::{AtPeak, Change, is_held};
use vramtrace_format::{DeviceId, Kind, SiteId, StackId, physical};

/// Devices 0 to 63 and the unknown one.
pub const DEVICES: usize = 65;
/// `Kind as usize` indexes; 0 is not used.
pub const KINDS: usize = 13;

/// Ordinals above 63 share the index of the unknown device.
#[inline]
pub fn device_index(device: DeviceId) -> usize {
    (device.0 as usize).min(DEVICES - 1)
}

pub fn device_at(index: usize) -> DeviceId {
    if index == DEVICES - 1 { DeviceId::UNKNOWN } else { DeviceId(index as u8) }
}

/// Adds a signed delta, stopping at both ends. False: it would have gone below zero.
pub fn add_saturating(total: &AtomicU64, delta: i64) -> bool {
    let mut current = total.load(Relaxed);
    loop {
        let next = if delta >= 0 {
            current.saturating_add(delta as u64)
        } else {
            current.saturating_sub(delta.unsigned_abs())
        };
        match total.compare_exchange_weak(current, next, Relaxed, Relaxed) {
            Ok(_) => return delta >= 0 || delta.unsigned_abs() <= current,
            Err(seen) => current = seen,
        }
    }
}

/// Physical bytes of one device.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct DeviceTotals {
    pub live: AtomicU64,
    pub peak: AtomicU64,
    pub peak_time_ns: AtomicU64,
    /// The peak since the last restart of the watch.
    pub watched_peak: AtomicU64,
    /// The peak since the history last took it.
    pub recent_peak: AtomicU64,
    pub kinds: [AtomicU64; KINDS],
    /// The bytes of a kind at the peak, if its epoch is that of the peak; otherwise they have not
    /// changed since.
    kinds_at_peak: [AtomicU64; KINDS],
    kind_epochs: [KeptEpoch; KINDS],
    peaks: Peaks,
    pub refused_by_cap: AtomicU64,
    pub refused_by_driver: AtomicU64,
    pub warned: AtomicU64,
    /// 1 once anything was seen on it.
    pub seen: AtomicU32,
}

impl DeviceTotals {
    /// False: a sum would have gone below zero.
    pub fn add(&self, kind: Kind, delta: i64, now_ns: u64) -> bool {
        if delta == 0 {
            return true;
        }
        let index = kind as usize;
        self.kind_epochs[index].keep(self.epoch(), &self.kinds_at_peak[index], &self.kinds[index]);
        let kind_ok = add_saturating(&self.kinds[index], delta);
        let live_ok = add_saturating(&self.live, delta);
        if delta > 0 {
            let live = self.live.load(Relaxed);
            if live > self.peak.fetch_max(live, Relaxed) {
                self.peak_time_ns.store(now_ns, Relaxed);
                self.peaks.reached();
            }
            if live > self.watched_peak.load(Relaxed) {
                self.watched_peak.fetch_max(live, Relaxed);
            }
            if live > self.recent_peak.load(Relaxed) {
                self.recent_peak.fetch_max(live, Relaxed);
            }
        }
        kind_ok && live_ok
    }

    /// How often the peak was reached.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.peaks.epoch()
    }

    /// The epoch for an allocation (`came`) or a free of this kind, and whether it is the first block
    /// that was allocated since the peak.
    #[inline]
    pub fn epoch_for(&self, kind: Kind, came: bool) -> (u32, bool) {
        self.peaks.epoch_for(came && kind == Kind::Block)
    }

    /// Bytes of a kind at the peak.
    pub fn kind_at_peak(&self, kind: Kind) -> u64 {
        let index = kind as usize;
        match self.kind_epochs[index].is_of(self.epoch()) {
            true => self.kinds_at_peak[index].load(Relaxed),
            false => self.kinds[index].load(Relaxed),
        }
    }
}

/// Counts of one (device, kind) in one shard. Changed under the shard's lock, read without it.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct KindSum {
    allocations: AtomicU64,
    frees: AtomicU64,
    requested: AtomicU64,
    /// The values as the checkpoint `epoch` began.
    before: [AtomicU64; 3],
    epoch: AtomicU32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub allocations: u64,
    pub frees: u64,
    /// Requested bytes that are live.
    pub requested: u64,
}

impl Sums {
    pub fn add(&mut self, other: Sums) {
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.frees = self.frees.saturating_add(other.frees);
        self.requested = self.requested.saturating_add(other.requested);
    }
}

fn bump(word: &AtomicU64, by: u64) {
    word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
}

impl KindSum {
    #[inline]
    fn keep(&self, epoch: u32) {
        if self.epoch.load(Relaxed) != epoch {
            let now = self.now();
            self.before[0].store(now.allocations, Relaxed);
            self.before[1].store(now.frees, Relaxed);
            self.before[2].store(now.requested, Relaxed);
            self.epoch.store(epoch, Relaxed);
        }
    }

    #[inline]
    pub fn allocated(&self, size: u64, epoch: u32) {
        self.keep(epoch);
        bump(&self.allocations, 1);
        bump(&self.requested, size);
    }

    /// Counts a free of `size` requested bytes.
    #[inline]
    pub fn freed(&self, size: u64, epoch: u32) {
        self.keep(epoch);
        bump(&self.frees, 1);
        let left = self.requested.load(Relaxed).saturating_sub(size);
        self.requested.store(left, Relaxed);
    }

    /// A free that the driver refused.
    pub fn unfreed(&self, size: u64, epoch: u32) {
        self.keep(epoch);
        let frees = self.frees.load(Relaxed).saturating_sub(1);
        self.frees.store(frees, Relaxed);
        bump(&self.requested, size);
    }

    pub fn now(&self) -> Sums {
        Sums {
            allocations: self.allocations.load(Relaxed),
            frees: self.frees.load(Relaxed),
            requested: self.requested.load(Relaxed),
        }
    }

    /// As the checkpoint `epoch` began.
    pub fn at(&self, epoch: u32) -> Sums {
        if self.epoch.load(Relaxed) != epoch {
            return self.now();
        }
        Sums {
            allocations: self.before[0].load(Relaxed),
            frees: self.before[1].load(Relaxed),
            requested: self.before[2].load(Relaxed),
        }
    }
}

/// The sums of one (site, stack), in one shard. The fields that each call changes are on one cache
/// line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct SiteSlot {
    site: u32,
    stack: u32,
    /// 0 = empty slot; else 1, the device and the kind, a byte each.
    used: u32,
    epoch: u32,
    now: [u64; 3],
    held: AtPeak,
    before: [u64; 3],
    pub written: u32,
}

/// The owner of an allocation: its site and stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Maker {
    pub site: SiteId,
    pub stack: StackId,
    pub device: DeviceId,
    pub kind: Kind,
}

/// A change of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Allocated,
    Freed,
    /// A free that the driver refused.
    Unfreed,
}

/// Since the start: calls, frees, and the requested bytes of all allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteTotals {
    pub allocations: u64,
    pub frees: u64,
    pub bytes: u64,
}

// SAFETY: plain numbers; used 0 is the empty slot.
unsafe impl Slot for SiteSlot {
    type Key = (SiteId, StackId);

    fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn key(&self) -> (SiteId, StackId) {
        (SiteId(self.site), StackId(self.stack))
    }

    fn hash((site, stack): (SiteId, StackId)) -> u64 {
        spread(u64::from(site.0) << 32 | u64::from(stack.0))
    }
}

impl SiteSlot {
    /// A slot made while checkpoint `epoch` is the last one: zero in it.
    pub fn new(maker: Maker, epoch: u32) -> Self {
        SiteSlot {
            site: maker.site.0,
            stack: maker.stack.0,
            used: 1 | u32::from(maker.device.0) << 8 | u32::from(maker.kind as u8) << 16,
            epoch,
            written: 0,
            now: [0; 3],
            before: [0; 3],
            held: AtPeak::default(),
        }
    }

    /// `of`: bytes and number of the allocations. `peak`: the device's epoch, and whether this is the first block in it.
    #[inline]
    pub fn add(&mut self, step: Step, of: [u64; 2], epoch: u32, peak: (u32, bool)) {
        let [size, number] = of;
        if self.epoch != epoch {
            self.before = self.now;
            self.epoch = epoch;
        }
        let kind = self.kind();
        if is_held(kind) {
            let (bytes, came) = (physical::share(kind, size), step != Step::Freed);
            let (epoch, joins_peak) = peak;
            self.held.apply(Change { bytes, number, came, epoch, joins_peak });
        }
        let [allocations, frees, bytes] = &mut self.now;
        match step {
            Step::Allocated => {
                *allocations = allocations.saturating_add(number);
                *bytes = bytes.saturating_add(size);
            }
            Step::Freed => *frees = frees.saturating_add(number),
            Step::Unfreed => *frees = frees.saturating_sub(number),
        }
    }

    #[inline]
    fn kind(&self) -> Kind {
        super::entry::kind((self.used >> 16) as u8)
    }

    pub fn maker(&self) -> Maker {
        Maker {
            site: SiteId(self.site),
            stack: StackId(self.stack),
            device: DeviceId((self.used >> 8) as u8),
            kind: self.kind(),
        }
    }

    pub fn held(&self) -> &AtPeak {
        &self.held
    }

    /// As the checkpoint `epoch` began.
    pub fn at(&self, epoch: u32) -> SiteTotals {
        let [allocations, frees, bytes] = if self.epoch == epoch { self.before } else { self.now };
        SiteTotals { allocations, frees, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stop_at_zero_and_say_so() {
        let total = AtomicU64::new(5);
        assert!(add_saturating(&total, -5));
        assert!(!add_saturating(&total, -1));
        assert_eq!(total.load(Relaxed), 0);
        assert!(add_saturating(&total, 3));
    }

    #[test]
    fn the_unknown_device_is_never_device_0() {
        assert_eq!(device_at(device_index(DeviceId::UNKNOWN)), DeviceId::UNKNOWN);
        assert_eq!(device_at(device_index(DeviceId(0))), DeviceId(0));
        assert_eq!(device_index(DeviceId(64)), device_index(DeviceId::UNKNOWN));
    }

    #[test]
    fn a_checkpoint_sees_the_values_of_its_beginning() {
        let maker = Maker {
            site: SiteId(1),
            stack: StackId(0),
            device: DeviceId::UNKNOWN,
            kind: Kind::Array,
        };
        let mut slot = SiteSlot::new(maker, 0);
        assert_eq!(slot.maker(), maker);
        slot.add(Step::Allocated, [100, 1], 0, (0, false));
        slot.add(Step::Freed, [100, 1], 1, (0, false));
        slot.add(Step::Allocated, [50, 1], 1, (0, false));
        assert_eq!(slot.at(1), SiteTotals { allocations: 1, frees: 0, bytes: 100 });
        assert_eq!(slot.at(2), SiteTotals { allocations: 2, frees: 1, bytes: 150 });
        let sum = KindSum::default();
        sum.allocated(10, 3);
        sum.freed(10, 4);
        assert_eq!(sum.at(4), Sums { allocations: 1, frees: 0, requested: 10 });
        assert_eq!(sum.at(5), Sums { allocations: 1, frees: 1, requested: 0 });
    }
}
