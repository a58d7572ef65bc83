//! One recorded run: its blocks by stretch - before the first step, and each step - and the values of each.

use std::collections::BTreeSet;
use std::ops::Range;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Mark, StackId, Stamped};

use super::law::{Point, least_request};
use super::matching::Unpaired;
use super::stacks::{Kind, StackKey, kinds, stack_keys};
use super::varied::{Axis, Values, Varied, VariedName};
use super::{LARGEST_BATCH, NotComparable};
use crate::allocator::Request;
use crate::allocator::rounding::MIN_BLOCK;
use crate::analysis::steps::{NoSteps, Step, StepObserver, StepState, Steps};
use crate::analysis::whatif::{NOT_OF_SAMPLES, Recorded, RequestSource, why_no_blocks};
use crate::replay::{Observer, Until};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};
use crate::units::several;

/// The values of one number of a trace, as the user gives them.
#[derive(Clone, Debug, PartialEq)]
pub enum Batches {
    /// The marks of the program name them.
    Marked,
    /// One for the whole run.
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
    /// What differs between it and the other recordings.
    pub varied: Varied,
    /// Why the whole run is one stretch.
    pub no_steps: Option<NoSteps>,
    pub(super) blocks: Vec<RecordedBlock>,
    pub(super) stretches: Vec<Stretch>,
}

/// One allocation of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedBlock {
    pub stack: StackKey,
    pub thread: u32,
    pub bytes: u64,
    /// The smallest request that it may serve.
    pub least: u64,
    pub kind: Kind,
    /// The first allocation after its free. `usize::MAX`: it is not freed.
    pub freed_before: usize,
}

impl RecordedBlock {
    /// It was recorded at these values.
    pub(super) fn point(&self, at: Values) -> Point {
        Point { at, bytes: self.bytes, least: self.least }
    }
}

/// Allocations in a row: those before the first step, or those of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stretch {
    pub blocks: Range<usize>,
    pub at: Values,
}

impl Recording {
    /// Reads a trace. `device`: `None` takes the one on which most was reserved. `batches`: of each number that differs.
    pub fn read(
        name: &str,
        trace: &Trace,
        device: Option<DeviceId>,
        varied: &Varied,
        batches: &[Batches],
    ) -> Result<Recording, NotComparable> {
        let (definitions, _) = trace.definitions();
        if definitions.samples_blocks() {
            return Err(NotComparable(format!("{name}: {NOT_OF_SAMPLES}")));
        }
        let mut devices = Recorded::read(trace, &definitions, Until::End, true);
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
        let mut marks = ValueMarks { definitions: &definitions, varied, found: Default::default() };
        let mut steps = StepObserver::new(&definitions, &symbols);
        trace.replay(&definitions, &mut (&mut marks, &mut steps));
        let steps = steps.finish();
        if let Err(why @ (NoSteps::EventsMissing | NoSteps::Sampled)) = steps.found {
            return Err(NotComparable(format!("{name}: {why}")));
        }
        let stretches = stretches(name, &recorded, &steps, &marks, batches)?;
        Ok(Recording {
            name: name.to_string(),
            varied: varied.clone(),
            card: definitions.device(recorded.device).map(|device| device.name.clone()),
            no_steps: steps.found.err(),
            blocks: blocks(&recorded, &stack_keys(&definitions), &kinds(&definitions, &symbols)),
            stretches,
            recorded,
        })
    }

    /// The values of its steps, each once, in ascending order.
    pub fn values(&self) -> Vec<Values> {
        let values: BTreeSet<Values> = self.stretches.iter().map(|stretch| stretch.at).collect();
        values.into_iter().collect()
    }

    /// The values of one number, each once, in ascending order.
    pub fn values_of(&self, axis: Axis) -> Vec<u64> {
        let values: BTreeSet<u64> = self.values().into_iter().map(|at| at.of(axis)).collect();
        values.into_iter().collect()
    }

    /// The values with which most memory is expected.
    pub(super) fn largest(&self) -> Values {
        let all = self.stretches.iter().map(|stretch| stretch.at);
        all.max_by_key(|at| (at.product(), *at)).unwrap_or(Values::one(1))
    }

    /// The number of whole steps.
    pub fn steps(&self) -> usize {
        self.stretches.len() - 1
    }

    /// What the blocks of a stretch are paired by.
    pub(super) fn unpaired(&self, stretch: &Stretch) -> Vec<Unpaired> {
        let unpaired =
            |block: &RecordedBlock| Unpaired { thread: block.thread, stack: block.stack };
        self.blocks[stretch.blocks.clone()].iter().map(unpaired).collect()
    }
}

/// The marks that name a value: `batch=6`.
struct ValueMarks<'d> {
    definitions: &'d Definitions,
    varied: &'d Varied,
    /// Place in the file and value, of the first number and of the second.
    found: [Vec<(u64, u64)>; 2],
}

impl Observer for ValueMarks<'_> {
    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        let begins = matches!(mark, Mark::Push | Mark::Start | Mark::Moment);
        let Some(text) = self.definitions.text(name).filter(|_| begins) else { return };
        for (number, found) in self.varied.names().zip(&mut self.found) {
            found.extend(number.in_mark(text).map(|value| (at.offset, value)));
        }
    }
}

