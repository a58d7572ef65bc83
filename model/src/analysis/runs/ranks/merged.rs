//! Merges the holders, and the leaks, of several processes. The ids of stacks differ between traces: the frames
//! identify a holder.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use vramtrace_format::{DeviceId, DriverCause, SummaryMoment};

use super::ProcessFigures;
use super::held::holdings;
use crate::analysis::leaks::{Leak, Leaks, Verdict};
use crate::analysis::{GroupBy, Holder, Level, NamedStack, StackClassifier};
use crate::facts::{self, ProcessId};
use crate::symbols::Frame;

/// One holder of a run, with all processes that have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct MergedHolder {
    /// Sums over all processes.
    pub bytes: u64,
    pub count: u64,
    pub library: Option<String>,
    /// As in `holders`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "facts::cause")]
    #[cfg_attr(feature = "schemas", schemars(with = "Option<String>"))]
    pub driver_memory: Option<DriverCause>,
    /// Of the process and device that hold most.
    #[serde(flatten)]
    pub stack: NamedStack,
    /// In order of the index.
    pub processes: Vec<HeldByProcess>,
    /// The highest number of bytes of one process and device.
    #[serde(skip)]
    largest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct HeldByProcess {
    /// Index in `processes`.
    pub process: usize,
    #[serde(flatten)]
    pub id: ProcessId,
    pub bytes: u64,
}

/// A hash of the frames by which two stacks of different processes belong to the same holder.
fn key(stack: &NamedStack, library: Option<&str>, by: GroupBy) -> u64 {
    let mut hasher = DefaultHasher::new();
    stack.why_no_frames().hash(&mut hasher);
    let mut frame = |frame: Option<&Frame>, line: bool| {
        let file = frame.map(|frame| &frame.file);
        let line = frame.filter(|_| line).map(|frame| frame.line);
        // Without a line, and without a file, the function tells them apart.
        let function = line.is_none() || file.is_some_and(|file| file.is_empty());
        let function = frame.filter(|_| function).map(|frame| &frame.function);
        (file, line, function).hash(&mut hasher);
    };
    match by {
        GroupBy::Line | GroupBy::Function => {
            frame(stack.lead(), by == GroupBy::Line);
            frame(stack.caller(), by == GroupBy::Line);
            library.hash(&mut hasher);
        }
        GroupBy::Library => (library, stack.is_free_cache()).hash(&mut hasher),
        GroupBy::Stack => {
            for frame in stack.frames() {
                (&frame.file, frame.line, &frame.function).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

/// The memory that each source line holds at a moment, for each process.
pub fn holders_of(ranks: &[ProcessFigures], moment: SummaryMoment) -> Vec<Vec<Holder>> {
    let of = |rank: &ProcessFigures| {
        let classifier = StackClassifier::new(&rank.symbols, &rank.header);
        classifier.holders(&holdings(rank, &classifier, moment), GroupBy::Line)
    };
    ranks.iter().map(of).collect()
}

/// The holders of several processes, the largest first. Holders on several devices of one process are
/// merged, too.
pub fn merge(processes: &[Vec<Holder>], by: GroupBy) -> Vec<MergedHolder> {
    let mut places: HashMap<(u64, bool, Option<DriverCause>), usize> = HashMap::new();
    let mut all: Vec<MergedHolder> = Vec::new();
    for (process, holders) in processes.iter().enumerate() {
        for holder in holders {
            let key = key(&holder.stack, holder.library.as_deref(), by);
            let place =
                *places.entry((key, holder.of_cache, holder.driver_memory)).or_insert(all.len());
            if place == all.len() {
                all.push(MergedHolder {
                    bytes: 0,
                    count: 0,
                    library: holder.library.clone(),
                    driver_memory: holder.driver_memory,
                    stack: holder.stack.clone(),
                    processes: Vec::new(),
                    largest: holder.bytes,
                });
            }
            let merged = &mut all[place];
            merged.bytes = merged.bytes.saturating_add(holder.bytes);
            merged.count = merged.count.saturating_add(holder.count);
            if holder.bytes > merged.largest {
                (merged.largest, merged.stack) = (holder.bytes, holder.stack.clone());
                merged.library = holder.library.clone();
            }
            match merged.processes.last_mut() {
                Some(last) if last.process == process => {
                    last.bytes = last.bytes.saturating_add(holder.bytes);
                }
                _ => {
                    let (id, bytes) = (holder.process, holder.bytes);
                    merged.processes.push(HeldByProcess { process, id, bytes });
                }
            }
        }
    }
    all.sort_by_key(|merged| std::cmp::Reverse((merged.bytes, merged.count)));
    all
}

/// One leak of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
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
    pub processes: Vec<LeakOfProcess>,
    /// The process and the leak there that stands for all.
    #[serde(skip)]
    pub shown: (usize, usize),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct LeakOfProcess {
    #[serde(flatten)]
    pub id: ProcessId,
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    pub bytes: u64,
    /// Index of the process.
    #[serde(skip)]
    pub process: usize,
}

/// Leaks of several processes, the sure and the large ones first.
pub fn merge_leaks(found: &[Leaks]) -> Vec<MergedLeak> {
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
    let processes: Vec<LeakOfProcess> = places.iter().map(of).collect();
    let Leak { verdict, level, confidence, stack, library, .. } = leak(shown);
    MergedLeak {
        verdict: *verdict,
        level: *level,
        confidence: *confidence,
        stack: stack.clone(),
        library: library.clone(),
        bytes: processes.iter().fold(0, |sum: u64, of| sum.saturating_add(of.bytes)),
        processes,
        shown,
    }
}
