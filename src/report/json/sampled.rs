//! Moments whose events were erased, in `report --at --json`: the key `sampled`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::{NamedStack, Process, SampledLevel, SampledMoment, SampledPhase};
use crate::report::wording::ordinal;

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledMomentFacts {
    pub pid: u32,
    pub rank: Option<u32>,
    pub trace: String,
    /// The requested moment, and the time that its figures are of.
    pub at_s: f64,
    pub from_s: f64,
    pub until_s: f64,
    pub samples: u32,
    pub devices: Vec<SampledDeviceFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledDeviceFacts {
    pub device: Option<u8>,
    /// The highest in this time, also between samples.
    pub peak_bytes: u64,
    /// Refused requests from the start to the end of this time.
    pub refused: u64,
    pub levels: Vec<SampledLevelFacts>,
    /// The phases of the program in which the device's memory was highest, highest first; four at most. Empty: not known.
    pub phases: Vec<SampledPhase>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledLevelFacts {
    /// `driver`, or `tensor`: blocks of PyTorch's cache.
    pub level: &'static str,
    pub lowest_bytes: u64,
    pub highest_bytes: u64,
    /// At the highest sample, largest first.
    pub holders: Vec<SampledHolderFacts>,
    /// Bytes at the highest sample by role, with `other` for the stacks that are not told apart. The role of a stack is that
    /// of most of its bytes in the events that are there. Null: no stack has one.
    pub by_role: Option<BTreeMap<&'static str, u64>>,
    /// The stacks that are not told apart, their bytes at the highest sample, and their growth in this time.
    pub other_stacks: u64,
    pub other_bytes: u64,
    pub other_grew_bytes: i64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledHolderFacts {
    pub bytes: u64,
    pub library: Option<String>,
    #[serde(flatten)]
    pub stack: NamedStack,
}

fn by_role(of: &SampledLevel) -> Option<BTreeMap<&'static str, u64>> {
    let known = of.roles.iter().map(|(role, bytes)| (role.name(), *bytes));
    let others = Some(("other", of.figures.other_highest)).filter(|(_, bytes)| *bytes > 0);
    (!of.roles.is_empty()).then(|| known.chain(others).collect())
}

/// `top`: length of each list.
pub(super) fn facts(process: &Process, found: &SampledMoment, top: usize) -> SampledMomentFacts {
    let at = |ns: u64| ns as f64 / 1e9;
    let level = |of: &SampledLevel| SampledLevelFacts {
        level: if of.figures.of_framework { "tensor" } else { "driver" },
        lowest_bytes: of.figures.lowest,
        highest_bytes: of.figures.highest,
        holders: of
            .lines
            .iter()
            .take(top)
            .map(|holder| SampledHolderFacts {
                bytes: holder.bytes,
                library: holder.library.clone(),
                stack: holder.stack.clone(),
            })
            .collect(),
        by_role: by_role(of),
        other_stacks: of.figures.other_stacks,
        other_bytes: of.figures.other_highest,
        other_grew_bytes: of.figures.other_grew,
    };
    let devices = found.devices.iter().map(|of| SampledDeviceFacts {
        device: ordinal(of.device),
        peak_bytes: of.peak,
        refused: of.refused,
        levels: of.levels.iter().map(level).collect(),
        phases: of.phases.clone(),
    });
    SampledMomentFacts {
        pid: process.header.pid,
        rank: process.header.rank,
        trace: process.trace.display().to_string(),
        at_s: at(found.asked_ns),
        from_s: at(found.from_ns),
        until_s: at(found.until_ns),
        samples: found.samples,
        devices: devices.collect(),
    }
}
