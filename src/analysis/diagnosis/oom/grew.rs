//! The lines whose memory grew in the time before a failure.

use rustc_hash::FxHashMap;
use vramtrace_format::StackId;

use crate::analysis::{Holdings, StackClassifier};
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
}

impl Grown {
    pub fn bytes(&self) -> u64 {
        self.now.saturating_sub(self.before)
    }
}

/// The lines that grew from `before` to `now`, both of one device, the largest growth first.
pub(super) fn grown(before: &Holdings, now: &Holdings, classifier: &StackClassifier) -> Vec<Grown> {
    let lines = classifier.lines(before.stacks().chain(now.stacks()));
    let mut all: FxHashMap<(u32, bool), (Grown, u64)> = FxHashMap::default();
    let both = [(false, &before.held, &now.held), (true, &before.blocks, &now.blocks)];
    for (block, before, now) in both {
        let sides = before.iter().map(|it| (it, false)).chain(now.iter().map(|it| (it, true)));
        for (((_, stack), held), after) in sides {
            if *stack == FREE_CACHE {
                continue;
            }
            let Some(line) = lines.get(stack) else { continue };
            let fresh = (Grown { stack: *stack, before: 0, now: 0, block }, 0);
            let (grown, most) = all.entry((*line, block)).or_insert(fresh);
            let side = if after { &mut grown.now } else { &mut grown.before };
            *side = side.saturating_add(held.bytes);
            // Of equal ones the lowest id, so that the output does not depend on the hash order.
            if after && (held.bytes > *most || (held.bytes == *most && *stack < grown.stack)) {
                (grown.stack, *most) = (*stack, held.bytes);
            }
        }
    }
    let mut all: Vec<Grown> = all.into_values().map(|(grown, _)| grown).collect();
    all.retain(|grown| grown.bytes() > 0);
    all.sort_by_key(|grown| (std::cmp::Reverse(grown.bytes()), grown.stack));
    all
}
