//! Reads the processes of a run on all cores.

use super::super::bound::Bound;
use super::{ProcessFigures, cards};
use crate::analysis::{moments_for, parallel};
use crate::trace::Trace;

/// Traces of a run that have together at most this many bytes are replayed for holders that no summary lists.
const SHORT_RUN: u64 = 1 << 30;

/// All processes. The results have the order of `traces`.
pub fn read(traces: &[Trace], progress: parallel::Progress) -> Vec<ProcessFigures> {
    read_within(traces, &Bound::none(), progress)
}

/// As [`read`]: where the time does not suffice for a replay, a process has the figures of its summary, or the
/// recorder's last totals, and the sum of a card's processes is not known ([`cards::Card::is_exact`]).
pub fn read_within(
    traces: &[Trace],
    bound: &Bound,
    progress: parallel::Progress,
) -> Vec<ProcessFigures> {
    let all: Vec<&Trace> = traces.iter().collect();
    let bytes = |traces: &[&Trace]| traces.iter().map(|it| it.len()).fold(0, u64::saturating_add);
    let all_holders = bytes(&all) <= SHORT_RUN && bound.is_none();
    let mut ranks = match bound.is_none() {
        true => parallel::each(&all, progress, |_, trace, done| {
            ProcessFigures::read_with(trace, None, all_holders, done)
        }),
        false => read_bounded(&all, bound, progress),
    };
    let shared = cards::sharing(&ranks);
    let again: Vec<&Trace> = shared.iter().map(|index| &traces[*index]).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(again.len()).max(1);
    if !bound.allows(bytes(&again) / cores as u64) {
        return ranks;
    }
    let moments = moments_for(again.len());
    let again = parallel::each(&again, progress, |_, trace, done| {
        ProcessFigures::read_with(trace, Some(moments), all_holders, done)
    });
    for (index, rank) in shared.into_iter().zip(again) {
        ranks[index] = rank;
    }
    ranks
}

/// What is read without a replay comes first, of all processes: it takes part of the time in any case. The replays have
/// the rest.
fn read_bounded(
    all: &[&Trace],
    bound: &Bound,
    progress: parallel::Progress,
) -> Vec<ProcessFigures> {
    let short = parallel::each(all, progress, |_, trace, _| ProcessFigures::read_short(trace));
    let (mut ranks, more): (Vec<ProcessFigures>, Vec<bool>) = short.into_iter().unzip();
    let wanted: Vec<usize> = (0..all.len()).filter(|index| more[*index]).collect();
    let traces: Vec<&Trace> = wanted.iter().map(|index| all[*index]).collect();
    let replayed = parallel::each(&traces, progress, |_, trace, done| {
        let replay = || ProcessFigures::read_with(trace, None, false, done);
        bound.allows(trace.len()).then(|| bound.measure(trace.len(), replay))
    });
    for (index, rank) in wanted.into_iter().zip(replayed) {
        if let Some(rank) = rank {
            ranks[index] = rank;
        }
    }
    ranks
}
