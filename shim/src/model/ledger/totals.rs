//! Sums: per device (atomics, with the peak), per device and kind, and per (site, stack) with
//! the values that a running checkpoint still needs.

use super::peaks::{KeptEpoch, Peaks};
use crate::model::cap::add_saturating;
use crate::runtime::hash_table::{Slot, spread};
use crate::runtime::zero_pages::Zeroed;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst,
};
use vramtrace_format::summary::{AtPeak, Change};
use vramtrace_format::{DeviceId, Kind, SiteId, StackId};

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

/// The last checkpoint that began, 0 before the first, and in the upper half the one that is being written, 0: none. One word:
/// who read them one after the other could take an entry that the new checkpoint lacks for one of before it, and not write it.
#[derive(Default)]
pub(super) struct Checkpoints(AtomicU64);

impl Checkpoints {
    /// The last one, and the one that is being written.
    #[inline(always)]
    pub fn now(&self) -> (u32, u32) {
        // Acquire: who sees a new one also sees that the recording was switched on before it.
        let word = self.0.load(Acquire);
        (word as u32, (word >> 32) as u32)
    }

    pub fn begin(&self, id: u32) {
        self.0.store(u64::from(id) << 32 | u64::from(id), SeqCst);
    }

    pub fn end(&self) {
        self.0.fetch_and(u64::from(u32::MAX), SeqCst);
    }
}

/// Physical bytes of one device. What every call reads is on the first cache line.
#[derive(Default)]
#[repr(C, align(128))]
pub(super) struct DeviceTotals {
    peaks: Peaks,
    /// 1 once anything was seen on it.
    pub seen: AtomicU32,
    /// The next allocation is to be noted.
    pub awaits: AtomicBool,
    pub live: AtomicU64,
    pub peak: AtomicU64,
    pub peak_time_ns: AtomicU64,
    /// The peak since the last restart of the watch.
    pub watched_peak: AtomicU64,
    /// The peak since the history last took it.
    pub recent_peak: AtomicU64,
    /// Those of the whole ledger: each device has them, so that a call finds them on this line.
    pub checkpoints: Checkpoints,
    kinds: [KindBytes; KINDS],
    pub refused_by_cap: AtomicU64,
    pub refused_by_driver: AtomicU64,
    pub warned: AtomicU64,
}

/// Physical bytes of one kind.
#[derive(Default)]
struct KindBytes {
    live: AtomicU64,
    /// The bytes at the peak, if the epoch is that of the peak; otherwise they have not changed since.
    at_peak: AtomicU64,
    epoch: KeptEpoch,
}

/// As `fetch_max`, but stores nothing where the value is not a new one. Returns whether it is.
#[inline]
fn raise(most: &AtomicU64, to: u64) -> bool {
    to > most.load(Relaxed) && to > most.fetch_max(to, Relaxed)
}

impl DeviceTotals {
    /// False: a sum would have gone below zero.
    pub fn add(&self, kind: Kind, delta: i64, now_ns: u64) -> bool {
        if delta == 0 {
            return true;
        }
        let bytes = &self.kinds[kind as usize];
        bytes.epoch.keep(self.epoch(), &bytes.at_peak, &bytes.live);
        let kind_ok = add_saturating(&bytes.live, delta, Relaxed);
        let live_ok = add_saturating(&self.live, delta, Relaxed);
        if delta > 0 {
            let live = self.live.load(Relaxed);
            if raise(&self.peak, live) {
                self.peak_time_ns.store(now_ns, Relaxed);
                self.peaks.reached();
            }
            raise(&self.watched_peak, live);
            raise(&self.recent_peak, live);
        }
        kind_ok && live_ok
    }

