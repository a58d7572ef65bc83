//! The training step that a failure ended, compared with those before it.

use vramtrace_format::DeviceId;

use super::Oom;
use crate::analysis::steps::{Step, Steps};

/// The step in which a request got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtStep {
    pub number: usize,
    /// The largest request of each earlier step: the lowest and the highest. `None`: there is no earlier one.
    pub earlier: Option<(u64, u64)>,
    pub asked: u64,
}

impl AtStep {
    /// `None`: the failure was in no step, or there are none.
    pub fn of(steps: &Steps, oom: &Oom) -> Option<AtStep> {
        let step = steps.at(oom.offset)?;
        let earlier = steps.steps().iter().take(step.number - 1);
        let largest = earlier.filter_map(|step| largest_of(step, oom.device));
        let range = |range: Option<(u64, u64)>, bytes: u64| {
            Some(range.map_or((bytes, bytes), |(low, high)| (low.min(bytes), high.max(bytes))))
        };
        Some(AtStep { number: step.number, earlier: largest.fold(None, range), asked: oom.size })
    }

    /// Whether it asked for more than any step before.
    pub fn differs(self) -> bool {
        self.earlier.is_some_and(|(_, most)| self.asked > most)
    }
}

fn largest_of(step: &Step, device: DeviceId) -> Option<u64> {
    step.devices.get(&device).map(|memory| memory.largest_request)
}
