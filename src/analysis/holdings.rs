//! Bytes by stack: of a live set, and of each device at its own peak.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Kind, StackId, Stamped};

use crate::replay::{Birth, Death, DeviceState, Key, Live, LiveSet, Observer, Peak, State};
use crate::trace::{Definitions, Trace, Until};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Shares of physical memory, as [`Live::share`] counts them.
    pub bytes: u64,
    pub count: u64,
}

impl Held {
    pub fn add(&mut self, other: Held) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count = self.count.saturating_add(other.count);
    }

    fn remove(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.count = self.count.saturating_sub(1);
    }
}

/// What each stack held at a moment: a device's memory, without imports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holdings {
    pub held: FxHashMap<(DeviceId, StackId), Held>,
    /// Of which moment a device's figures are, ns since start.
    pub at_ns: BTreeMap<DeviceId, u64>,
}

impl Holdings {
    pub fn of_state(state: &State) -> Holdings {
        let mut holdings = Holdings::of_live(&state.live);
        holdings.at_ns = state.devices.keys().map(|device| (*device, state.time_ns)).collect();
        holdings
    }

    fn of_live(live: &LiveSet) -> Holdings {
        let mut holdings = Holdings::default();
        for (_, live) in live.iter().filter(|(_, live)| counts(live)) {
            let held = holdings.held.entry((live.device, live.stack)).or_default();
            held.add(Held { bytes: live.share(), count: 1 });
        }
        holdings
    }

    /// Each device at its own peak, as `end`, the state at the end, tells them. Reads the trace
    /// up to the last of them; memory is bounded by the number of stacks.
    pub fn at_peaks(trace: &Trace, definitions: &Definitions, end: &State) -> Holdings {
        let mut watch = PeakWatch::default();
        let mut last = 0;
        for (device, state) in end.devices.iter().filter(|(_, state)| state.peak.bytes > 0) {
            watch.wanted.insert(*device, Wanted { peak: state.peak, reached: 0, passed: false });
            last = last.max(state.peak.time_ns);
        }
        let offsets = watch.wanted.values().map(|wanted| wanted.peak.offset);
        // Without an offset the peak is told by the recorder's counters alone: the events
        // nearest to its time stand for it.
        let until = match offsets.collect::<Option<Vec<u64>>>() {
            Some(offsets) => Until::Offset(offsets.into_iter().max().unwrap_or(0)),
            None => Until::Time(last),
        };
        trace.replay_until(definitions, until, &mut watch, &mut |_, _| {});
        watch.finish();
        watch.found
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.held.keys().map(|(_, stack)| *stack)
    }
}

fn counts(live: &Live) -> bool {
    !live.kind.is_host() && live.kind != Kind::Imported
}

#[derive(Debug)]
struct Wanted {
    peak: Peak,
    /// Highest live bytes of the device at the peak's own event: one event may do several things.
    reached: u64,
    /// What was wanted is found.
    passed: bool,
}

/// Counts per stack while a trace is replayed, and keeps the counts of the peaks.
#[derive(Debug, Default)]
struct PeakWatch {
    now: FxHashMap<(DeviceId, StackId), Held>,
    wanted: BTreeMap<DeviceId, Wanted>,
    found: Holdings,
}

impl PeakWatch {
    fn keep(&mut self, device: DeviceId, at_ns: u64) {
        self.found.held.retain(|(of, _), _| *of != device);
        let here = self.now.iter().filter(|((of, _), held)| *of == device && held.count > 0);
        self.found.held.extend(here.map(|(key, held)| (*key, *held)));
        self.found.at_ns.insert(device, at_ns);
    }

    /// Before an event later than a peak without a place in the file.
    fn pass(&mut self, at: &Stamped) {
        let late: Vec<(DeviceId, u64)> = self
            .wanted
            .iter()
            .filter(|(_, wanted)| {
                !wanted.passed && wanted.peak.offset.is_none() && at.time_ns > wanted.peak.time_ns
            })
            .map(|(device, wanted)| (*device, wanted.peak.time_ns))
            .collect();
        for (device, time_ns) in late {
            self.keep(device, time_ns);
            if let Some(wanted) = self.wanted.get_mut(&device) {
                wanted.passed = true;
            }
        }
    }

    fn finish(&mut self) {
        let missing: Vec<(DeviceId, u64)> = self
            .wanted
            .iter()
            .filter(|(device, _)| !self.found.at_ns.contains_key(device))
            .map(|(device, wanted)| (*device, wanted.peak.time_ns))
            .collect();
        for (device, time_ns) in missing {
            self.keep(device, time_ns);
        }
    }
}

impl Observer for PeakWatch {
    fn born(&mut self, at: &Stamped, _key: Key, live: &Live, _how: Birth) {
        self.pass(at);
        if counts(live) {
            let held = self.now.entry((live.device, live.stack)).or_default();
            held.add(Held { bytes: live.share(), count: 1 });
        }
    }

    fn died(&mut self, at: &Stamped, _key: Key, live: &Live, _how: Death) {
        self.pass(at);
        if counts(live)
            && let Some(held) = self.now.get_mut(&(live.device, live.stack))
        {
            held.remove(live.share());
        }
    }

    fn changed(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let Some(wanted) = self.wanted.get_mut(&device) else { return };
        if wanted.peak.offset == Some(at.offset) && state.live_bytes >= wanted.reached {
            wanted.reached = state.live_bytes;
            self.keep(device, at.time_ns);
        }
    }

    fn reset(&mut self, _at: &Stamped) {
        self.now.clear();
    }
}
