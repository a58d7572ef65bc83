//! Merges the holders of several processes. The ids of stacks differ between traces: the frames
//! identify a holder.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use vramtrace_format::{Cause, StackId, SummaryMoment};

use super::Rank;
use super::held::holdings;
use crate::analysis::{FrameRoles, GroupBy, Holder, StackClassifier};
use crate::symbols::FREE_CACHE;

/// The holders of one process.
#[derive(Clone, Debug)]
pub struct Holders<'c, 's> {
    /// Index of the process.
    pub process: usize,
    pub classifier: &'c StackClassifier<'s>,
    pub holders: Vec<Holder>,
}

/// One holder of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// Sums over all processes: bytes, allocations, different stacks.
    pub bytes: u64,
    pub count: u64,
    pub stacks: u64,
    /// Index and bytes of each process that has this holder, in order of the index.
    pub processes: Vec<(usize, u64)>,
    /// The largest one: index of its source, and of the holder there.
    pub largest: (usize, usize),
}

impl Merged {
    /// Index and bytes of the process that holds most; of equal ones the first.
    pub fn most(&self) -> (usize, u64) {
        let all = self.processes.iter().rev();
        all.max_by_key(|(_, bytes)| *bytes).copied().unwrap_or_default()
    }
}

/// A hash of the frames by which two stacks of different processes belong to the same holder.
pub fn key(classifier: &StackClassifier, stack: StackId, roles: &FrameRoles, by: GroupBy) -> u64 {
    let mut hasher = DefaultHasher::new();
    if classifier.symbols.indexes(stack).is_empty() {
        classifier.symbols.why_empty(stack).hash(&mut hasher);
    }
    let frame = |hasher: &mut DefaultHasher, at: Option<usize>, line: bool| {
        let Some(frame) = classifier.frame(stack, at) else { return 0u8.hash(hasher) };
        frame.file.hash(hasher);
        if line {
            frame.line.hash(hasher);
        }
        if !line || frame.file.is_empty() {
            frame.function.hash(hasher);
        }
    };
    let library = classifier.library_name(roles);
    match by {
        GroupBy::Line | GroupBy::Function => {
            library.hash(&mut hasher);
            frame(&mut hasher, roles.lead, by == GroupBy::Line);
            frame(&mut hasher, roles.caller, by == GroupBy::Line);
        }
        GroupBy::Library => (library, stack == FREE_CACHE).hash(&mut hasher),
        GroupBy::Stack => {
            for frame in classifier.symbols.stack(stack) {
                (&frame.file, frame.line, &frame.function).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

/// The memory that each source line holds at a moment, for each process. `classifiers` has one entry for
/// each process, in the same order.
pub fn holders_of<'c, 's>(
    ranks: &[Rank],
    classifiers: &'c [StackClassifier<'s>],
    moment: SummaryMoment,
) -> Vec<Holders<'c, 's>> {
    let mut all = Vec::new();
    for (process, (rank, classifier)) in ranks.iter().zip(classifiers).enumerate() {
        let holdings = holdings(rank, classifier, moment);
        let holders = classifier.holders(&holdings, GroupBy::Line);
        all.push(Holders { process, classifier, holders });
    }
    all
}

/// Holders of several processes, the largest first. Holders on several devices of one process are
/// merged, too.
pub fn merge(sources: &[Holders], by: GroupBy) -> Vec<Merged> {
    let mut places: HashMap<(u64, bool, Option<Cause>), usize> = HashMap::new();
    let mut all: Vec<Merged> = Vec::new();
    for (at, source) in sources.iter().enumerate() {
        for (index, holder) in source.holders.iter().enumerate() {
            let roles = match holder.of_cache {
                true => source.classifier.roles_of_block(holder.stack),
                false => source.classifier.roles(holder.stack),
            };
            let key = key(source.classifier, holder.stack, &roles, by);
            let next = all.len();
            let place = *places.entry((key, holder.of_cache, holder.cause)).or_insert(next);
            if place == next {
                let largest = (at, index);
                let processes = Vec::new();
                all.push(Merged { bytes: 0, count: 0, stacks: 0, processes, largest });
            }
            let merged = &mut all[place];
            merged.bytes = merged.bytes.saturating_add(holder.bytes);
            merged.count = merged.count.saturating_add(holder.count);
            merged.stacks = merged.stacks.saturating_add(holder.stacks);
            let (of, nth) = merged.largest;
            if holder.bytes > sources[of].holders[nth].bytes {
                merged.largest = (at, index);
            }
            match merged.processes.last_mut() {
                Some((process, bytes)) if *process == source.process => {
                    *bytes = bytes.saturating_add(holder.bytes);
                }
                _ => merged.processes.push((source.process, holder.bytes)),
            }
        }
    }
    all.sort_by_key(|merged| std::cmp::Reverse((merged.bytes, merged.count)));
    all
}
