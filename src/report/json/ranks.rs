//! The key `run` of `report --json`, which describes several processes together.

use serde::Serialize;
use vramtrace_format::SummaryMoment;

use crate::analysis::GroupBy;
use crate::analysis::ranks::{
    Card, Imbalance, MergedHolder, ProcessFigures, cards, holders_of, imbalance, merge,
};

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunFacts {
    /// The fullest first.
    pub cards: Vec<Card>,
    /// Null: fewer than two processes used GPU memory.
    pub imbalance: Option<Imbalance>,
    /// The holders of all processes at the peaks of their devices.
    pub held_at_peaks: Vec<MergedHolder>,
    pub held_at_end: Vec<MergedHolder>,
}

/// The value of `run`. `top`: the most holders at each moment.
pub fn facts(ranks: &[ProcessFigures], top: usize) -> RunFacts {
    RunFacts {
        cards: cards(ranks),
        imbalance: imbalance(ranks),
        held_at_peaks: held(ranks, SummaryMoment::Peak, top),
        held_at_end: held(ranks, SummaryMoment::End, top),
    }
}

/// The merged holders of all processes at a moment.
fn held(ranks: &[ProcessFigures], moment: SummaryMoment, top: usize) -> Vec<MergedHolder> {
    let mut all = merge(&holders_of(ranks, moment), GroupBy::Line);
    all.truncate(top);
    all
}
