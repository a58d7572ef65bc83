//! The training step that a failure ended, compared with those before it.

use serde::Serialize;

use super::Oom;
use crate::analysis::steps::Steps;

/// The step in which a request got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct AtStep {
    /// From 1, as in `report --by step`.
    pub number: usize,
    /// It asked for more than any step before.
    pub differs: bool,
    /// The largest request of each earlier step: the lowest and the highest. Null: there is none.
    pub earlier_low_bytes: Option<u64>,
    pub earlier_high_bytes: Option<u64>,
    #[serde(skip)]
    pub asked: u64,
}

impl AtStep {
    /// `None`: the failure was in no step, or there are none.
    pub fn of(steps: &Steps, oom: &Oom) -> Option<AtStep> {
        let number = steps.at(oom.offset)?.number;
        let earlier = steps.steps().iter().take(number - 1);
        let largest = || {
            let devices = earlier.clone().filter_map(|step| step.devices.get(&oom.device));
            devices.map(|memory| memory.largest_request_bytes)
        };
        let (earlier_low_bytes, earlier_high_bytes) = (largest().min(), largest().max());
        let differs = earlier_high_bytes.is_some_and(|most| oom.size > most);
        Some(AtStep { number, differs, earlier_low_bytes, earlier_high_bytes, asked: oom.size })
    }
}
