//! Reads the processes of a run on all cores.

use super::super::bound::Bound;
use super::{Rank, cards, steps};
use crate::analysis::parallel;
use crate::trace::Trace;

/// Traces of a run that have together at most this many bytes are replayed for holders that no summary lists.
const SHORT_RUN: u64 = 1 << 30;

/// All processes. The results have the order of `traces`.
pub fn read(traces: &[Trace], progress: parallel::Progress) -> Vec<Rank> {
    read_within(traces, &Bound::none(), progress)
}

/// As [`read`]: where the time does not suffice for a replay, a process has the figures of its summary, or the
/// recorder's last totals, and the sum of a card's processes is not known ([`cards::Card::is_exact`]).
pub fn read_within(traces: &[Trace], bound: &Bound, progress: parallel::Progress) -> Vec<Rank> {
    let all: Vec<&Trace> = traces.iter().collect();
    let bytes = |traces: &[&Trace]| traces.iter().map(|it| it.len()).fold(0, u64::saturating_add);
    let all_holders = bytes(&all) <= SHORT_RUN && bound.is_none();
    let mut ranks = parallel::each(&all, progress, |_, trace, done| {
        Rank::read_with(trace, None, all_holders, bound, done)
    });
    let shared = cards::sharing(&ranks);
    let again: Vec<&Trace> = shared.iter().map(|index| &traces[*index]).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(again.len()).max(1);
    if !bound.allows(bytes(&again) / cores as u64) {
        return ranks;
    }
    let steps = steps::most_for(again.len());
    let again = parallel::each(&again, progress, |_, trace, done| {
        Rank::read_with(trace, Some(steps), all_holders, &Bound::none(), done)
    });
    for (index, rank) in shared.into_iter().zip(again) {
        ranks[index] = rank;
    }
    ranks
}
