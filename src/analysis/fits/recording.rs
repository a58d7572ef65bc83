//! One recorded run: its blocks by stretch - before the first step, and each step - and the batch of each.

use std::ops::Range;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Mark, StackId, Stamped};

use super::keys::{StackKey, stack_keys};
use super::matching::Unpaired;
use super::{LARGEST_BATCH, NotComparable};
use crate::allocator::Request;
use crate::analysis::steps::{NoSteps, Step, StepObserver, StepState, Steps};
use crate::analysis::whatif::{NOT_OF_SAMPLES, Recorded, Source, why_no_blocks};
use crate::replay::Observer;
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};
use crate::units::several;

/// The name of what differs between the recordings: `batch`, or `length`.
#[derive(Clone, Debug, PartialEq)]
pub struct Varied(String);

impl Default for Varied {
    fn default() -> Varied {
        Varied("batch".into())
    }
}

impl Varied {
    /// `None`: not a name.
    pub fn new(name: &str) -> Option<Varied> {
        let name = name.trim().to_ascii_lowercase();
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        (!name.is_empty() && name.chars().all(is_letter)).then_some(Varied(name))
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// The number that a mark gives it: `batch=6`.
    pub(super) fn in_mark(&self, mark: &str) -> Option<u64> {
        let lower = mark.to_ascii_lowercase();
        let key = format!("{}=", self.0);
        let is_word = |at: usize| !lower[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        let (at, _) = lower.match_indices(&key).find(|(at, _)| is_word(*at))?;
        let digits = lower[at + key.len()..].trim_start();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok().filter(|value| *value > 0)
    }
}

/// The batches that the user names for a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Batches {
    /// The marks of the program name them.
    Marked,
    Each(u64),
    /// One for each step.
    Steps(Vec<u64>),
}

/// A recorded run, ready to be scaled.
#[derive(Debug)]
pub struct Recording {
    pub name: String,
    pub card: Option<String>,
    pub recorded: Recorded,
    /// Why the whole run is one stretch.
    pub no_steps: Option<NoSteps>,
    pub(super) blocks: Vec<Block>,
    pub(super) stretches: Vec<Stretch>,
}

/// One allocation of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub stack: StackKey,
    pub thread: u32,
    pub bytes: u64,
    /// The first allocation after its free. `usize::MAX`: it is not freed.
    pub freed_before: usize,
}

/// Allocations in a row: those before the first step, or those of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stretch {
    pub blocks: Range<usize>,
    pub batch: u64,
}

impl Recording {
    /// Reads a trace. `device`: `None` takes the one on which most was reserved.
    pub fn read(
        name: &str,
        trace: &Trace,
        device: Option<DeviceId>,
        varied: &Varied,
        batches: &Batches,
    ) -> Result<Recording, NotComparable> {
        let (definitions, _) = trace.definitions();
        if definitions.samples_blocks() {
            return Err(NotComparable(format!("{name}: {NOT_OF_SAMPLES}")));
        }
        let mut devices = Recorded::with_sources(trace, &definitions);
        if devices.is_empty() {
            return Err(NotComparable(format!("{name}: {}", why_no_blocks(&definitions))));
        }
        devices.retain(|recorded| device.is_none_or(|it| recorded.device == it));
        let recorded = devices.into_iter().max_by_key(|recorded| recorded.peak_reserved);
        let Some(recorded) = recorded else {
            let asked = device.map_or(0, |device| device.0);
            return Err(NotComparable(format!("{name}: PyTorch took no memory of device {asked}")));
        };
        if recorded.from_ns.is_some() {
            return Err(NotComparable(format!(
                "{name}: the trace lacks the beginning of the run: record with a larger \
                 VRAMTRACE_MAX_MB"
            )));
        }
        let symbols = Symbols::of_all(&definitions, trace.header());
        let mut marks = BatchMarks { definitions: &definitions, varied, found: Vec::new() };
        let mut steps = StepObserver::new(&definitions, &symbols);
        trace.replay(&definitions, &mut (&mut marks, &mut steps));
        let steps = steps.finish();
        if let Err(why @ (NoSteps::EventsMissing | NoSteps::Sampled)) = steps.found {
            return Err(NotComparable(format!("{name}: {why}")));
        }
        let stretches = stretches(name, &recorded, &steps, &marks.found, batches)?;
        Ok(Recording {
            name: name.to_string(),
            card: definitions.device(recorded.device).map(|device| device.name.clone()),
            no_steps: steps.found.err(),
            blocks: blocks(&recorded, &stack_keys(&definitions)),
            stretches,
            recorded,
        })
    }

    /// The batches of its steps, each once, in ascending order.
    pub fn batches(&self) -> Vec<u64> {
        let mut batches: Vec<u64> = self.stretches.iter().map(|stretch| stretch.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }

    /// The number of whole steps.
    pub fn steps(&self) -> usize {
        self.stretches.len() - 1
    }

    /// What the blocks of a stretch are paired by.
    pub(super) fn unpaired(&self, stretch: &Stretch) -> Vec<Unpaired> {
        let unpaired = |block: &Block| Unpaired { thread: block.thread, stack: block.stack };
        self.blocks[stretch.blocks.clone()].iter().map(unpaired).collect()
    }
}

/// The marks that name a batch: `batch=6`.
struct BatchMarks<'d> {
    definitions: &'d Definitions,
    varied: &'d Varied,
    /// Place in the file and batch.
    found: Vec<(u64, u64)>,
}

impl Observer for BatchMarks<'_> {
    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        let begins = matches!(mark, Mark::Push | Mark::Start | Mark::Moment);
        let text = self.definitions.text(name).filter(|_| begins);
        let batch = text.and_then(|text| self.varied.in_mark(text));
        self.found.extend(batch.map(|batch| (at.offset, batch)));
    }
}

