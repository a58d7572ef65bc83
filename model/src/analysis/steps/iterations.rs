//! Iterations of passes: groups of passes up to one update of the weights, cycles of these groups, and what memory did in
//! each. Where the order of groups has more than one explanation, there are none.

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::ops::Range;

use vramtrace_format::DeviceId;

use super::passes::{Gradients, Pass, PassKind};
use super::stacks::Caller;
use super::step::{Apart, InStep, NoSteps, Step, StepState, Steps};

/// Forward and backward passes, and what ends them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PassGroup {
    /// Indexes of its first pass, and of the last one.
    pub first: usize,
    pub last: usize,
    pub backward_passes: usize,
    /// The callers of the optimizers that ran in it, in ascending order.
    pub callers: Vec<Caller>,
    /// A gradient scaler ran in it.
    pub scaler: bool,
    /// Its gradients were freed.
    pub frees_gradients: bool,
    /// They were freed while older memory stayed.
    pub frees_first: bool,
    /// The gradients that its last backward pass left, as an index.
    pub gradients: Option<usize>,
    /// PyTorch gave up on a request in its last pass.
    pub failed: bool,
    /// An optimizer called its last forward pass.
    pub in_optimizer: bool,
}

impl PassGroup {
    /// An optimizer ran in it, or was about to.
    pub(super) fn is_updated(&self) -> bool {
        !self.callers.is_empty() || self.scaler
    }

    fn is_closed(&self) -> bool {
        self.is_updated() || self.frees_gradients
    }
}

/// Groups in their order. A forward pass before the first backward pass belongs to the group where its memory is
/// freed in backward, or where it is the last one.
pub(super) fn groups(passes: &[Pass]) -> Vec<PassGroup> {
    let mut groups: Vec<PassGroup> = Vec::new();
    let mut open: Option<PassGroup> = None;
    // Forward passes since the last pass of `open`.
    let mut forwards: Vec<usize> = Vec::new();
    for (index, pass) in passes.iter().enumerate() {
        match (pass.kind, &mut open) {
            (PassKind::Forward, open) => {
                forwards.push(index);
                if let Some(group) = open {
                    group.frees_gradients |= pass.frees_gradients;
                    group.frees_first |= pass.frees_first;
                }
            }
            (PassKind::Backward, _) => {
                let fed = forwards.iter().find(|pass| passes[**pass].feeds);
                let last = forwards.last();
                groups.extend(open.take_if(|open| open.is_closed()));
                let group = open.get_or_insert_with(|| PassGroup {
                    first: *fed.or(last).unwrap_or(&index),
                    ..PassGroup::default()
                });
                group.backward_passes += 1;
                group.last = index;
                group.frees_gradients |= pass.frees_gradients;
                group.frees_first |= pass.frees_first;
                group.gradients = pass.gradients;
                group.failed = pass.failed.is_some();
                group.in_optimizer = last.is_some_and(|pass| passes[*pass].in_optimizer);
                forwards.clear();
            }
            (PassKind::Optimizer | PassKind::Scaler, Some(group)) => {
                group.callers.extend(&pass.callers);
                group.callers.sort_unstable();
                group.callers.dedup();
                group.scaler |= pass.kind == PassKind::Scaler;
                group.last = index;
                forwards.clear();
            }
            (PassKind::Optimizer | PassKind::Scaler, None) => {}
        }
    }
    let cut = cut_off(passes, &forwards);
    match (open, cut) {
        (Some(open), Some(cut)) if !open.is_closed() => {
            groups.push(PassGroup { last: cut.last, failed: true, ..open });
        }
        (open, cut) => {
            groups.extend(open);
            groups.extend(cut.filter(|_| !groups.is_empty()));
        }
    }
    with_passes_before(&mut groups, passes);
    groups
}

/// The forward pass of an iteration that ended out of memory: it still held what it had allocated. One that
/// evaluates frees it as it goes.
fn cut_off(passes: &[Pass], forwards: &[usize]) -> Option<PassGroup> {
    let last = *forwards.last()?;
    let (live, allocated) = passes[last].failed?;
    let holds = live.saturating_mul(2) >= allocated && (allocated > 0 || forwards.len() == 1);
    holds.then(|| PassGroup { first: last, last, failed: true, ..PassGroup::default() })
}

