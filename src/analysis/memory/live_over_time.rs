//! The live bytes of a device over the time of one process, in bounded memory.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, Stamped};

use crate::replay::{DeviceState, Observer};

/// The most moments that are kept of one process, and of all processes together.
const MOST: usize = 65_536;
const MOST_TOGETHER: usize = 4 << 20;
const FEWEST: usize = 1_024;

/// The most moments to keep of each process.
pub fn moments_for(processes: usize) -> usize {
    (MOST_TOGETHER / processes.max(1)).clamp(FEWEST, MOST)
}

/// A value over time, as points. Where there are too many, neighbouring points become one with the higher
/// value, so that a sum of several is never too low.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOverTime {
    most: usize,
    points: Vec<(u64, u64)>,
    /// Changes that one point represents, and those that the last point has so far.
    stride: u32,
    taken: u32,
}

impl LiveOverTime {
    pub fn new(most: usize) -> LiveOverTime {
        LiveOverTime { most: most.max(2), points: Vec::new(), stride: 1, taken: 0 }
    }

    /// Adds a change. Times are ns and may decrease a little.
    pub fn push(&mut self, time_ns: u64, value: u64) {
        if let Some(last) = self.points.last_mut() {
            if last.1 == value && self.stride == 1 {
                return;
            }
            if self.taken < self.stride {
                last.1 = last.1.max(value);
                self.taken += 1;
                return;
            }
        }
        if self.points.len() == self.most {
            self.points = self.points.chunks(2).map(join).collect();
            self.stride = self.stride.saturating_mul(2);
        }
        let from = self.points.last().map_or(0, |last| last.0);
        self.points.push((time_ns.max(from), value));
        self.taken = 1;
    }

    /// Time in ns and value of each point, in order of time.
    pub fn points(&self) -> &[(u64, u64)] {
        &self.points
    }
}

/// Follows the live bytes of all devices.
#[derive(Clone, Debug)]
pub struct LiveOverTimeObserver {
    most: usize,
    pub devices: BTreeMap<DeviceId, LiveOverTime>,
}

impl LiveOverTimeObserver {
    /// `most`: the most moments of each device that are kept.
    pub fn new(most: usize) -> LiveOverTimeObserver {
        LiveOverTimeObserver { most, devices: BTreeMap::new() }
    }
}

impl Observer for LiveOverTimeObserver {
    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let of = self.devices.entry(device).or_insert_with(|| LiveOverTime::new(self.most));
        of.push(at.time_ns, state.live_bytes);
    }
}

fn join(points: &[(u64, u64)]) -> (u64, u64) {
    (points[0].0, points.iter().map(|point| point.1).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_exact_and_many_are_never_too_low() {
        let mut few = LiveOverTime::new(64);
        for n in 0..50u64 {
            few.push(n * 10, n * 7 % 13);
        }
        assert_eq!(few.points().len(), 50);
        let value = |n: u64| n * 7 % 13;
        let mut many = LiveOverTime::new(64);
        for n in 0..10_000u64 {
            many.push(n * 10, value(n));
        }
        assert!(many.points().len() <= 64);
        for n in 0..10_000u64 {
            let at = many.points().partition_point(|point| point.0 <= n * 10) - 1;
            assert!(many.points()[at].1 >= value(n), "{n}");
        }
        assert_eq!(moments_for(1), MOST);
        assert_eq!(moments_for(1024) * 1024, MOST_TOGETHER);
    }
}
