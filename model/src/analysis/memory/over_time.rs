//! Bytes over the time of one process: as points, in bounded memory, and as their integral, for accounting.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, Stamped};

use crate::replay::{ByDevice, DeviceState, History, Observer, State};

/// Maximum number of points that are kept of one process for the sum of several, and of all processes together.
const MAX_POINTS: usize = 65_536;
const MAX_POINTS_TOGETHER: usize = 4 << 20;
const MIN_POINTS: usize = 1_024;
/// Maximum number of points of a chart.
const CHART: usize = 4_096;

/// Maximum number of points to keep of each process.
pub fn moments_for(processes: usize) -> usize {
    (MAX_POINTS_TOGETHER / processes.max(1)).clamp(MIN_POINTS, MAX_POINTS)
}

/// A value over time, as points. Where there are too many, neighbouring points become one with the higher
/// value, so that a sum of several is never too low.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    most: usize,
    /// Time in ns and value of each point, in order of time.
    pub points: Vec<(u64, u64)>,
    /// Changes that one point represents, and those that the last point has so far.
    stride: u32,
    taken: u32,
}

impl Curve {
    /// `most`: maximum number of points that are kept.
    pub fn new(most: usize) -> Curve {
        Curve { most: most.max(2), points: Vec::new(), stride: 1, taken: 0 }
    }

    /// Adds a change. Times are ns and may decrease a little.
    #[inline]
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
            let join = |points: &[(u64, u64)]| {
                (points[0].0, points.iter().map(|point| point.1).max().unwrap_or(0))
            };
            self.points = self.points.chunks(2).map(join).collect();
            self.stride = self.stride.saturating_mul(2);
        }
        let from = self.points.last().map_or(0, |last| last.0);
        self.points.push((time_ns.max(from), value));
        self.taken = 1;
    }

    /// The highest value in each of `columns` equal parts of the time from the first point to `to_ns`.
    pub fn columns(&self, to_ns: u64, columns: usize) -> Vec<u64> {
        let from_ns = self.points.first().map_or(0, |first| first.0);
        let length = u128::from(to_ns.saturating_sub(from_ns).max(1));
        let at = |column: usize| from_ns + (length * column as u128 / columns as u128) as u64;
        let value = |column: usize| {
            // The value of the last point before it holds at its begin.
            let begin = self.points.partition_point(|point| point.0 <= at(column));
            let end = self.points.partition_point(|point| point.0 < at(column + 1)).max(begin);
            let here = &self.points[begin.saturating_sub(1)..end];
            here.iter().map(|point| point.1).max().unwrap_or(0)
        };
        (0..columns).map(value).collect()
    }
}

/// The bytes of a device over time.
#[derive(Clone, Debug)]
pub struct OverTime {
    /// Of PyTorch's cache, for charts.
    pub allocated: Curve,
    pub reserved: Curve,
    /// [`DeviceState::held_bytes`], for the sum of several processes: without points if it is not wanted.
    pub bytes: Curve,
    pub held: Option<HeldOverTime>,
}

/// Follows the bytes of all devices.
#[derive(Clone, Debug, Default)]
pub struct OverTimeObserver {
    hours: bool,
    /// Maximum number of points of live bytes. 0: none.
    moments: usize,
    devices: ByDevice<OverTime>,
    /// The end of the last gap, with the integrals up to there.
    gap: Option<(u64, BTreeMap<DeviceId, u128>)>,
    /// What each device holds beside allocations after it: contexts, the driver's own memory.
    beside: BTreeMap<DeviceId, u64>,
}

impl OverTimeObserver {
    /// `hours`: integrals, too. `moments`: maximum number of points of live bytes; `None`: they are not wanted.
    pub fn new(hours: bool, moments: Option<usize>) -> OverTimeObserver {
        let moments = moments.unwrap_or(0);
        OverTimeObserver { hours, moments, ..OverTimeObserver::default() }
    }