fn stretches(
    name: &str,
    recorded: &Recorded,
    steps: &Steps,
    marks: &[(u64, u64)],
    batches: &Batches,
) -> Result<Vec<Stretch>, NotComparable> {
    let whole = |step: &&Step| step.state != StepState::Unfinished;
    let whole: Vec<&Step> = steps.steps().iter().filter(whole).collect();
    if whole.is_empty() && !steps.steps().is_empty() {
        return Err(NotComparable(format!(
            "{name}: none of its steps is whole: record a run that ends at least one step"
        )));
    }
    let named = match batches {
        Batches::Marked => marked(name, &whole, marks)?,
        Batches::Each(batch) => {
            if let Some((_, marked)) = marks.first()
                && marks.iter().all(|(_, marked)| marked != batch)
            {
                return Err(NotComparable(format!(
                    "--recorded names {batch} for {name}, whose marks name {marked}: give the values \
                     in the order of the traces"
                )));
            }
            vec![*batch; whole.len().max(1)]
        }
        Batches::Steps(batches) if batches.len() == whole.len() => batches.clone(),
        Batches::Steps(batches) => {
            return Err(NotComparable(format!(
                "--recorded names {} for {name}, which has {}: give one for each trace, or one for \
                 each step",
                several(batches.len() as u64, "value"),
                several(whole.len() as u64, "whole step")
            )));
        }
    };
    if let Some(batch) = named.iter().find(|batch| !(1..=LARGEST_BATCH).contains(*batch)) {
        return Err(NotComparable(format!(
            "{name}: {batch} is no batch: give numbers from 1 to {LARGEST_BATCH}"
        )));
    }
    let begins: Vec<u64> = (0..whole.len()).map(|index| begin(&whole, marks, index)).collect();
    let allocation_at = |offset: u64| {
        let before = |source: &Source| source.offset < offset;
        recorded.sources.iter().take_while(|source| before(source)).count()
    };
    let end = match steps.steps().last() {
        Some(last) if last.state == StepState::Unfinished => allocation_at(last.begin.offset),
        _ => recorded.sources.len(),
    };
    let mut starts = vec![0];
    starts.extend(begins.into_iter().map(allocation_at));
    starts.push(end);
    let batch = |index: usize| named[index.saturating_sub(1)];
    let stretch = |(index, pair): (usize, &[usize])| Stretch {
        blocks: pair[0]..pair[1].max(pair[0]),
        batch: batch(index),
    };
    Ok(starts.windows(2).enumerate().map(stretch).collect())
}

/// The place where a step begins: where its batch is marked, so that the batch that a program loads for it belongs to
/// it, or at its first pass.
fn begin(steps: &[&Step], marks: &[(u64, u64)], index: usize) -> u64 {
    let pass = steps[index].begin.offset;
    let after = index.checked_sub(1).map_or(0, |before| steps[before].peak.offset);
    let marked = marks.iter().rev().map(|(offset, _)| *offset).find(|offset| *offset <= pass);
    marked.filter(|offset| *offset > after).unwrap_or(pass)
}

/// The batch of each step by the marks.
fn marked(name: &str, steps: &[&Step], marks: &[(u64, u64)]) -> Result<Vec<u64>, NotComparable> {
    let unknown = || {
        NotComparable(format!(
            "{name}: its batch is not known: give --recorded batch=N, or mark the steps with \
             torch.cuda.nvtx.range_push(f\"batch={{n}}\")"
        ))
    };
    if steps.is_empty() {
        return marks.last().map(|(_, batch)| vec![*batch]).ok_or_else(unknown);
    }
    let of = |step: &&Step| {
        let mark = marks.iter().rev().find(|(offset, _)| *offset <= step.peak.offset);
        mark.map(|(_, batch)| *batch).ok_or_else(unknown)
    };
    steps.iter().map(of).collect()
}

fn blocks(recorded: &Recorded, keys: &FxHashMap<StackId, StackKey>) -> Vec<Block> {
    let mut threads = FxHashMap::default();
    let mut blocks: Vec<Block> = Vec::with_capacity(recorded.sources.len());
    let mut live: FxHashMap<u32, usize> = FxHashMap::default();
    for request in recorded.log.requests() {
        match request {
            Request::Alloc { size, slot, .. } => {
                let Some(source) = recorded.sources.get(blocks.len()) else { break };
                let next = threads.len() as u32;
                live.insert(slot, blocks.len());
                blocks.push(Block {
                    stack: keys.get(&source.stack).copied().unwrap_or_default(),
                    thread: *threads.entry(source.thread).or_insert(next),
                    bytes: size,
                    freed_before: usize::MAX,
                });
            }
            Request::Free { slot } => {
                if let Some(block) = live.remove(&slot) {
                    blocks[block].freed_before = blocks.len();
                }
            }
            Request::EmptyCache | Request::PoolEnds { .. } | Request::Outside { .. } => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::Varied;

    #[test]
    fn a_mark_names_a_batch() {
        for (mark, batch) in [
            ("batch=6", Some(6)),
            ("train Batch=12 length=512", Some(12)),
            ("minibatch=2 batch=3", Some(3)),
            ("batch= 4", Some(4)),
            ("batch 4", None),
            ("batch=0", None),
            ("batch=x", None),
            ("forward", None),
        ] {
            assert_eq!(Varied::default().in_mark(mark), batch, "{mark}");
        }
        assert_eq!(Varied::new("length").unwrap().in_mark("batch=12 length=512"), Some(512));
        assert_eq!(Varied::new("4,6"), None);
    }
}
