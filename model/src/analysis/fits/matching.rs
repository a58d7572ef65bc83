//! Pairs the blocks of two stretches of a run: those of the same stack and thread, in the same order.

use imara_diff::{Algorithm, Diff, Token};
use rustc_hash::FxHashMap;

use super::stacks::StackKey;

/// A block on its way into a pair: by thread and stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unpaired {
    /// The number of its thread, in the order in which threads allocate for the first time.
    pub thread: u32,
    pub stack: StackKey,
}

/// For each block of `one`, its index in `other`: the longest common subsequence of each thread.
pub(super) fn pairs(one: &[Unpaired], other: &[Unpaired]) -> Vec<Option<usize>> {
    let mut found = vec![None; one.len()];
    let mut tokens = FxHashMap::default();
    let of_one = by_thread(one, &mut tokens);
    let of_other = by_thread(other, &mut tokens);
    for (thread, (indexes, keys)) in &of_one {
        let Some((other_indexes, other_keys)) = of_other.get(thread) else { continue };
        let mut diff = Diff::default();
        diff.compute_with(Algorithm::Histogram, keys, other_keys, tokens.len() as u32);
        let kept = indexes.iter().enumerate().filter(|(at, _)| !diff.is_removed(*at as u32));
        let kept_of_other =
            other_indexes.iter().enumerate().filter(|(at, _)| !diff.is_added(*at as u32));
        for ((_, index), (_, other)) in kept.zip(kept_of_other) {
            found[*index] = Some(*other);
        }
    }
    found
}

/// The blocks of each thread: their indexes, and a token for each stack.
fn by_thread(
    blocks: &[Unpaired],
    tokens: &mut FxHashMap<StackKey, Token>,
) -> FxHashMap<u32, (Vec<usize>, Vec<Token>)> {
    let mut threads: FxHashMap<u32, (Vec<usize>, Vec<Token>)> = FxHashMap::default();
    for (index, block) in blocks.iter().enumerate() {
        let next = Token(tokens.len() as u32);
        let token = *tokens.entry(block.stack).or_insert(next);
        let (indexes, keys) = threads.entry(block.thread).or_default();
        indexes.push(index);
        keys.push(token);
    }
    threads
}
