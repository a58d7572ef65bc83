//! The ledger's sums: for the cap, the trace and the live page.

use super::Ledger;
use super::totals::{DEVICES, Sums, device_at, device_index};
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::{Counters, DeviceId, Kind};

impl Ledger {
    /// Physical bytes of allocations: all kinds without imports and host memory.
    #[inline]
    pub fn live(&self, device: DeviceId) -> u64 {
        self.totals(device).live.load(Relaxed)
    }

    /// Restarts the watched peak. Returns the value so far.
    pub fn begin_peak(&self, device: DeviceId) -> u64 {
        let totals = self.totals(device);
        totals.watched_peak.swap(totals.live.load(Relaxed), Relaxed)
    }

    /// The peak since [`Ledger::begin_peak`], which returned `before`. An enclosing watch continues.
    pub fn end_peak(&self, device: DeviceId, before: u64) -> u64 {
        self.totals(device).watched_peak.fetch_max(before, Relaxed)
    }

    /// The peak since the last restart.
    pub fn watched_peak(&self, device: DeviceId) -> u64 {
        self.totals(device).watched_peak.load(Relaxed)
    }

    /// The peak since this was called last.
    pub fn take_recent_peak(&self, device: DeviceId) -> u64 {
        let totals = self.totals(device);
        totals.recent_peak.swap(totals.live.load(Relaxed), Relaxed)
    }

    /// Requests that were refused so far: by a cap, and by the driver.
    pub fn refused_so_far(&self, device: DeviceId) -> [u64; 2] {
        let totals = self.totals(device);
        [&totals.refused_by_cap, &totals.refused_by_driver].map(|count| count.load(Relaxed))
    }

    /// Physical bytes of one kind.
    pub fn live_of(&self, device: DeviceId, kind: Kind) -> u64 {
        self.totals(device).live_of(kind)
    }

    /// Counts and requested bytes of one kind; host kinds have no device: `DeviceId::UNKNOWN`.
    #[cfg(test)]
    pub fn sums(&self, device: DeviceId, kind: Kind) -> Sums {
        self.sum_up(device, |each| each == kind)
    }

    fn sum_up(&self, device: DeviceId, wanted: impl Fn(Kind) -> bool) -> Sums {
        let mut all = Sums::default();
        for kind in Kind::ALL.into_iter().filter(|kind| wanted(*kind)) {
            for shard in &self.shards {
                if let Some(sum) = shard.sum(device_index(device), kind as usize) {
                    all.add(sum.now());
                }
            }
        }
        all
    }

    /// Reads all shards, so it is not for every call. `counted` is `live` here; the caller adds the
    /// cap's figure.
    pub fn counters(&self, device: DeviceId) -> Counters {
        self.with_totals(device, self.sum_up(device, counts))
    }

    pub(super) fn with_totals(&self, device: DeviceId, sums: Sums) -> Counters {
        let totals = self.totals(device);
        let live = totals.live.load(Relaxed);
        Counters {
            device: device.0,
            live,
            peak: totals.peak.load(Relaxed),
            peak_time_ns: totals.peak_time_ns.load(Relaxed),
            live_requested: sums.requested,
            live_allocations: sums.allocations.saturating_sub(sums.frees),
            allocations: sums.allocations,
            frees: sums.frees,
            refused_by_cap: totals.refused_by_cap.load(Relaxed),
            refused_by_driver: totals.refused_by_driver.load(Relaxed),
            warned: totals.warned.load(Relaxed),
            counted: live,
        }
    }

    /// Devices on which anything was seen, the unknown one last.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        (0..DEVICES).filter(|index| self.devices[*index].seen.load(Relaxed) != 0).map(device_at)
    }
}

/// Kinds that count in a device's `allocations`, `frees` and requested bytes.
pub(super) fn counts(kind: Kind) -> bool {
    kind != Kind::Imported && kind.is_physical()
}