fn stretches(
    name: &str,
    recorded: &Recorded,
    steps: &Steps,
    marks: &ValueMarks,
    batches: &[Batches],
) -> Result<Vec<Stretch>, NotComparable> {
    let whole = |step: &&Step| step.state != StepState::Unfinished;
    let whole: Vec<&Step> = steps.steps().iter().filter(whole).collect();
    if whole.is_empty() && !steps.steps().is_empty() {
        return Err(NotComparable(format!(
            "{name}: none of its steps is whole: record a run that ends at least one step"
        )));
    }
    let mut at = vec![Values::one(1); whole.len().max(1)];
    let numbers = [Axis::First, Axis::Second].into_iter().zip(marks.varied.names());
    for ((axis, number), (given, marks)) in numbers.zip(batches.iter().zip(&marks.found)) {
        for (at, value) in at.iter_mut().zip(values(name, number, &whole, marks, given)?) {
            *at = at.with(axis, value);
        }
    }
    let begins: Vec<u64> = {
        let mut marks = marks.found.concat();
        marks.sort_unstable();
        (0..whole.len()).map(|index| begin(&whole, &marks, index)).collect()
    };
    let allocation_at = |offset: u64| {
        let before = |source: &RequestSource| source.offset < offset;
        recorded.sources.iter().take_while(|source| before(source)).count()
    };
    let end = match steps.steps().last() {
        Some(last) if last.state == StepState::Unfinished => allocation_at(last.begin.offset),
        _ => recorded.sources.len(),
    };
    let mut starts = vec![0];
    starts.extend(begins.into_iter().map(allocation_at));
    starts.push(end);
    let stretch = |(index, pair): (usize, &[usize])| Stretch {
        blocks: pair[0]..pair[1].max(pair[0]),
        at: at[index.saturating_sub(1)],
    };
    Ok(starts.windows(2).enumerate().map(stretch).collect())
}

/// The values of one number: one for each step, or one for a run without steps.
fn values(
    name: &str,
    number: &VariedName,
    steps: &[&Step],
    marks: &[(u64, u64)],
    given: &Batches,
) -> Result<Vec<u64>, NotComparable> {
    let called = number.as_str();
    let values = match given {
        Batches::Marked => marked(name, called, steps, marks)?,
        Batches::Each(value) => {
            if let Some((_, marked)) = marks.first()
                && marks.iter().all(|(_, marked)| marked != value)
            {
                return Err(NotComparable(format!(
                    "--recorded names {value} for {name}, whose marks name {marked}: give the values \
                     in the order of the traces"
                )));
            }
            vec![*value; steps.len().max(1)]
        }
        Batches::Steps(values) if values.len() == steps.len() => values.clone(),
        Batches::Steps(values) => {
            return Err(NotComparable(format!(
                "--recorded names {} for {name}, which has {}: give one for each trace, or one for \
                 each step",
                several(values.len() as u64, "value"),
                several(steps.len() as u64, "whole step")
            )));
        }
    };
    if let Some(value) = values.iter().find(|value| !(1..=LARGEST_BATCH).contains(*value)) {
        return Err(NotComparable(format!(
            "{name}: {value} is no {called}: give numbers from 1 to {LARGEST_BATCH}"
        )));
    }
    Ok(values)
}

/// The place where a step begins: where one of its values is marked, so that the batch that a program loads for it belongs to
/// it, or at its first pass.
fn begin(steps: &[&Step], marks: &[(u64, u64)], index: usize) -> u64 {
    let pass = steps[index].begin.offset;
    let after = index.checked_sub(1).map_or(0, |before| steps[before].peak.offset);
    let marked = marks.iter().rev().map(|(offset, _)| *offset).find(|offset| *offset <= pass);
    marked.filter(|offset| *offset > after).unwrap_or(pass)
}

/// The value of each step by the marks.
fn marked(
    name: &str,
    called: &str,
    steps: &[&Step],
    marks: &[(u64, u64)],
) -> Result<Vec<u64>, NotComparable> {
    let unknown = || {
        NotComparable(format!(
            "{name}: its {called} is not known: give --recorded {called}=N, or mark the steps with \
             torch.cuda.nvtx.range_push(f\"{called}={{n}}\")"
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

fn blocks(
    recorded: &Recorded,
    keys: &FxHashMap<StackId, StackKey>,
    kinds: &FxHashMap<StackId, Kind>,
) -> Vec<RecordedBlock> {
    // Blocks are as large as requests, but for less than 512 B.
    let splits = recorded.in_force.is_expandable();
    let knows = recorded.knows_requests && recorded.unknown_requests == 0;
    let mut threads = FxHashMap::default();
    let mut blocks: Vec<RecordedBlock> = Vec::with_capacity(recorded.sources.len());
    let mut live: FxHashMap<u32, usize> = FxHashMap::default();
    for request in recorded.log.requests() {
        match request {
            Request::Alloc { size, slot, .. } => {
                let Some(source) = recorded.sources.get(blocks.len()) else { break };
                let next = threads.len() as u32;
                live.insert(slot, blocks.len());
                blocks.push(RecordedBlock {
                    stack: keys.get(&source.stack).copied().unwrap_or_default(),
                    thread: *threads.entry(source.thread).or_insert(next),
                    bytes: size,
                    least: match knows && size > MIN_BLOCK {
                        true => size,
                        false => least_request(size, splits || source.split),
                    },
                    kind: kinds.get(&source.stack).copied().unwrap_or_default(),
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
