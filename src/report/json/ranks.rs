//! The key `run` of `report --json`, which describes several processes together.

use serde::Serialize;
use vramtrace_format::SummaryMoment;

use crate::analysis::GroupBy;
use crate::analysis::ranks::{
    Card, Imbalance, MergedHolder, Rank, cards, holders_of, imbalance, merge,
};

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunFacts {
    /// The fullest first.
    pub cards: Vec<CardFacts>,
    /// Null: fewer than two processes used GPU memory.
    pub imbalance: Option<ImbalanceFacts>,
    /// The holders of all processes at the peaks of their devices.
    pub held_at_peaks: Vec<MergedHolder>,
    pub held_at_end: Vec<MergedHolder>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CardFacts {
    /// Null: the traces do not describe it.
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// Indices in `processes`.
    pub processes: Vec<usize>,
    /// The most that its processes held together at one moment.
    pub peak_bytes: u64,
    /// That moment, in seconds since 1970.
    pub peak_unix_s: f64,
    pub sum_of_peaks_bytes: u64,
    pub live_bytes: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImbalanceFacts {
    pub lowest_peak_bytes: u64,
    pub median_peak_bytes: u64,
    pub highest_peak_bytes: u64,
    /// Indices in `processes`.
    pub lowest: usize,
    pub highest: usize,
    pub highest_over_mean: f64,
}

impl ImbalanceFacts {
    pub(super) fn of(all: Imbalance) -> ImbalanceFacts {
        ImbalanceFacts {
            lowest_peak_bytes: all.lowest.1,
            median_peak_bytes: all.median,
            highest_peak_bytes: all.highest.1,
            lowest: all.lowest.0,
            highest: all.highest.0,
            highest_over_mean: (all.over_mean * 1000.0).round() / 1000.0,
        }
    }
}

/// The value of `run`. `top`: the most holders at each moment.
pub fn facts(ranks: &[Rank], top: usize) -> RunFacts {
    let card = |card: Card| CardFacts {
        uuid: card.info.as_ref().map(|info| info.uuid_text()),
        name: card.info.as_ref().map(|info| info.name.clone()),
        processes: card.users.iter().map(|(process, _)| *process).collect(),
        peak_bytes: card.peak_bytes,
        peak_unix_s: card.peak_unix_ns as f64 / 1e9,
        sum_of_peaks_bytes: card.sum_of_peaks,
        live_bytes: card.live_bytes,
    };
    RunFacts {
        cards: cards(ranks).into_iter().map(card).collect(),
        imbalance: imbalance(ranks).map(ImbalanceFacts::of),
        held_at_peaks: held(ranks, SummaryMoment::Peak, top),
        held_at_end: held(ranks, SummaryMoment::End, top),
    }
}

/// The merged holders of all processes at a moment.
fn held(ranks: &[Rank], moment: SummaryMoment, top: usize) -> Vec<MergedHolder> {
    let mut all = merge(&holders_of(ranks, moment), GroupBy::Line);
    all.truncate(top);
    all
}
