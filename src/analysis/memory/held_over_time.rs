//! How much memory a process held for how long: the integral of its bytes over time, for accounting.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, Stamped};

use crate::replay::{DeviceState, Observer};

const NS_PER_HOUR: f64 = 3.6e12;
const GIB: f64 = (1u64 << 30) as f64;

/// Bytes over time on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldOverTime {
    byte_ns: u128,
    bytes: u64,
    since_ns: u64,
}

impl HeldOverTime {
    /// From this moment on the process holds so many bytes. Times may decrease a little.
    fn change(&mut self, time_ns: u64, bytes: u64) {
        self.pass(time_ns);
        self.bytes = bytes;
    }

    fn pass(&mut self, time_ns: u64) {
        let passed = time_ns.saturating_sub(self.since_ns);
        self.byte_ns = self.byte_ns.saturating_add(u128::from(self.bytes) * u128::from(passed));
        self.since_ns = self.since_ns.max(time_ns);
    }

    pub fn gib_hours(&self) -> f64 {
        self.byte_ns as f64 / NS_PER_HOUR / GIB
    }
}

/// Sums the bytes of each device over time, as the headline of a report counts them. Where events are missing, the
/// bytes before the gap count until the next event.
#[derive(Clone, Debug, Default)]
pub struct HeldOverTimeObserver {
    devices: BTreeMap<DeviceId, HeldOverTime>,
}

impl HeldOverTimeObserver {
    /// The sums up to the end of the trace.
    pub fn finish(mut self, end_ns: u64) -> BTreeMap<DeviceId, HeldOverTime> {
        self.devices.values_mut().for_each(|held| held.pass(end_ns));
        self.devices
    }
}

impl Observer for HeldOverTimeObserver {
    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let held = self.devices.entry(device).or_default();
        held.change(at.time_ns, state.in_use().headline());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn bytes_count_for_as_long_as_they_are_held() {
        let mut held = HeldOverTime::default();
        held.change(HOUR, 2 << 30);
        held.change(3 * HOUR, 6 << 30);
        // A stamp of another thread, a little earlier, adds nothing and takes nothing.
        held.change(3 * HOUR - 64, 1 << 30);
        held.pass(4 * HOUR);
        assert_eq!(held.gib_hours(), 2.0 * 2.0 + 1.0);
        held.change(u64::MAX, u64::MAX);
        held.pass(0);
        assert!(held.gib_hours() > 5.0);
    }
}
