//! Groups: passes up to one update of the weights.

use super::pass::{Pass, PassKind};
use super::stacks::Caller;

/// Forward and backward passes, and what ends them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
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

impl Group {
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
pub(super) fn groups(passes: &[Pass]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut open: Option<Group> = None;
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
                let group = open.get_or_insert_with(|| Group {
                    first: *fed.or(last).unwrap_or(&index),
                    ..Group::default()
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
            groups.push(Group { last: cut.last, failed: true, ..open });
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
fn cut_off(passes: &[Pass], forwards: &[usize]) -> Option<Group> {
    let last = *forwards.last()?;
    let (live, allocated) = passes[last].failed?;
    let holds = live.saturating_mul(2) >= allocated && (allocated > 0 || forwards.len() == 1);
    holds.then(|| Group { first: last, last, failed: true, ..Group::default() })
}

/// Some iterations begin with passes that keep nothing for backward, as those of a teacher or of a target network.
/// Where most groups have such passes, they belong to the groups.
fn with_passes_before(groups: &mut [Group], passes: &[Pass]) {
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