    /// How often the peak was reached.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.peaks.epoch()
    }

    /// The epoch for a change of this kind by `step`, and whether it is the first block that was allocated since the peak.
    #[inline]
    pub fn epoch_for(&self, kind: Kind, step: Step) -> (u32, bool) {
        self.peaks.epoch_for(step != Step::Freed && kind == Kind::Block)
    }

    /// Bytes of a kind now.
    pub fn live_of(&self, kind: Kind) -> u64 {
        self.kinds[kind as usize].live.load(Relaxed)
    }

    /// Bytes of a kind at the peak.
    pub fn kind_at_peak(&self, kind: Kind) -> u64 {
        let bytes = &self.kinds[kind as usize];
        let is_kept = bytes.epoch.is_of(self.epoch());
        if is_kept { &bytes.at_peak } else { &bytes.live }.load(Relaxed)
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

// SAFETY: numbers.
unsafe impl Zeroed for KindSum {}

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

    fn load([allocations, frees, requested]: [&AtomicU64; 3]) -> Sums {
        let [allocations, frees, requested] =
            [allocations, frees, requested].map(|sum| sum.load(Relaxed));
        Sums { allocations, frees, requested }
    }
}

impl KindSum {
    #[cold]
    #[inline(never)]
    fn keep(&self, epoch: u32) {
        for (before, now) in self.before.iter().zip(self.words()) {
            before.store(now.load(Relaxed), Relaxed);
        }
        self.epoch.store(epoch, Relaxed);
    }

    fn words(&self) -> [&AtomicU64; 3] {
        [&self.allocations, &self.frees, &self.requested]
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.allocations.load(Relaxed) == 0
    }

    /// Counts a change of an allocation of `size` requested bytes.
    #[inline(always)]
    pub fn add(&self, step: Step, size: u64, epoch: u32) {
        if self.epoch.load(Relaxed) != epoch {
            self.keep(epoch);
        }
        let (count, by) = match step {
            Step::Allocated => (&self.allocations, 1),
            Step::Freed => (&self.frees, 1),
            Step::Unfreed => (&self.frees, u64::MAX),
        };
        count.store(count.load(Relaxed).wrapping_add(by), Relaxed);
        let live = self.requested.load(Relaxed);
        let live = match step {
            Step::Freed => live.saturating_sub(size),
            Step::Allocated | Step::Unfreed => live.wrapping_add(size),
        };
        self.requested.store(live, Relaxed);
    }

    pub fn now(&self) -> Sums {
        Sums::load(self.words())
    }

    /// As the checkpoint `epoch` began.
    pub fn at(&self, epoch: u32) -> Sums {
        if self.epoch.load(Relaxed) != epoch {
            self.now()
        } else {
            Sums::load(self.before.each_ref())
        }
    }
}

/// The sums of one (site, stack), in one shard. The fields that each call changes are on one cache
/// line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct SiteSlot {
    /// [`super::Entry::maker`]; 0 = empty slot.
    maker: u64,
    device: DeviceId,
    kind: u8,
    epoch: u32,
    now: SiteTotals,
    held: AtPeak,
    before: SiteTotals,
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

/// Since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteTotals {
    pub allocations: u64,
    pub frees: u64,
}

// SAFETY: plain numbers; maker 0 is the empty slot.
unsafe impl Slot for SiteSlot {
    type Key = u64;

    #[inline]
    fn is_empty(&self) -> bool {
        self.maker == 0
    }

    #[inline]
    fn key(&self) -> u64 {
        self.maker
    }

    #[inline]
    fn hash(maker: u64) -> u64 {
        // Site above stack, without the bit.
        spread((maker & !(1 << 63)).rotate_left(32))
    }
}

impl SiteSlot {
    /// A slot made while checkpoint `epoch` is the last one: zero in it.
    pub fn new(maker: u64, device: DeviceId, kind: Kind, epoch: u32) -> Self {
        SiteSlot {
            maker,
            device,
            kind: kind as u8,
            epoch,
            written: 0,
            now: SiteTotals::default(),
            before: SiteTotals::default(),
            held: AtPeak::default(),
        }
    }

