//! The figures of the table `samples` that come from the events, found in the first pass: bytes over time of each device
//! and stack, and what the driver and NVML reported.

use rustc_hash::FxHashMap;
use vramtrace_format::summary::is_held;
use vramtrace_format::{DeviceId, Space, StackId, Stamped};

use super::series::BinnedSeries;
use crate::analysis::Level;
use crate::replay::{AllocCause, DeviceState, FreeCause, Key, Live, Observer, SampleAt, State};

/// Bins of a device, and of a stack.
const DEVICE_BINS: u64 = 1 << 10;
const STACK_BINS: u64 = 1 << 5;

/// A device and a level. The stack: `None` for all of them.
pub(super) type SeriesKey = (DeviceId, Level, Option<StackId>);

pub(super) struct Watched {
    pub devices: BinnedSeries<SeriesKey>,
    pub stacks: BinnedSeries<SeriesKey>,
    pub reported: Vec<(DeviceId, SampleAt)>,
    last_ns: FxHashMap<DeviceId, u64>,
    /// Time of the latest event: a thread's stamp may be slightly less.
    now_ns: u64,
}

impl Watched {
    pub(super) fn new() -> Watched {
        Watched {
            devices: BinnedSeries::new(DEVICE_BINS),
            stacks: BinnedSeries::new(STACK_BINS),
            reported: Vec::new(),
            last_ns: FxHashMap::default(),
            now_ns: 0,
        }
    }

    /// ns since the start of the trace.
    fn at(&mut self, at: &Stamped) -> u64 {
        self.now_ns = self.now_ns.max(at.time_ns);
        self.now_ns
    }

    fn change(&mut self, at: &Stamped, key: Key, live: &Live, came: bool) {
        if !is_held(live.kind) {
            return;
        }
        let (now_ns, share) = (self.at(at), live.share());
        let level = if key.space == Space::Block { Level::Tensor } else { Level::Driver };
        self.stacks.change(now_ns, (live.device, level, Some(live.stack)), |bytes| match came {
            true => bytes.saturating_add(share),
            false => bytes.saturating_sub(share),
        });
    }
}

impl Observer for Watched {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, _how: AllocCause) {
        self.change(at, key, live, true);
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        self.change(at, key, live, false);
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let now_ns = self.at(at);
        self.devices.change(now_ns, (device, Level::Driver, None), |_| state.live_bytes);
        if state.cache.is_used() {
            self.devices.change(now_ns, (device, Level::Tensor, None), |_| state.cache.allocated);
        }
        if let Some(sample) = state.sample
            && self.last_ns.insert(device, sample.time_ns) != Some(sample.time_ns)
        {
            self.reported.push((device, sample));
        }
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        self.devices.forget();
        self.stacks.forget();
    }

    fn on_resume(&mut self, at: &Stamped, state: &State) {
        let now_ns = self.at(at);
        // A checkpoint has the sums of some kinds behind the allocations.
        for (device, of) in &state.devices {
            self.on_device_change(at, *device, of);
        }
        self.devices.resume(now_ns);
        self.stacks.resume(now_ns);
    }
}
