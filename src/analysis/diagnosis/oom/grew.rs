//! The lines whose memory grew in the time before a failure.

use rustc_hash::FxHashMap;
use vramtrace_format::{Cause, StackId};

use crate::analysis::{Held, Holdings, StackClassifier};
use crate::symbols::FREE_CACHE;

/// One line that holds more than before, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// The stack of the line that holds most. Reports show its frames for all.
    pub stack: StackId,
    pub before: u64,
    pub now: u64,
    /// True: blocks of PyTorch's cache. False: driver memory.
    pub block: bool,
    /// What the driver took the memory for. `None`: it was allocated.
    pub cause: Option<Cause>,
}

impl Grown {
    pub fn bytes(&self) -> u64 {
        self.now.saturating_sub(self.before)
    }
}

/// Each stack, whether it holds blocks, and what the driver took the memory for.
fn parts(of: &Holdings) -> impl Iterator<Item = (StackId, bool, Option<Cause>, Held)> {
    let memory = of.held.iter().map(|((_, stack), held)| (*stack, false, None, *held));
    let blocks = of.blocks.iter().map(|((_, stack), held)| (*stack, true, None, *held));
    let driver = of.driver.iter();
    let driver = driver.map(|((_, stack, cause), held)| (*stack, false, Some(*cause), *held));
    memory.chain(blocks).chain(driver)
}

/// The lines that grew from `before` to `now`, both of one device, the largest growth first.
pub(super) fn grown(before: &Holdings, now: &Holdings, classifier: &StackClassifier) -> Vec<Grown> {
    let lines = classifier.lines(before.stacks().chain(now.stacks()));
    let mut all: FxHashMap<(u32, bool, Option<Cause>), (Grown, u64)> = FxHashMap::default();
    for (holdings, after) in [(before, false), (now, true)] {
        for (stack, block, cause, held) in parts(holdings) {
            if stack == FREE_CACHE {
                continue;
            }
            let Some(line) = lines.get(&stack) else { continue };
            let fresh = (Grown { stack, before: 0, now: 0, block, cause }, 0);
            let (grown, most) = all.entry((*line, block, cause)).or_insert(fresh);
            let side = if after { &mut grown.now } else { &mut grown.before };
            *side = side.saturating_add(held.bytes);
            // Of equal ones the lowest id, so that the output does not depend on the hash order.
            if after && (held.bytes > *most || (held.bytes == *most && stack < grown.stack)) {
                (grown.stack, *most) = (stack, held.bytes);
            }
        }
    }
    let mut all: Vec<Grown> = all.into_values().map(|(grown, _)| grown).collect();
    all.retain(|grown| grown.bytes() > 0);
    all.sort_by_key(|grown| (std::cmp::Reverse(grown.bytes()), grown.stack));
    all
}
