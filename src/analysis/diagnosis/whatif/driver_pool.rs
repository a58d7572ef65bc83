//! Reads the requests of a run under PyTorch's backend `cudaMallocAsync` from its trace: there each tensor is an allocation
//! of the driver's pool, in the order and of the size in which PyTorch's own cache would have been asked for it.

use std::collections::BTreeMap;

use vramtrace_format::torch_conf::Bypass;
use vramtrace_format::{DeviceId, Kind, Refused, Stamped};

use super::recorded::{Recorded, RecordedOoms, Streams, outside};
use crate::allocator::Log;
use crate::replay::{
    AllocCause, CacheOomAt, DeviceState, FreeCause, Key, Live, OUT_OF_MEMORY, Observer, Until,
};
use crate::trace::{Definitions, Site, Trace};

/// Whether the run's tensors are allocations of the driver's pool.
pub(super) fn is_in_force(definitions: &Definitions) -> bool {
    let bypass = Bypass::of(|name| definitions.setting(name));
    matches!(bypass, Some(Bypass::Backend("cudaMallocAsync")))
}

/// The requests of each device with such allocations. Reads the trace once.
pub(super) fn read(trace: &Trace, definitions: &Definitions, until: Until) -> Vec<Recorded> {
    let (devices, streams) = (BTreeMap::new(), Streams::default());
    let mut requests = Requests { definitions, devices, streams };
    let reading = trace.replay_until(definitions, until, &mut requests, &mut |_, _| {});
    let Requests { devices, streams, .. } = requests;
    let recorded = |(id, of): (DeviceId, OfDevice)| {
        let mut log = of.log;
        if let Some(refused) = of.refused {
            log.refused(refused.size);
        }
        let state = reading.state.devices.get(&id)?;
        // What the backend that is in force forbids does not hold for others.
        Some(Recorded {
            peak_reserved: state.kind(Kind::Pool).peak_bytes,
            peak_allocated: of.peak,
            from_ns: of.from_ns,
            out_of_memory: RecordedOoms { last: of.refused, survived: of.survived },
            streams: streams.len(),
            ..Recorded::with_log(trace, definitions, (id, state), log)
        })
    };
    devices.into_iter().filter(|(_, of)| of.log.allocations() > 0).filter_map(recorded).collect()
}

#[derive(Debug, Default)]
struct OfDevice {
    log: Log,
    from_ns: Option<u64>,
    /// Requested bytes that are live, and the most.
    live: u64,
    peak: u64,
    /// Bytes outside of the pool.
    outside: u64,
    /// The last request, if it got no memory.
    refused: Option<CacheOomAt>,
    survived: u64,
}

struct Requests<'d> {
    definitions: &'d Definitions,
    devices: BTreeMap<DeviceId, OfDevice>,
    streams: Streams,
}

impl Observer for Requests<'_> {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        if live.kind != Kind::Pool {
            return;
        }
        let stream = self.streams.number(self.definitions, live);
        let device = self.devices.entry(live.device).or_default();
        device.survived += u64::from(device.refused.take().is_some());
        // Those of a checkpoint come first, as requests of that moment.
        if how == AllocCause::Checkpoint {
            device.from_ns = device.from_ns.or(Some(at.time_ns));
        }
        device.log.outside(device.outside);
        device.log.alloc(key.number, live.size, stream, 0);
        device.live = device.live.saturating_add(live.size);
        device.peak = device.peak.max(device.live);
    }

    fn on_free(&mut self, _at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if live.kind == Kind::Pool
            && let Some(device) = self.devices.get_mut(&live.device)
            && device.log.free(key.number)
        {
            device.live = device.live.saturating_sub(live.size);
        }
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&Site>) {
        let Some(site) = site.filter(|site| site.kind == Some(Kind::Pool)) else { return };
        if refused.result == OUT_OF_MEMORY {
            let device = self.devices.entry(site.device).or_default();
            device.survived += u64::from(device.refused.is_some());
            let (size, stack) = (refused.size, refused.stack);
            let (time_ns, offset, thread) = (at.time_ns, at.offset, at.thread);
            let (allocated, reserved) = (device.live, refused.counted);
            device.refused =
                Some(CacheOomAt { time_ns, offset, thread, size, allocated, reserved, stack });
        }
    }

    fn on_device_change(&mut self, _at: &Stamped, device: DeviceId, state: &DeviceState) {
        let of = self.devices.entry(device).or_default();
        of.outside = outside(state).saturating_sub(state.kind(Kind::Pool).live_bytes);
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        self.devices.clear();
    }
}
