//! How far the peaks of a run's processes differ.

use super::super::outliers::median;
use super::Rank;

/// The spread of the peaks. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Imbalance {
    /// Processes that used GPU memory.
    pub processes: usize,
    /// Index of the process with the lowest peak, and that peak.
    pub lowest: (usize, u64),
    pub highest: (usize, u64),
    pub median: u64,
    /// The highest peak divided by the mean: 1 where all are equal.
    pub over_mean: f64,
}

/// `None`: fewer than two processes used GPU memory.
pub fn imbalance(ranks: &[Rank]) -> Option<Imbalance> {
    let used = ranks.iter().enumerate().filter(|(_, rank)| !rank.devices.is_empty());
    let peaks: Vec<(usize, u64)> = used.map(|(index, rank)| (index, rank.peak_bytes())).collect();
    if peaks.len() < 2 {
        return None;
    }
    // Of equal peaks the first process.
    let lowest = *peaks.iter().min_by_key(|(_, peak)| *peak)?;
    let highest = *peaks.iter().rev().max_by_key(|(_, peak)| *peak)?;
    let sum: u128 = peaks.iter().map(|(_, peak)| u128::from(*peak)).sum();
    let mean = sum as f64 / peaks.len() as f64;
    Some(Imbalance {
        processes: peaks.len(),
        lowest,
        highest,
        median: median(peaks.iter().map(|(_, peak)| *peak).collect()),
        over_mean: if mean > 0.0 { highest.1 as f64 / mean } else { 1.0 },
    })
}