    /// After the end of the trace. Up to the last gap the samples of the recorder's history count, as far as it has any; else,
    /// where events are missing, the bytes before the gap count until the next event.
    pub fn finish(mut self, end_ns: u64, history: Option<&History>) -> ByDevice<OverTime> {
        for held in self.devices.values_mut().filter_map(|of| of.held.as_mut()) {
            held.pass(end_ns);
        }
        if let (Some((gap_ns, before)), Some(history)) = (&self.gap, history) {
            for (device, by_events) in before {
                let held = self.devices.get_mut(device).and_then(|of| of.held.as_mut());
                let beside = self.beside.get(device).copied().unwrap_or(0);
                if let Some(held) = held {
                    held.replace(
                        Samples::of(history, *device, *gap_ns, beside),
                        *by_events,
                        *gap_ns,
                    );
                }
            }
        }
        self.devices
    }
}

impl Observer for OverTimeObserver {
    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let of = self.devices.get_or_insert_with(device, || OverTime {
            allocated: Curve::new(CHART),
            reserved: Curve::new(CHART),
            bytes: Curve::new(self.moments),
            held: self.hours.then(HeldOverTime::default),
        });
        let cache = &state.cache;
        if cache.reserved > 0 || cache.allocated > 0 || !of.reserved.points.is_empty() {
            of.allocated.push(at.time_ns, cache.allocated);
            of.reserved.push(at.time_ns, cache.reserved);
        }
        if self.moments > 0 {
            of.bytes.push(at.time_ns, state.held_bytes());
        }
        if let Some(held) = &mut of.held {
            held.change(at.time_ns, state.in_use().headline());
        }
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        for held in self.devices.values_mut().filter_map(|of| of.held.as_mut()) {
            held.pass(at.time_ns);
        }
        let sum = |(device, of): (&DeviceId, &OverTime)| Some((*device, of.held.as_ref()?.byte_ns));
        self.gap = Some((at.time_ns, (&self.devices).into_iter().filter_map(sum).collect()));
    }

    fn on_resume(&mut self, _: &Stamped, state: &State) {
        let beside = |of: &DeviceState| of.in_use().headline().saturating_sub(of.live_bytes);
        self.beside = state.devices.iter().map(|(device, of)| (*device, beside(of))).collect();
    }
}

const BYTE_NS_OF_GIB_HOUR: f64 = 3.6e12 * (1u64 << 30) as f64;

/// The integral of bytes over time, as the headline of a report counts the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldOverTime {
    byte_ns: u128,
    /// What it may differ by, where it is known by samples.
    error_byte_ns: u128,
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

    /// Puts samples in the place of what the events say up to `until_ns`; the time without samples keeps its share of that.
    fn replace(&mut self, samples: Samples, by_events: u128, until_ns: u64) {
        if samples.known_ns == 0 {
            return;
        }
        let without = u128::from(until_ns.saturating_sub(samples.known_ns));
        let kept = by_events / u128::from(until_ns.max(1)) * without;
        let since = self.byte_ns.saturating_sub(by_events);
        self.byte_ns = since.saturating_add(samples.byte_ns).saturating_add(kept);
        self.error_byte_ns = samples.error_byte_ns;
    }

    /// GiB-hours, and what they may differ by: in the time that is known by samples, each part has between its lowest and
    /// its highest sample. 0: all is known by events.
    pub fn gib_hours(&self) -> [f64; 2] {
        [self.byte_ns, self.error_byte_ns].map(|byte_ns| byte_ns as f64 / BYTE_NS_OF_GIB_HOUR)
    }
}

/// What the samples up to a time say of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    known_ns: u64,
    byte_ns: u128,
    error_byte_ns: u128,
}

