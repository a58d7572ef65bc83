//! What is allowed: the cap of each device and what counts against it.
//!
//! The count of a device is the physical bytes of its allocations, what is promised to calls under
//! way, what its pools and graphs reserve, and what the driver took on its own (context, kernels)
//! as far as seen. Without a cap only the last part is kept here; the ledger has the rest.

mod budget;
mod growth;
mod managed;
mod under_way;

pub use budget::{Budget, Refusal, Reservation};
use managed::Managed;

pub use growth::{Change, Growth, Reading, Ticket};
pub use under_way::UnderWay;

use crate::ledger::add_saturating;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use vramtrace_format::capspec::CapSpec;
use vramtrace_format::{DeviceId, Kind};

/// What the driver says of a device; needed to find its rule in the cap.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFacts {
    pub uuid: [u8; 16],
    pub total_bytes: u64,
}

/// `None` when the driver cannot tell yet (not initialised). Must not pass through our hooks.
pub type Ask = fn(DeviceId) -> Option<DeviceFacts>;

pub struct Cap {
    spec: Option<CapSpec>,
    /// The cap could not be understood: everything is refused.
    bad: bool,
    ask: Ask,
    devices: [DeviceCap; DEVICES],
}

const DEVICES: usize = 256;

#[derive(Default)]
struct DeviceCap {
    budget: Budget,
    /// The rule was looked up; the budget's limit is final.
    resolved: AtomicBool,
    /// Context and unattributed bytes, a part of the budget's count.
    outside: AtomicU64,
    managed: Managed,
}

impl Cap {
    /// `spec`: `Ok(None)` = no cap; `Err` = a cap that could not be understood.
    pub fn new(spec: Result<Option<CapSpec>, ()>, ask: Ask) -> Cap {
        Cap {
            bad: spec.is_err(),
            spec: spec.unwrap_or(None),
            ask,
            devices: std::array::from_fn(|_| DeviceCap::default()),
        }
    }

    /// Memory calls and context creation must fail with CUDA_ERROR_INVALID_VALUE.
    #[inline]
    pub fn is_bad(&self) -> bool {
        self.bad
    }