/// Some iterations begin with passes that keep nothing for backward, as those of a teacher or of a target network.
/// Where most groups have such passes, they belong to the groups.
fn with_passes_before(groups: &mut [PassGroup], passes: &[Pass]) {
    let mut before: Vec<usize> = Vec::new();
    let mut from = 0;
    for group in &*groups {
        let between = &passes[from..group.first];
        before.push(between.iter().filter(|pass| pass.kind == PassKind::Forward).count());
        from = group.last + 1;
    }
    let mut sorted = before.clone();
    sorted.sort_unstable();
    let usual = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0);
    for (group, before) in groups.iter_mut().zip(before) {
        for _ in 0..usual.min(before) {
            let earlier = &passes[..group.first];
            let pass = earlier.iter().rposition(|pass| pass.kind == PassKind::Forward);
            group.first = pass.unwrap_or(group.first);
        }
    }
}

/// One iteration: indexes of its groups.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cycle {
    groups: Range<usize>,
    state: StepState,
}

/// A third of the groups or more that end in freed gradients without an optimizer are no skipped steps.
const SKIPPED: usize = 3;
/// Micro-batches of an iteration, where only freed gradients end it: at most this many times the usual number.
const UNEVEN: usize = 3;
/// An optimizer that takes turns with another one makes at least this many steps in a row, or exactly one.
const TURN: usize = 3;

