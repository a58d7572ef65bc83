//! The same leak in several processes of a run, once: by its level and its line.

use std::collections::HashMap;

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::ranks::key;
use crate::analysis::leaks::{Leak, Leaks, Verdict};
use crate::analysis::{GroupBy, Level, NamedStack};
use crate::facts::{self, ProcessId};

/// One leak of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MergedLeak {
    /// The verdict on the leak with the highest confidence, and of these the largest. The frames are those of this leak.
    pub verdict: Verdict,
    pub level: Level,
    #[serde(serialize_with = "facts::thousandths")]
    pub confidence: f64,
    #[serde(flatten)]
    pub stack: NamedStack,
    pub library: Option<String>,
    /// Of all processes together.
    pub bytes: u64,
    pub in_processes: Vec<LeakOfProcess>,
    /// The process and the leak there that stands for all.
    #[serde(skip)]
    pub shown: (usize, usize),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeakOfProcess {
    #[serde(flatten)]
    pub id: ProcessId,
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: DeviceId,
    pub bytes: u64,
    /// Index of the process.
    #[serde(skip)]
    pub process: usize,
}

/// Leaks of several processes, the sure and the large ones first.
pub fn merge(found: &[Leaks]) -> Vec<MergedLeak> {
    let mut known: HashMap<_, Vec<(usize, usize)>> = HashMap::new();
    for (process, leaks) in found.iter().enumerate() {
        for (index, leak) in leaks.leaks.iter().enumerate() {
            let key = key(&leak.stack, leak.library.as_deref(), GroupBy::Line);
            known.entry((leak.level, key)).or_default().push((process, index));
        }
    }
    let mut groups: Vec<Vec<(usize, usize)>> = known.into_values().collect();
    groups.sort_unstable();
    let mut all: Vec<MergedLeak> = groups.iter().map(|places| merged(found, places)).collect();
    all.sort_by_key(|merged| (merged.confidence < 0.5, std::cmp::Reverse(merged.bytes)));
    all
}

/// `places`: of each the process, and its number there; in order.
fn merged(found: &[Leaks], places: &[(usize, usize)]) -> MergedLeak {
    let leak = |(process, leak): (usize, usize)| -> &Leak { &found[process].leaks[leak] };
    let rank = |place| (leak(place).confidence, leak(place).bytes);
    let surest = places.iter().copied().reduce(|a, b| if rank(b) > rank(a) { b } else { a });
    let shown = surest.unwrap_or_default();
    let of = |&(process, index): &(usize, usize)| {
        let Leak { process: id, device, bytes, .. } = *leak((process, index));
        LeakOfProcess { id, device, bytes, process }
    };
    let in_processes: Vec<LeakOfProcess> = places.iter().map(of).collect();
    let Leak { verdict, level, confidence, stack, library, .. } = leak(shown);
    MergedLeak {
        verdict: *verdict,
        level: *level,
        confidence: *confidence,
        stack: stack.clone(),
        library: library.clone(),
        bytes: in_processes.iter().fold(0, |sum: u64, of| sum.saturating_add(of.bytes)),
        in_processes,
        shown,
    }
}
