//! Iterations of groups. Where the order of groups has more than one explanation, there are none.

use std::ops::Range;

use super::groups::Group;
use super::pass::Gradients;
use super::step::{NoSteps, StepState};

/// One iteration: indexes of its groups.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cycle {
    pub groups: Range<usize>,
    pub state: StepState,
}

/// A third of the groups or more that end in freed gradients without an optimizer are no skipped steps.
const SKIPPED: usize = 3;
/// Micro-batches of an iteration, where only freed gradients end it: at most this many times the usual number.
const UNEVEN: usize = 3;
/// An optimizer that takes turns with another one makes at least this many steps in a row, or exactly one.
const TURN: usize = 3;

/// `groups`: at least one. `sets`: the gradients of groups. `parts`: only some of the gradients were freed.
pub(super) fn cycles(
    groups: &[Group],
    sets: &[Gradients],
    parts: bool,
) -> Result<Vec<Cycle>, NoSteps> {
    // Groups within a call of an optimizer, and others: it calls some of its passes itself.
    if groups.iter().any(|group| group.in_optimizer)
        && !groups.iter().all(|group| group.in_optimizer || group.backward_passes == 0)
    {
        return Err(NoSteps::Closure);
    }
    let (last, earlier) = groups.split_last().ok_or(NoSteps::NoBackward)?;
    let by_optimizer = is_by_optimizer(groups);
    let most = earlier.iter().map(|group| group.backward_passes).max();
    if !last.is_updated() && last.backward_passes > most.unwrap_or(1) {
        return Err(NoSteps::NoUpdates);
    }
    // The first step may have made the optimizer's state; whether the second one ended is not seen.
    if let [first, second] = groups
        && !first.callers.is_empty()
        && !second.is_updated()
        && !second.failed
    {
        return Err(NoSteps::NoUpdates);
    }
    if !by_optimizer && parts {
        return Err(NoSteps::Parts);
    }
    if !by_optimizer {
        return by_gradients(groups, sets);
    }
    let frees = earlier.iter().filter(|group| !group.is_updated()).count();
    if frees * SKIPPED > groups.len() {
        return Err(NoSteps::Frees);
    }
    let turns = turns(groups)?;
    if turns.iter().all(|turn| turn.len() == 1) && !is_one_set(groups, sets) {
        return Err(NoSteps::Turns);
    }
    let cycle = |turn: Range<usize>, length: usize| {
        let of = &groups[turn.clone()];
        let cut = turn.end == groups.len() && (!last.is_updated() || turn.len() < length);
        let state = match () {
            () if cut => StepState::Unfinished,
            () if of.iter().all(|group| group.callers.is_empty()) => StepState::Skipped,
            () => StepState::Whole,
        };
        Cycle { groups: turn, state }
    };
    let length = turns.iter().map(Range::len).max().unwrap_or(1);
    Ok(turns.into_iter().map(|turn| cycle(turn, length)).collect())
}

/// Whether steps of the optimizer are seen. Some allocate their state in the first one, and never again.
fn is_by_optimizer(groups: &[Group]) -> bool {
    let seen = groups.iter().filter(|group| !group.callers.is_empty()).count();
    let first = groups.iter().find(|group| !group.scaler || !group.callers.is_empty());
    let begins = first.is_some_and(|group| !group.callers.is_empty());
    let state_only = seen <= 2 && seen * 2 < groups.len() && begins;
    seen > 0 && !state_only
}

/// Each group is an iteration, if all have the same gradients.
fn by_gradients(groups: &[Group], sets: &[Gradients]) -> Result<Vec<Cycle>, NoSteps> {
    let Some((last, earlier)) = groups.split_last() else { return Err(NoSteps::NoBackward) };
    let mut passes: Vec<usize> = earlier.iter().map(|group| group.backward_passes).collect();
    passes.sort_unstable();
    let usual = passes.get(passes.len().saturating_sub(1) / 2).copied();
    if passes.last() > usual.map(|usual| usual * UNEVEN).as_ref() {
        return Err(NoSteps::NoUpdates);
    }
    if !groups.iter().any(Group::is_updated) && gradients(groups, sets).any(|set| !set.of_weights) {
        return Err(NoSteps::Inputs);
    }
    if !is_one_set(groups, sets) {
        return Err(NoSteps::Turns);
    }
    let cycle = |index: usize| {
        let cut = index + 1 == groups.len()
            && !last.is_updated()
            && !last.frees_first
            && usual.is_none_or(|usual| last.backward_passes < usual);
        let state = if cut { StepState::Unfinished } else { StepState::Whole };
        Cycle { groups: index..index + 1, state }
    };
    Ok((0..groups.len()).map(cycle).collect())
}