    /// Some device has a cap.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.spec.is_some()
    }

    /// The device's budget when it has a cap, else `None`.
    #[inline]
    pub fn budget(&self, device: DeviceId) -> Option<&Budget> {
        self.spec.as_ref()?;
        self.resolve(device)
    }

    fn resolve(&self, device: DeviceId) -> Option<&Budget> {
        if device == DeviceId::UNKNOWN {
            return None;
        }
        let cap = &self.devices[device.0 as usize];
        if !cap.resolved.load(Acquire) {
            // Two threads may both look: they find the same.
            let facts = (self.ask)(device)?;
            let spec = self.spec.as_ref()?;
            let limit = spec.limit(device.0.into(), &facts.uuid, facts.total_bytes);
            cap.budget.set_limit(limit);
            cap.resolved.store(true, Release);
        }
        cap.budget.limit().map(|_| &cap.budget)
    }

    pub fn limit(&self, device: DeviceId) -> Option<u64> {
        self.budget(device).and_then(Budget::limit)
    }

    /// Promises `bytes` before the driver is asked. Before it refuses it calls `look_again`, which
    /// reads pools, graphs and the driver's figure for this process afresh.
    #[inline]
    pub fn reserve(
        &self,
        device: DeviceId,
        bytes: u64,
        look_again: impl FnOnce(),
    ) -> Result<Reservation<'_>, Refusal> {
        let Some(budget) = self.budget(device) else { return Ok(Reservation::none()) };
        budget.reserve(bytes).or_else(|_| {
            look_again();
            budget.reserve(bytes)
        })
    }

    /// As `reserve`, for pages of managed memory.
    pub fn reserve_managed(
        &self,
        device: DeviceId,
        pages: u64,
        look_again: impl FnOnce(),
    ) -> Result<Reservation<'_>, Refusal> {
        let Some(budget) = self.budget(device) else { return Ok(Reservation::none()) };
        let managed = &self.devices[device.0 as usize].managed;
        budget.reserve_managed(managed, pages).or_else(|_| {
            look_again();
            budget.reserve_managed(managed, pages)
        })
    }

    /// The driver has these physical bytes of `kind` no more.
    #[inline]
    pub fn went(&self, device: DeviceId, kind: Kind, bytes: u64) {
        let Some(budget) = self.budget(device) else { return };
        match kind {
            Kind::Managed => {
                self.devices[device.0 as usize].managed.remove(bytes, |change| {
                    budget.charge(change);
                });
            }
            _ => {
                budget.charge(-(bytes as i64));
            }
        }
    }

    /// What is counted for allocations and promised to calls under way, as pages: without what the
    /// driver took on its own, and without the rest of a step of managed memory.
    pub fn held(&self, device: DeviceId, live: u64) -> u64 {
        let look = |beside: u64| {
            let beside = if self.limit(device).is_some() { beside } else { 0 };
            let counted = self.counted(device, live);
            counted.saturating_sub(self.outside(device)).saturating_sub(beside)
        };
        self.devices[device.0 as usize].managed.beside(look)
    }

    /// After the driver's free returned success.
    #[inline]
    pub fn release(&self, device: DeviceId, bytes: u64) {
        self.grow(device, -(bytes as i64));
    }

    /// Physical bytes that changed outside a reservation.
    pub fn grow(&self, device: DeviceId, delta: i64) {
        if let Some(budget) = self.budget(device) {
            budget.charge(delta);
        }
    }

    /// What the driver took, or gave back, on its own: context, kernels, unattributed bytes.
    pub fn charge(&self, device: DeviceId, delta: i64) {
        let cap = &self.devices[device.0 as usize];
        add_saturating(&cap.outside, delta);
        if self.is_set() && device != DeviceId::UNKNOWN {
            // Also before the limit is known: it counts from the start.
            cap.budget.charge(delta);
        }
    }

    /// Context and unattributed bytes as charged so far.
    pub fn outside(&self, device: DeviceId) -> u64 {
        self.devices[device.0 as usize].outside.load(Relaxed)
    }

    /// All that counts; `live` is the ledger's sum, used where no cap keeps the count.
    pub fn counted(&self, device: DeviceId, live: u64) -> u64 {
        match self.budget(device) {
            Some(budget) => budget.counted(),
            None => live.saturating_add(self.outside(device)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use vramtrace_format::capspec;

    const GIB: u64 = 1 << 30;

    fn two_devices(device: DeviceId) -> Option<DeviceFacts> {
        (device.0 < 2).then_some(DeviceFacts { uuid: [device.0; 16], total_bytes: 24 * GIB })
    }

    fn cap(text: &str) -> Cap {
        Cap::new(Ok(Some(capspec::parse(text).unwrap())), two_devices)
    }

    #[test]
    fn a_default_and_an_exception() {
        let cap = cap("8GiB,1=50%");
        assert_eq!(cap.limit(DeviceId(0)), Some(8 * GIB));
        assert_eq!(cap.limit(DeviceId(1)), Some(12 * GIB));
        assert_eq!(cap.limit(DeviceId::UNKNOWN), None);
    }

    #[test]
    fn a_device_without_a_rule_has_no_cap_and_keeps_no_count() {
        let cap = cap("1=1GiB");
        let promise = cap.reserve(DeviceId(0), 100 * GIB, || panic!("no reason to look")).unwrap();
        promise.commit(100 * GIB as i64).unwrap();
        cap.release(DeviceId(0), 1);
        cap.charge(DeviceId(0), 5);
        assert_eq!(cap.counted(DeviceId(0), 7), 12);
    }

    #[test]
    fn the_driver_is_asked_again_before_a_refusal() {
        let cap = cap("0=1GiB");
        let looks = AtomicU32::new(0);
        cap.charge(DeviceId(0), GIB as i64);
        let look = || {
            looks.fetch_add(1, Relaxed);
            cap.charge(DeviceId(0), -100);
        };
        assert!(cap.reserve(DeviceId(0), 100, look).is_ok());
        assert_eq!(looks.load(Relaxed), 1);
        let refusal = cap.reserve(DeviceId(0), 101, || ()).err().unwrap();
        assert_eq!((refusal.counted, refusal.limit), (GIB - 100, GIB));
    }

    #[test]
    fn what_was_charged_before_the_limit_was_known_counts() {
        fn later(_: DeviceId) -> Option<DeviceFacts> {
            static READY: AtomicBool = AtomicBool::new(false);
            READY.swap(true, Relaxed).then_some(DeviceFacts { uuid: [0; 16], total_bytes: GIB })
        }
        let cap = Cap::new(Ok(Some(capspec::parse("50%").unwrap())), later);
        cap.charge(DeviceId(0), 10);
        assert_eq!(cap.limit(DeviceId(0)), None, "the driver cannot tell yet");
        assert_eq!(cap.limit(DeviceId(0)), Some(GIB / 2));
        assert_eq!(cap.counted(DeviceId(0), 0), 10);
    }

    #[test]
    fn a_bad_cap_is_not_no_cap() {
        assert!(Cap::new(Err(()), two_devices).is_bad());
        let none = Cap::new(Ok(None), two_devices);
        assert!(!none.is_bad() && !none.is_set());
        assert!(none.reserve(DeviceId(0), u64::MAX, || ()).is_ok());
    }
}
