//! The time whose events were erased, in a timeline: the recorder's samples as counters, one value for each part of it.

use std::collections::VecDeque;

use vramtrace_format::DeviceId;

use super::sink::Counter;
use crate::trace::{Definitions, Trace};

/// A device in a part of the time. Times are ns since the start of the trace.
pub(super) struct Sampled {
    pub from_ns: u64,
    until_ns: u64,
    pub device: DeviceId,
    /// The highest in this time.
    pub values: Vec<(Counter, u64)>,
}

/// In the order of time.
#[derive(Default)]
pub(super) struct SampledTime(VecDeque<Sampled>);

impl SampledTime {
    /// Reads the trace once, if it has a limit. `blocks`: with those of a framework.
    pub(super) fn of(trace: &Trace, definitions: &Definitions, blocks: bool) -> SampledTime {
        if trace.header().max_bytes.is_none() {
            return SampledTime::default();
        }
        let end = trace.replay(definitions, &mut ()).state;
        let Some(history) = end.history.filter(|_| end.history_from_ns > 0) else {
            return SampledTime::default();
        };
        let mut found = VecDeque::new();
        for (tier, at) in history.parts(u64::MAX) {
            let bin = &tier.bins[at];
            for (device, of) in &bin.devices {
                let mut values = vec![(Counter::Live, of.peak)];
                let physical = of.kinds().filter(|(kind, _)| kind.is_physical());
                values.extend(physical.map(|(kind, bytes)| (Counter::Kind(kind), bytes)));
                let blocks = of.blocks.filter(|_| blocks);
                values.extend(blocks.map(|level| (Counter::Allocated, level.highest)));
                let (from_ns, until_ns, device) = (bin.from_ns, bin.until_ns, *device);
                found.push_back(Sampled { from_ns, until_ns, device, values });
            }
        }
        SampledTime(found)
    }

    /// The parts between two events. In the others events are drawn.
    pub(super) fn between(&mut self, before_ns: u64, now_ns: u64) -> Vec<Sampled> {
        let mut found = Vec::new();
        while self.0.front().is_some_and(|next| next.until_ns <= now_ns) {
            found.extend(self.0.pop_front().filter(|next| next.from_ns >= before_ns));
        }
        found
    }
}
