//! PyTorch's totals of its cache for each device, used by the trace and by post-mortems.

use crate::model::block_sampling::BlockFigures;
use crate::model::ledger::{DEVICES, device_at, device_index};
use crate::model::torch_lanes::Lane;
use crate::model::totals_due::{Met, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use vramtrace_format::{CacheBytes, DeviceId, Event, SiteId};

pub struct TorchTotals {
    devices: [DeviceCache; DEVICES],
    /// Where samples are recorded, the totals are there: most calls reach nothing else.
    sampled: Option<&'static BlockFigures>,
    /// The trace says that blocks carry their streams.
    pub are_streams_noted: AtomicBool,
}

/// All that a call reads of its device is on one line of the cache.
#[derive(Default)]
#[repr(align(64))]
struct DeviceCache {
    allocated: AtomicU64,
    reserved: AtomicU64,
    /// That they are written again.
    request: Request,
    /// When they were written last.
    written: Met,
    /// The trace says that blocks carry their requests.
    are_requests_noted: AtomicBool,
    /// The entry point of the last block allocated on the device, and the id of that site; 0: none yet.
    site: AtomicU64,
    /// The lane of that block.
    stream: AtomicU64,
    capture: AtomicU64,
}

impl TorchTotals {
    pub fn new(sampled: Option<&'static BlockFigures>) -> Self {
        TorchTotals {
            devices: std::array::from_fn(|_| DeviceCache::default()),
            sampled,
            are_streams_noted: AtomicBool::new(false),
        }
    }

    /// Stores the totals that a call reports. Returns true if they must be written to the trace. The
    /// caller holds PyTorch's lock of the device, so there is one call at a time for a device.
    #[inline(always)]
    pub fn update(&self, device: DeviceId, figures: CacheBytes) -> bool {
        let cache = &self.devices[device_index(device)];
        cache.allocated.store(figures.allocated, Relaxed);
        cache.reserved.store(figures.reserved, Relaxed);
        cache.request.is_new(&cache.written)
    }

    /// Whether the trace says that blocks carry their requests, as known to the calls of this device.
    #[inline(always)]
    pub fn are_requests_noted(&self, device: DeviceId) -> &AtomicBool {
        &self.devices[device_index(device)].are_requests_noted
    }

    /// The id of the site of this device's blocks in this lane; `None`: it is not cached. The caller holds PyTorch's lock, as
    /// for `update`.
    #[inline(always)]
    pub fn site(&self, device: DeviceId, api: u16, lane: Lane) -> Option<SiteId> {
        let known = &self.devices[device_index(device)];
        let last = known.site.load(Relaxed);
        let is_it = last >> 32 == u64::from(api) + 1
            && known.stream.load(Relaxed) == lane.stream
            && known.capture.load(Relaxed) == lane.capture;
        is_it.then_some(SiteId(last as u32))
    }

    /// Caches such an id; 0: there is none.
    pub fn set_site(&self, device: DeviceId, api: u16, lane: Lane, site: SiteId) {
        // Ordinals beyond the table share its last entry, whose site is not cached.
        if site == SiteId(0) || device_at(device_index(device)) != device {
            return;
        }
        let known = &self.devices[device_index(device)];
        known.stream.store(lane.stream, Relaxed);
        known.capture.store(lane.capture, Relaxed);
        known.site.store((u64::from(api) + 1) << 32 | u64::from(site.0), Relaxed);
    }

    /// Each device's next call is to be written: only in that call do figures and blocks agree.
    pub fn ask(&self) {
        self.devices.iter().for_each(|cache| cache.request.ask());
    }

    /// The last figures; `None`: there were none yet.
    pub fn of(&self, device: DeviceId) -> Option<CacheBytes> {
        let cache = &self.devices[device_index(device)];
        if !cache.written.is_any() {
            return None;
        }
        Some(self.sampled.map_or_else(
            || CacheBytes {
                allocated: cache.allocated.load(Relaxed),
                reserved: cache.reserved.load(Relaxed),
            },
            |sampled| sampled.totals(device),
        ))
    }

    /// The last figures of all devices, as they are written.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        (0..DEVICES).map(device_at).filter_map(|device| {
            let CacheBytes { allocated, reserved } = self.of(device)?;
            Some(Event::CacheState { device, allocated, reserved })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_looked_up_once_for_each_device_way_and_lane() {
        let caches = TorchTotals::new(None);
        let (one, other) = (1, 2);
        let lane = Lane::default();
        let known = |device, api, lane| caches.site(DeviceId(device), api, lane);
        let set = |device, api, lane, site| {
            caches.set_site(DeviceId(device), api, lane, SiteId(site));
        };
        set(0, one, lane, 0);
        assert_eq!(known(0, one, lane), None);
        set(0, one, lane, 7);
        assert_eq!(known(0, one, lane), Some(SiteId(7)));
        assert_eq!(known(1, one, lane), None);
        assert_eq!(known(0, other, lane), None);
        let lanes = [Lane { stream: 3, capture: 0 }, Lane { stream: 3, capture: 5 }];
        for (site, lane) in (10..).zip(lanes) {
            assert_eq!(known(0, one, lane), None);
            set(0, one, lane, site);
            assert_eq!(known(0, one, lane), Some(SiteId(site)));
        }
        for number in [64, 100] {
            set(number, one, lane, 9);
            assert_eq!(known(number, one, lane), None);
        }
    }

    #[test]
    fn the_first_call_and_each_that_is_asked_for_is_written() {
        let caches = TorchTotals::new(None);
        let one = |allocated| CacheBytes { allocated, reserved: 2 << 20 };
        assert_eq!(caches.of(DeviceId(1)), None);
        assert!(caches.update(DeviceId(1), one(512)));
        assert!(!caches.update(DeviceId(1), one(1024)));
        assert!(caches.update(DeviceId(0), one(0)));
        caches.ask();
        caches.ask();
        assert!(caches.update(DeviceId(1), one(1536)));
        assert!(!caches.update(DeviceId(1), one(2048)));
        assert_eq!(caches.of(DeviceId(1)), Some(one(2048)));
        assert_eq!(caches.events().count(), 2);
    }
}
