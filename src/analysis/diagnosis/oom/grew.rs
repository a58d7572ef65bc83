//! The lines whose memory grew in the time before a failure.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{Cause, StackId};

use crate::analysis::{Holdings, NamedStack, Owner, StackClassifier};
use crate::facts;
use crate::symbols::FREE_CACHE;

/// One line that holds more than before.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Grown {
    pub bytes: u64,
    pub now_bytes: u64,
    /// As in `holders`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "facts::cause")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub driver_memory: Option<Cause>,
    /// The stack of the line that holds most.
    #[serde(flatten)]
    pub stack: NamedStack,
}

#[derive(Default)]
struct BeforeAndNow {
    before: u64,
    now: u64,
    /// Bytes of the largest stack now, and that stack.
    most: u64,
    stack: StackId,
}

/// The lines that grew from `before` to `now`, both of one device, the largest growth first.
pub(super) fn grown(before: &Holdings, now: &Holdings, classifier: &StackClassifier) -> Vec<Grown> {
    let lines = classifier.lines(before.stacks().chain(now.stacks()));
    let mut all: FxHashMap<(u32, bool, Option<Cause>), BeforeAndNow> = FxHashMap::default();
    for (holdings, after) in [(before, false), (now, true)] {
        for (&Owner { stack, of_cache, cause, .. }, held) in &holdings.held {
            let Some(line) = lines.get(&stack).filter(|_| stack != FREE_CACHE) else { continue };
            let first = || BeforeAndNow { stack, ..BeforeAndNow::default() };
            let of = all.entry((*line, of_cache, cause)).or_insert_with(first);
            let side = if after { &mut of.now } else { &mut of.before };
            *side = side.saturating_add(held.bytes);
            // Of equal ones the lowest id, so that the output does not depend on the hash order.
            if after && (held.bytes, Reverse(stack)) > (of.most, Reverse(of.stack)) {
                (of.most, of.stack) = (held.bytes, stack);
            }
        }
    }
    let grown = |((_, _, cause), of): (_, BeforeAndNow)| Grown {
        bytes: of.now.saturating_sub(of.before),
        now_bytes: of.now,
        driver_memory: cause,
        stack: classifier.named(of.stack),
    };
    let mut all: Vec<Grown> = all.into_iter().map(grown).filter(|of| of.bytes > 0).collect();
    all.sort_by_key(|grown| (Reverse(grown.bytes), grown.stack.id));
    all
}