impl Samples {
    fn of(history: &History, device: DeviceId, until_ns: u64, beside: u64) -> Samples {
        let mut samples = Samples::default();
        for (tier, at) in history.parts(until_ns) {
            let bin = &tier.bins[at];
            let length_ns = bin.length_ns();
            samples.known_ns = samples.known_ns.saturating_add(length_ns);
            let Some(of) = bin.devices.get(&device) else { continue };
            let level = of.level(false);
            let [lowest, highest] = level
                .map_or([0; 2], |level| [level.lowest.min(level.highest), level.highest])
                .map(u128::from);
            // The middle of the two, and the distance to it.
            let over_time = |twice: u128| twice.saturating_mul(length_ns.into()) / 2;
            let sum = lowest + highest + 2 * u128::from(beside);
            samples.byte_ns = samples.byte_ns.saturating_add(over_time(sum));
            samples.error_byte_ns =
                samples.error_byte_ns.saturating_add(over_time(highest - lowest));
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::history::{Bin, BinDevice};
    use vramtrace_format::HistoryLevel;

    const DEVICE: DeviceId = DeviceId(0);
    const LEVEL: HistoryLevel = HistoryLevel {
        device: DEVICE,
        of_framework: false,
        lowest: 0,
        highest: 0,
        allocations: 1,
        frees: 0,
        other_stacks: 0,
        other_lowest: 0,
        other_highest: 0,
        other_grew: 0,
    };
    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn samples_stand_for_the_time_before_a_gap() {
        let bin = |from: u64, until: u64, lowest: u64, highest: u64| {
            let mut of = BinDevice::default();
            of.driver =
                Some(HistoryLevel { lowest: lowest << 30, highest: highest << 30, ..LEVEL });
            let devices = [(DEVICE, of)].into();
            Bin { from_ns: from * HOUR, until_ns: until * HOUR, samples: 9, devices }
        };
        let mut history = History::default();
        history.tiers[0].bins = vec![bin(0, 10, 4, 4), bin(10, 20, 4, 8)];
        history.tiers[1].bins = vec![bin(20, 30, 8, 8), bin(30, 41, 99, 99)];
        // 40 hours, of which samples tell 30; the events before the gap said 1 GiB.
        let by_events = (40 * u128::from(HOUR)) << 30;
        let after = (3 * u128::from(HOUR)) << 30;
        let mut held = HeldOverTime { byte_ns: by_events + after, ..HeldOverTime::default() };
        held.replace(Samples::of(&history, DEVICE, 40 * HOUR, 1 << 30), by_events, 40 * HOUR);
        // Each with 1 GiB beside it; the last 10 hours as the events say.
        let expected = 10.0 * (4.0 + 1.0) + 10.0 * (6.0 + 1.0) + 10.0 * (8.0 + 1.0) + 10.0 + 3.0;
        let [hours, error] = held.gib_hours();
        assert!((hours - expected).abs() < 1e-6, "{hours}");
        assert_eq!(error, 10.0 * 2.0);
        // Without samples nothing changes.
        let known = held;
        let nothing = Samples::of(&History::default(), DEVICE, 40 * HOUR, 1 << 30);
        held.replace(nothing, by_events, 40 * HOUR);
        assert_eq!(held, known);
    }

    #[test]
    fn bytes_count_for_as_long_as_they_are_held() {
        let mut held = HeldOverTime::default();
        held.change(HOUR, 2 << 30);
        held.change(3 * HOUR, 6 << 30);
        // A stamp of another thread, a little earlier, adds nothing and takes nothing.
        held.change(3 * HOUR - 64, 1 << 30);
        held.pass(4 * HOUR);
        assert_eq!(held.gib_hours()[0], 2.0 * 2.0 + 1.0);
        held.change(u64::MAX, u64::MAX);
        held.pass(0);
        assert!(held.gib_hours()[0] > 5.0);
    }

    #[test]
    fn few_are_exact_and_many_are_never_too_low() {
        let mut few = Curve::new(64);
        for n in 0..50u64 {
            few.push(n * 10, n * 7 % 13);
        }
        assert_eq!(few.points.len(), 50);
        let value = |n: u64| n * 7 % 13;
        let mut many = Curve::new(64);
        for n in 0..10_000u64 {
            many.push(n * 10, value(n));
        }
        assert!(many.points.len() <= 64);
        for n in 0..10_000u64 {
            let at = many.points.partition_point(|point| point.0 <= n * 10) - 1;
            assert!(many.points[at].1 >= value(n), "{n}");
        }
        assert_eq!(moments_for(1), MAX_POINTS);
        assert_eq!(moments_for(1024) * 1024, MAX_POINTS_TOGETHER);
    }

    #[test]
    fn the_highest_of_each_part_is_shown() {
        let mut curve = Curve::new(64);
        let second = 1_000_000_000;
        for (at, value) in [(1, 5), (2, 9), (3, 3), (8, 4)] {
            curve.push(at * second, value);
        }
        assert_eq!(curve.columns(9 * second, 8), [5, 9, 3, 3, 3, 3, 3, 4]);
        assert_eq!(curve.columns(17 * second, 2), [9, 4]);
        assert_eq!(Curve::new(2).columns(8, 2), [0, 0]);
        curve.push(u64::MAX, 1);
        curve.push(0, u64::MAX);
        assert_eq!(curve.columns(u64::MAX, 3)[0], 9);
    }
}
