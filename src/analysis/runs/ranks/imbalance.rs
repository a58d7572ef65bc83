//! How far the peaks of a run's processes differ.

use serde::Serialize;

use super::super::outliers::median;
use super::ProcessFigures;
use crate::facts;

/// The spread of the peaks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Imbalance {
    pub lowest_peak_bytes: u64,
    pub median_peak_bytes: u64,
    pub highest_peak_bytes: u64,
    /// Indices in `processes`.
    pub lowest: usize,
    pub highest: usize,
    /// 1 where all are equal.
    #[serde(serialize_with = "facts::thousandths")]
    pub highest_over_mean: f64,
}

/// `None`: fewer than two processes used GPU memory.
pub fn imbalance(ranks: &[ProcessFigures]) -> Option<Imbalance> {
    let used = ranks.iter().enumerate().filter(|(_, rank)| !rank.devices.is_empty());
    let peaks: Vec<(usize, u64)> = used.map(|(index, rank)| (index, rank.peak_bytes())).collect();
    if peaks.len() < 2 {
        return None;
    }
    // Of equal peaks the first process.
    let (lowest, lowest_peak_bytes) = *peaks.iter().min_by_key(|(_, peak)| *peak)?;
    let (highest, highest_peak_bytes) = *peaks.iter().rev().max_by_key(|(_, peak)| *peak)?;
    let sum: u128 = peaks.iter().map(|(_, peak)| u128::from(*peak)).sum();
    let mean = sum as f64 / peaks.len() as f64;
    Some(Imbalance {
        lowest_peak_bytes,
        median_peak_bytes: median(peaks.iter().map(|(_, peak)| *peak).collect()),
        highest_peak_bytes,
        lowest,
        highest,
        highest_over_mean: if mean > 0.0 { highest_peak_bytes as f64 / mean } else { 1.0 },
    })
}
