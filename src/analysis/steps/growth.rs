//! What grew in each iteration, and the batch that an NVTX range names.

use rustc_hash::{FxHashMap, FxHashSet};
use vramtrace_format::{DeviceId, Mark, StackId, Stamped};

use super::step::{Step, Steps};
use crate::replay::{AllocCause, FreeCause, Key, Live, Observer};
use crate::trace::{Definitions, Trace};

/// What one iteration added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepGrowth {
    /// On each device the stack whose live memory grew most from the end of the iteration before, and the bytes. For
    /// the first one, from its begin.
    pub grown: Vec<(DeviceId, StackId, u64)>,
    /// The last NVTX range that names a batch and began before the iteration ended.
    pub batch: Option<String>,
}

/// In the order of the iterations. Reads the trace once.
pub fn growth(trace: &Trace, definitions: &Definitions, steps: &Steps) -> Vec<StepGrowth> {
    let mut observer = GrowthByStep {
        definitions,
        steps: steps.steps(),
        next: 0,
        changes: FxHashMap::default(),
        segments: FxHashSet::default(),
        batch: None,
        found: Vec::new(),
    };
    trace.replay(definitions, &mut observer);
    while observer.found.len() < observer.steps.len() {
        observer.end_step();
    }
    observer.found
}

struct GrowthByStep<'s> {
    definitions: &'s Definitions,
    steps: &'s [Step],
    next: usize,
    changes: FxHashMap<(DeviceId, StackId), i64>,
    segments: FxHashSet<Key>,
    batch: Option<u32>,
    found: Vec<StepGrowth>,
}

impl GrowthByStep<'_> {
    fn end_step(&mut self) {
        let mut grown: Vec<(DeviceId, StackId, u64)> = Vec::new();
        for ((device, stack), bytes) in self.changes.drain() {
            let Some(bytes) = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0) else {
                continue;
            };
            match grown.iter_mut().find(|(of, ..)| *of == device) {
                // Of equal ones the lower id: the same in every reading.
                Some(most) if (most.2, stack) < (bytes, most.1) => *most = (device, stack, bytes),
                Some(_) => {}
                None => grown.push((device, stack, bytes)),
            }
        }
        grown.sort_unstable_by_key(|(device, ..)| *device);
        let text = self.batch.take().and_then(|name| self.definitions.text(name));
        self.found.push(StepGrowth { grown, batch: text.map(str::to_string) });
        self.next += 1;
    }

    fn before(&mut self, at: &Stamped) {
        while self.steps.get(self.next).is_some_and(|step| step.end.offset < at.offset) {
            self.end_step();
        }
    }

    fn change(&mut self, at: &Stamped, live: &Live, sign: i64) {
        self.before(at);
        // What is there before the first iteration is not its growth.
        let begun = self.steps.first().is_some_and(|first| first.begin.offset <= at.offset);
        if begun && live.is_device_memory() {
            let change = self.changes.entry((live.device, live.stack)).or_default();
            let bytes = i64::try_from(live.share()).unwrap_or(i64::MAX);
            *change = change.saturating_add(sign.saturating_mul(bytes));
        }
    }
}

impl Observer for GrowthByStep<'_> {
    fn on_alloc(&mut self, at: &Stamped, _key: Key, live: &Live, _how: AllocCause) {
        self.change(at, live, 1);
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if !self.segments.remove(&key) {
            self.change(at, live, -1);
        }
    }

    fn on_block_alloc(&mut self, at: &Stamped, _address: u64, live: &Live, _how: AllocCause) {
        self.change(at, live, 1);
    }

    fn on_block_free(&mut self, at: &Stamped, _address: u64, live: &Live, _how: FreeCause) {
        self.change(at, live, -1);
    }

    fn on_segment(&mut self, at: &Stamped, key: Key, live: &Live) {
        if self.segments.insert(key) {
            self.change(at, live, -1);
        }
    }

    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        self.before(at);
        let begins = matches!(mark, Mark::Push | Mark::Start | Mark::Moment);
        let text = self.definitions.text(name).unwrap_or_default();
        if begins && text.to_ascii_lowercase().contains("batch") {
            self.batch = Some(name);
        }
    }
}
