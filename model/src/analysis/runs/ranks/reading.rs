//! Reads the processes of a run on all cores.

use super::{ProcessFigures, cards};
use crate::analysis::{moments_for, parallel};
use crate::trace::Trace;

/// Traces of a run that have together at most this many bytes are replayed for holders that no summary lists.
const SHORT_RUN: u64 = 1 << 30;

/// All processes. The results have the order of `traces`.
pub fn read(traces: &[Trace], progress: parallel::Progress) -> Vec<ProcessFigures> {
    read_within(traces, u64::MAX, progress)
}

/// As [`read`], with replays of at most so many bytes of traces: beyond them, a process has the figures of its summary, or the
/// recorder's last totals, and the sum of a card's processes is not known ([`cards::Card::peak_bytes`]).
pub fn read_within(
    traces: &[Trace],
    most_bytes: u64,
    progress: parallel::Progress,
) -> Vec<ProcessFigures> {
    let all: Vec<&Trace> = traces.iter().collect();
    let bytes = all.iter().map(|trace| trace.len()).fold(0, u64::saturating_add);
    let all_holders = bytes <= SHORT_RUN && most_bytes == u64::MAX;
    // What is read without a replay comes first, of all processes.
    let short = parallel::each(&all, progress, |_, trace, _| ProcessFigures::short(trace));
    let (mut ranks, lack): (Vec<ProcessFigures>, Vec<_>) = short.into_iter().unzip();
    let mut left = most_bytes;
    let mut replay = |ranks: &mut Vec<ProcessFigures>, mut wanted: Vec<usize>, moments| {
        wanted.retain(|index| {
            let fits = traces[*index].len() <= left;
            left -= if fits { traces[*index].len() } else { 0 };
            fits
        });
        let again: Vec<&Trace> = wanted.iter().map(|index| &traces[*index]).collect();
        let replayed = parallel::each(&again, progress, |_, trace, done| {
            ProcessFigures::replayed_with(trace, moments, &mut (), done).0
        });
        for (index, rank) in wanted.into_iter().zip(replayed) {
            ranks[index] = rank;
        }
    };
    let wanted = (0..all.len()).filter(|at| lack[*at].events || all_holders && lack[*at].holders);
    replay(&mut ranks, wanted.collect(), None);
    let shared = cards::sharing(&ranks);
    let moments = Some(moments_for(shared.len()));
    replay(&mut ranks, shared, moments);
    ranks
}
