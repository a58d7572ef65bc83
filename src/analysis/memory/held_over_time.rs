//! How much memory a process held for how long: the integral of its bytes over time, for accounting.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, Stamped};

use crate::replay::{DeviceState, History, Observer, State};

const NS_PER_HOUR: f64 = 3.6e12;
const GIB: f64 = (1u64 << 30) as f64;

/// Bytes over time on one device.
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

    pub fn gib_hours(&self) -> f64 {
        self.byte_ns as f64 / NS_PER_HOUR / GIB
    }

    /// What the hours may differ by: in the time that is known by samples, each part has between its lowest and its highest
    /// sample. 0: all is known by events.
    pub fn error_gib_hours(&self) -> f64 {
        self.error_byte_ns as f64 / NS_PER_HOUR / GIB
    }
}

/// Sums the bytes of each device over time, as the headline of a report counts them. Up to the last gap the samples of the
/// recorder's history count, as far as it has any; else, where events are missing, the bytes before the gap count until the
/// next event.
#[derive(Clone, Debug, Default)]
pub struct HeldOverTimeObserver {
    devices: BTreeMap<DeviceId, HeldOverTime>,
    /// The end of the last gap, with the sums up to there.
    gap: Option<(u64, BTreeMap<DeviceId, u128>)>,
    /// What each device holds beside allocations after it: contexts, the driver's own memory.
    beside: BTreeMap<DeviceId, u64>,
}

impl HeldOverTimeObserver {
    /// The sums up to the end of the trace.
    pub fn finish(
        mut self,
        end_ns: u64,
        history: Option<&History>,
    ) -> BTreeMap<DeviceId, HeldOverTime> {
        self.devices.values_mut().for_each(|held| held.pass(end_ns));
        if let (Some((gap_ns, before)), Some(history)) = (self.gap, history) {
            for (device, held) in &mut self.devices {
                let by_events = before.get(device).copied().unwrap_or(0);
                let beside = self.beside.get(device).copied().unwrap_or(0);
                Samples::of(history, *device, gap_ns, beside).replace(held, by_events, gap_ns);
            }
        }
        self.devices
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

    /// Puts the samples in the place of what the events say up to `until_ns`; the time without samples keeps its share of that.
    fn replace(self, held: &mut HeldOverTime, by_events: u128, until_ns: u64) {
        if self.known_ns == 0 {
            return;
        }
        let without = u128::from(until_ns.saturating_sub(self.known_ns));
        let kept = by_events / u128::from(until_ns.max(1)) * without;
        let since = held.byte_ns.saturating_sub(by_events);
        held.byte_ns = since.saturating_add(self.byte_ns).saturating_add(kept);
        held.error_byte_ns = self.error_byte_ns;
    }
}

impl Observer for HeldOverTimeObserver {
    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let held = self.devices.entry(device).or_default();
        held.change(at.time_ns, state.in_use().headline());
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.devices.values_mut().for_each(|held| held.pass(at.time_ns));
        let sums = self.devices.iter().map(|(device, held)| (*device, held.byte_ns));
        self.gap = Some((at.time_ns, sums.collect()));
    }

    fn on_resume(&mut self, _: &Stamped, state: &State) {
        let beside = |of: &DeviceState| of.in_use().headline().saturating_sub(of.live_bytes);
        self.beside = state.devices.iter().map(|(device, of)| (*device, beside(of))).collect();
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
        Samples::of(&history, DEVICE, 40 * HOUR, 1 << 30).replace(&mut held, by_events, 40 * HOUR);
        // Each with 1 GiB beside it; the last 10 hours as the events say.
        let expected = 10.0 * (4.0 + 1.0) + 10.0 * (6.0 + 1.0) + 10.0 * (8.0 + 1.0) + 10.0 + 3.0;
        assert!((held.gib_hours() - expected).abs() < 1e-6, "{}", held.gib_hours());
        assert_eq!(held.error_gib_hours(), 10.0 * 2.0);
        // Without samples nothing changes.
        let known = held;
        let nothing = Samples::of(&History::default(), DEVICE, 40 * HOUR, 1 << 30);
        nothing.replace(&mut held, by_events, 40 * HOUR);
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
        assert_eq!(held.gib_hours(), 2.0 * 2.0 + 1.0);
        held.change(u64::MAX, u64::MAX);
        held.pass(0);
        assert!(held.gib_hours() > 5.0);
    }
}