/// `groups`: at least one. `sets`: the gradients of groups. `parts`: only some of the gradients were freed.
pub(super) fn cycles(
    groups: &[PassGroup],
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
fn is_by_optimizer(groups: &[PassGroup]) -> bool {
    let seen = groups.iter().filter(|group| !group.callers.is_empty()).count();
    let first = groups.iter().find(|group| !group.scaler || !group.callers.is_empty());
    let begins = first.is_some_and(|group| !group.callers.is_empty());
    let state_only = seen <= 2 && seen * 2 < groups.len() && begins;
    seen > 0 && !state_only
}

/// Each group is an iteration, if all have the same gradients.
fn by_gradients(groups: &[PassGroup], sets: &[Gradients]) -> Result<Vec<Cycle>, NoSteps> {
    let Some((last, earlier)) = groups.split_last() else { return Err(NoSteps::NoBackward) };
    let mut passes: Vec<usize> = earlier.iter().map(|group| group.backward_passes).collect();
    passes.sort_unstable();
    let usual = passes.get(passes.len().saturating_sub(1) / 2).copied();
    if passes.last() > usual.map(|usual| usual * UNEVEN).as_ref() {
        return Err(NoSteps::NoUpdates);
    }
    if !groups.iter().any(PassGroup::is_updated)
        && gradients(groups, sets).any(|set| !set.of_weights)
    {
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
    groups: &'g [PassGroup],
    sets: &'g [Gradients],
) -> impl Iterator<Item = &'g Gradients> {
    let of = |group: &PassGroup| group.gradients.and_then(|index| sets.get(index));
    groups.iter().filter_map(of).filter(|set| !set.sizes.is_empty())
}

/// Whether all groups leave gradients of about the same parameters. Gradients that are kept from one iteration to the
/// next are in the first group only.
fn is_one_set(groups: &[PassGroup], sets: &[Gradients]) -> bool {
    let mut sets = gradients(groups, sets);
    let first = sets.next();
    sets.all(|set| first.is_none_or(|first| similar(first, set)))
}

/// A large block may have this much more than its request: the rest of a segment that is not split off.
const NOT_SPLIT: u64 = 1 << 20;

/// Whether two sets have at least half of their bytes in common.
fn similar(one: &Gradients, other: &Gradients) -> bool {
    let each = |set: &Gradients| -> Vec<u64> {
        let each = set.sizes.iter().map(|(size, count)| repeat_n(*size, *count as usize));
        each.flatten().collect()
    };
    let (one, other) = (each(one), each(other));
    let mut rest = other.iter().copied().peekable();
    let mut common = 0;
    for size in &one {
        let around = if *size > NOT_SPLIT { NOT_SPLIT } else { 0 };
        while rest.next_if(|other| *other < size.saturating_sub(around)).is_some() {}
        if rest.next_if(|other| *other <= size.saturating_add(around)).is_some() {
            common += u128::from(*size);
        }
    }
    let bytes = |sizes: &[u64]| sizes.iter().map(|size| u128::from(*size)).sum::<u128>();
    common * 2 >= bytes(&one).max(bytes(&other))
}

/// The groups of each iteration: one, or one of each optimizer where several alternate.
fn turns(groups: &[PassGroup]) -> Result<Vec<Range<usize>>, NoSteps> {
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

/// The iterations, and the forward passes between them.
pub(super) fn iterations(
    passes: &[Pass],
    groups: &[PassGroup],
    cycles: Result<Vec<Cycle>, NoSteps>,
) -> Steps {
    let found = cycles.map(|cycles| {
        let step = |(index, cycle): (usize, &Cycle)| step(index + 1, passes, groups, cycle);
        cycles.iter().enumerate().map(step).collect::<Vec<Step>>()
    });
    let mut steps = Steps { apart: apart(passes, found.as_deref().unwrap_or_default()), found };
    let Ok(found) = &mut steps.found else { return steps };
    for index in 0..found.len() {
        let follows = !steps.apart.iter().any(|apart| apart.after == index + 1);
        let next = found.get(index + 1).filter(|_| follows);
        let until = next.map_or(found[index].end, |next| next.begin).time_ns;
        found[index].duration_ns = until.saturating_sub(found[index].begin.time_ns);
    }
    steps
}

fn step(number: usize, passes: &[Pass], groups: &[PassGroup], cycle: &Cycle) -> Step {
    let groups_of = &groups[cycle.groups.clone()];
    let (first, last) = (groups_of[0].first, groups_of[groups_of.len() - 1].last);
    let of = &passes[first..=last];
    let ends_run = last + 1 == passes.len() && cycle.state != StepState::Unfinished;
    let end = &passes[last];
    Step {
        number,
        begin: passes[first].begin,
        end: end.settled.filter(|_| ends_run).unwrap_or(end.end),
        duration_ns: 0,
        backward_passes: groups_of.iter().map(|group| group.backward_passes).sum(),
        updates: groups_of.iter().filter(|group| !group.callers.is_empty()).count(),
        state: cycle.state,
        // Of equal ones the first.
        peak: of
            .iter()
            .rev()
            .max_by_key(|pass| pass.peak.0)
            .map(|pass| pass.peak.1)
            .unwrap_or_default(),
        devices: in_passes(of, ends_run),
    }
}

/// `ends_run`: what is freed at the end of the run counts as left.
fn in_passes(passes: &[Pass], ends_run: bool) -> BTreeMap<DeviceId, InStep> {
    let mut devices: BTreeMap<DeviceId, InStep> = BTreeMap::new();
    for pass in passes {
        for (device, figures) in &pass.devices {
            let sums = devices.entry(*device).or_default();
            let largest = match figures.largest_block {
                0 => figures.largest_of_driver,
                largest => largest,
            };
            sums.peak_bytes = sums.peak_bytes.max(figures.peak);
            sums.left_bytes = figures.settled.filter(|_| ends_run).unwrap_or(figures.left);
            sums.largest_request_bytes = sums.largest_request_bytes.max(largest);
        }
    }
    devices
}

/// Forward passes between the iterations.
fn apart(passes: &[Pass], steps: &[Step]) -> Vec<Apart> {
    let mut found: Vec<(usize, Vec<Pass>)> = Vec::new();
    for pass in passes.iter().filter(|pass| pass.kind == PassKind::Forward) {
        let after = steps.partition_point(|step| step.begin.offset <= pass.begin.offset);
        let within = after > 0 && pass.begin.offset <= steps[after - 1].end.offset;
        match found.last_mut() {
            _ if within => {}
            Some((of, passes)) if *of == after => passes.push(pass.clone()),
            _ => found.push((after, vec![pass.clone()])),
        }
    }
    let apart = |(after, passes): (usize, Vec<Pass>)| Apart {
        after,
        forward_passes: passes.len(),
        begin: passes[0].begin,
        end: passes[passes.len() - 1].end,
        devices: in_passes(&passes, false),
    };
    found.into_iter().map(apart).collect()
}
