//! How much memory each device held for how long: the sum over samples, for the summary at the end.

use crate::runtime::fallible::TryPush;
use vramtrace_format::{DeviceId, HeldBytes};

struct OfDevice {
    device: DeviceId,
    bytes: u64,
    byte_ns: u128,
    error_byte_ns: u128,
}

/// Between two samples a device counts with the mean of both.
#[derive(Default)]
pub struct OverTime {
    devices: Vec<OfDevice>,
    /// The sample before the one that is being taken, and that one.
    before_ns: u64,
    now_ns: u64,
}

impl OverTime {
    /// A sample begins.
    pub(super) fn begin(&mut self, now_ns: u64) {
        (self.before_ns, self.now_ns) = (self.now_ns, now_ns.max(self.now_ns));
    }

    /// What a device holds, and the most that it held since the sample before.
    pub(super) fn add(&mut self, device: DeviceId, bytes: u64, peak: u64) {
        let known = self.devices.iter().position(|of| of.device == device);
        let at = known.unwrap_or(self.devices.len());
        // Without host memory the device is not in the sum.
        let fresh = OfDevice { device, bytes: 0, byte_ns: 0, error_byte_ns: 0 };
        if known.is_none() && self.devices.try_push(fresh).is_err() {
            return;
        }
        let of = &mut self.devices[at];
        let length_ns = u128::from(self.now_ns - self.before_ns);
        let [lowest, highest] =
            [of.bytes.min(bytes), of.bytes.max(bytes).max(peak)].map(u128::from);
        let twice = u128::from(of.bytes) + u128::from(bytes);
        let twice_off = (2 * highest - twice).max(twice - 2 * lowest);
        let over_time = |twice: u128| twice.saturating_mul(length_ns) / 2;
        of.byte_ns = of.byte_ns.saturating_add(over_time(twice));
        of.error_byte_ns = of.error_byte_ns.saturating_add(over_time(twice_off));
        of.bytes = bytes;
    }

    pub fn of(&self, device: DeviceId) -> Option<HeldBytes> {
        const SECOND_NS: u128 = 1_000_000_000;
        let of = self.devices.iter().find(|of| of.device == device)?;
        let seconds = |byte_ns: u128| u64::try_from(byte_ns / SECOND_NS).unwrap_or(u64::MAX);
        let (byte_s, error_byte_s) = (seconds(of.byte_ns), seconds(of.error_byte_ns));
        Some(HeldBytes { device, byte_s, error_byte_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_between_samples_are_their_mean_and_the_peak_bounds_the_error() {
        const SECOND: u64 = 1_000_000_000;
        let mut held = OverTime::default();
        let mut sample = |at: u64, bytes, peak| {
            held.begin(at * SECOND);
            held.add(DeviceId(0), bytes, peak);
            held.of(DeviceId(0)).unwrap()
        };
        let device = DeviceId(0);
        let sums = |byte_s, error_byte_s| HeldBytes { device, byte_s, error_byte_s };
        assert_eq!(sample(2, 100, 100), sums(100, 100));
        assert_eq!(sample(12, 100, 100), sums(1100, 100), "what stays is exact");
        assert_eq!(sample(14, 100, 150), sums(1300, 200), "a peak between two samples");
        assert_eq!(sample(14, 0, 0), sums(1300, 200), "no time has passed");
        // Clocks of several threads.
        assert_eq!(sample(13, 7, 7), sums(1300, 200));
        assert_eq!(sample(u64::MAX / SECOND, u64::MAX, 0).byte_s, u64::MAX);
        assert_eq!(held.of(DeviceId(1)), None);
    }
}