fn gradients<'g>(
    groups: &'g [Group],
    sets: &'g [Gradients],
) -> impl Iterator<Item = &'g Gradients> {
    let of = |group: &Group| group.gradients.and_then(|index| sets.get(index));
    groups.iter().filter_map(of).filter(|set| !set.sizes.is_empty())
}

/// Whether all groups leave gradients of about the same parameters. Gradients that are kept from one iteration to the
/// next are in the first group only.
fn is_one_set(groups: &[Group], sets: &[Gradients]) -> bool {
    let mut sets = gradients(groups, sets);
    let first = sets.next();
    sets.all(|set| first.is_none_or(|first| similar(first, set)))
}

/// Whether two sets have at least half of their bytes in common.
fn similar(one: &Gradients, other: &Gradients) -> bool {
    let bytes = |set: &Gradients| -> f64 {
        set.sizes.iter().map(|(size, count)| *size as f64 * f64::from(*count)).sum()
    };
    let common: f64 = one
        .sizes
        .iter()
        .filter_map(|(size, count)| {
            let at = other.sizes.binary_search_by_key(size, |(size, _)| *size).ok()?;
            Some(*size as f64 * f64::from(*count.min(&other.sizes[at].1)))
        })
        .sum();
    common * 2.0 >= bytes(one).max(bytes(other))
}

/// The groups of each iteration: one, or one of each optimizer where several alternate.
fn turns(groups: &[Group]) -> Result<Vec<Range<usize>>, NoSteps> {
    // Without an optimizer, a group may be in anyone's place.
    let letters: Vec<Option<&[u64]>> =
        groups.iter().map(|group| (!group.callers.is_empty()).then_some(&*group.callers)).collect();
    let mut turns = Vec::new();
    let mut from = 0;
    while from < groups.len() {
        let until = together(&letters, from);
        let length = period(&letters[from..until])?;
        let starts = (from..until).step_by(length);
        turns.extend(starts.map(|start| start..(start + length).min(until)));
        from = until;
    }
    Ok(turns)
}

/// The end of the shortest part that has all groups of each of its optimizers. Groups without one belong to the part
/// before them, or to the first one.
fn together(letters: &[Option<&[u64]>], from: usize) -> usize {
    let mut at = from + letters[from..].iter().take_while(|letter| letter.is_none()).count();
    let mut until = (at + 1).min(letters.len());
    while at < until {
        let last = letters.iter().rposition(|of| of.is_some() && *of == letters[at]);
        until = until.max(last.unwrap_or(at) + 1);
        at += 1;
    }
    until + letters[until..].iter().take_while(|letter| letter.is_none()).count()
}

/// The number of groups in an iteration, where these optimizers run.
fn period(letters: &[Option<&[u64]>]) -> Result<usize, NoSteps> {
    let mut kinds: Vec<&[u64]> = letters.iter().copied().flatten().collect();
    kinds.sort_unstable();
    kinds.dedup();
    let length = kinds.len().max(1);
    let alternate = |place: usize| {
        let mut here = letters.iter().skip(place).step_by(length).copied().flatten();
        let first = here.next();
        here.all(|letter| Some(letter) == first)
    };
    if (0..length).all(alternate) {
        return Ok(length);
    }
    // Long turns: each group is an iteration.
    let known: Vec<&[u64]> = letters.iter().copied().flatten().collect();
    let long = known.chunk_by(|a, b| a == b).rev().skip(1).all(|turn| turn.len() >= TURN);
    if long { Ok(1) } else { Err(NoSteps::Turns) }
}
