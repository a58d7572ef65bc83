//! The odd one out among processes that do the same: what to look at first in a run of many ranks.

use super::Process;

/// Peaks closer to the median than this part of it are alike ..
const ALIKE_PART: f64 = 0.10;
/// .. and so are those closer than this many bytes.
const ALIKE_BYTES: u64 = 64 << 20;
/// Fewer have no majority.
const FEWEST: usize = 3;

/// For each process what makes it differ from the others, `None` for an ordinary one.
pub fn outliers(processes: &[Process]) -> Vec<Option<String>> {
    let used: Vec<&Process> = processes.iter().filter(|p| p.devices().next().is_some()).collect();
    if used.len() < FEWEST {
        return vec![None; processes.len()];
    }
    let mut peaks: Vec<u64> = used.iter().map(|process| process.peak_bytes()).collect();
    peaks.sort_unstable();
    let median = peaks[peaks.len() / 2];
    let most = |what: &dyn Fn(&Process) -> bool| {
        2 * used.iter().filter(|process| what(process)).count() > used.len()
    };
    let refused = |process: &Process| process.state.refusals() > 0;
    let over = |process: &Process| process.running || process.ended_in_order();
    let stopped = |process: &Process| process.ending.stopped.is_some();
    let refused_alone = used.iter().filter(|process| refused(process)).count() == 1;
    let most_unrefused = most(&|process| !refused(process));
    let most_over = most(&over);
    let most_recorded = most(&|process| !stopped(process));
    let look = |process: &Process| {
        process.devices().next()?;
        let mut reasons = Vec::new();
        if most_unrefused && refused(process) {
            reasons.push(if refused_alone { "the only refusals" } else { "refusals" }.to_string());
        }
        let peak = process.peak_bytes();
        let apart = peak.abs_diff(median);
        if apart > ALIKE_BYTES && apart as f64 > median as f64 * ALIKE_PART {
            reasons.push(peak_reason(peak, median));
        }
        if most_over && !over(process) {
            reasons.push("did not end in order".to_string());
        }
        if most_recorded && stopped(process) {
            reasons.push("recording stopped".to_string());
        }
        (!reasons.is_empty()).then(|| reasons.join(", "))
    };
    processes.iter().map(look).collect()
}

fn peak_reason(peak: u64, median: u64) -> String {
    let side = if peak > median { "above" } else { "below" };
    if median == 0 {
        return format!("peak {side} the others'");
    }
    let percent = (peak.abs_diff(median) as f64 / median as f64 * 100.0).round();
    format!("peak {percent:.0} % {side} the median")
}