    /// `number`: of the allocations. `held`: the physical bytes, where the kind is held. `peak`: the device's
    /// epoch, and whether this is the first block in it.
    #[inline]
    pub fn add(
        &mut self,
        step: Step,
        number: u64,
        held: Option<u64>,
        epoch: u32,
        peak: (u32, bool),
    ) {
        if self.epoch != epoch {
            self.keep(epoch);
        }
        if let Some(bytes) = held {
            let came = step != Step::Freed;
            let (epoch, joins_peak) = peak;
            self.held.apply(Change { bytes, number, came, epoch, joins_peak });
        }
        let SiteTotals { allocations, frees } = &mut self.now;
        match step {
            Step::Allocated => *allocations = allocations.wrapping_add(number),
            Step::Freed => *frees = frees.wrapping_add(number),
            Step::Unfreed => *frees = frees.wrapping_sub(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn keep(&mut self, epoch: u32) {
        self.before = self.now;
        self.epoch = epoch;
    }

    pub fn maker(&self) -> Maker {
        Maker {
            site: SiteId(self.maker as u32),
            stack: StackId((self.maker >> 32) as u32 & !(1 << 31)),
            device: self.device,
            kind: Kind::from_u8(self.kind).unwrap_or(Kind::Device),
        }
    }

    pub fn held(&self) -> &AtPeak {
        &self.held
    }

    /// As the checkpoint `epoch` began.
    pub fn at(&self, epoch: u32) -> SiteTotals {
        if self.epoch == epoch { self.before } else { self.now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ledger::Entry;

    #[test]
    fn sums_stop_at_zero_and_say_so() {
        let total = AtomicU64::new(5);
        assert!(add_saturating(&total, -5, Relaxed));
        assert!(!add_saturating(&total, -1, Relaxed));
        assert_eq!(total.load(Relaxed), 0);
        assert!(add_saturating(&total, 3, Relaxed));
    }

    #[test]
    fn the_unknown_device_is_never_device_0() {
        assert_eq!(device_at(device_index(DeviceId::UNKNOWN)), DeviceId::UNKNOWN);
        assert_eq!(device_at(device_index(DeviceId(0))), DeviceId(0));
        assert_eq!(device_index(DeviceId(64)), device_index(DeviceId::UNKNOWN));
    }

    #[test]
    fn nobody_sees_a_new_checkpoint_that_is_not_being_written() {
        const MOST: u32 = if cfg!(miri) { 100 } else { 2_000_000 };
        let checkpoints = Checkpoints::default();
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                (1..=MOST).for_each(|id| checkpoints.begin(id));
            });
            both.wait();
            loop {
                let (last, running) = checkpoints.now();
                assert_eq!(last, running);
                if last == MOST {
                    break;
                }
            }
        });
        checkpoints.end();
        assert_eq!(checkpoints.now(), (MOST, 0));
    }

    #[test]
    fn a_checkpoint_sees_the_values_of_its_beginning() {
        let (site, device, kind) = (SiteId(1), DeviceId::UNKNOWN, Kind::Array);
        let mut slot = SiteSlot::new(
            Entry { site, ..Entry::new(kind, 8, 100, device) }.maker(),
            device,
            kind,
            0,
        );
        assert_eq!(slot.maker(), Maker { site, stack: StackId(0), device, kind });
        slot.add(Step::Allocated, 1, None, 0, (0, false));
        slot.add(Step::Freed, 1, None, 1, (0, false));
        slot.add(Step::Allocated, 1, None, 1, (0, false));
        assert_eq!(slot.at(1), SiteTotals { allocations: 1, frees: 0 });
        assert_eq!(slot.at(2), SiteTotals { allocations: 2, frees: 1 });
        let sum = KindSum::default();
        sum.add(Step::Allocated, 10, 3);
        sum.add(Step::Freed, 10, 4);
        assert_eq!(sum.at(4), Sums { allocations: 1, frees: 0, requested: 10 });
        assert_eq!(sum.at(5), Sums { allocations: 1, frees: 1, requested: 0 });
    }
}
