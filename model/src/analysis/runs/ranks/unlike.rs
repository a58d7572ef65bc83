//! How the processes of a run differ: which failed first, as the others often fail after it; how far the peaks are apart; and
//! outliers, whose peak, refusals or end are not like the others'.
//!
//! A peak is an outlier if its modified z-score, `0.6745 * |peak - median| / MAD`, is above 3.5
//! (Iglewicz and Hoaglin). MAD is the median of the distances from the median. A smooth ramp has no
//! outlier, nor have processes that all differ. The MAD of equal peaks is 0; therefore a distance
//! below 64 MiB or a tenth of the median never counts.

use serde::Serialize;
use vramtrace_format::{DeviceId, Header};

use super::cards::by_card;
use super::{DeviceFigures, ProcessFigures};
use crate::analysis::Process;
use crate::facts;
use crate::units::size;

/// How a process ended. A worse end is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessEnd {
    OutOfMemory,
    /// Its end was not recorded.
    CutOff,
    Running,
    InOrder,
    /// An imported trace does not say it.
    Unknown,
}

impl ProcessEnd {
    /// The name in JSON and tables, and the words for it.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            ProcessEnd::OutOfMemory => ("out_of_memory", "out of memory"),
            ProcessEnd::CutOff => ("cut_off", "cut off"),
            ProcessEnd::Running => ("running", "running"),
            ProcessEnd::InOrder => ("in_order", "in order"),
            ProcessEnd::Unknown => ("unknown", ""),
        }
    }

    pub fn name(self) -> &'static str {
        self.names().0
    }

    pub fn words(self) -> &'static str {
        self.names().1
    }
}

/// A process that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failed {
    pub end: ProcessEnd,
    /// The failed request; of a process that was cut off, its last event. ns since 1970.
    pub unix_ns: u64,
    /// Its index.
    pub index: usize,
}

impl ProcessEnd {
    fn of(failed: bool, in_order: bool, running: bool, header: &Header) -> ProcessEnd {
        match (failed, in_order, running) {
            (true, _, _) => ProcessEnd::OutOfMemory,
            // Imported.
            (false, _, false) if header.pid == 0 || header.writer.starts_with("import ") => {
                ProcessEnd::Unknown
            }
            (false, true, _) => ProcessEnd::InOrder,
            (false, false, true) => ProcessEnd::Running,
            (false, false, false) => ProcessEnd::CutOff,
        }
    }
}

impl ProcessFigures {
    pub fn end(&self) -> ProcessEnd {
        let failed = self.failed_ns.is_some();
        ProcessEnd::of(failed, self.ended_in_order, self.running, &self.header)
    }
}

impl Process {
    /// How it ended, whether or not a request failed.
    pub fn end(&self) -> ProcessEnd {
        ProcessEnd::of(false, self.ended_in_order(), self.running, &self.header)
    }
}

/// The processes that failed. The first is the cause: the first that was out of memory, or else the
/// first that was cut off. The others are in order of time. A process without GPU memory is no
/// failure of memory.
pub fn failed(ranks: &[ProcessFigures]) -> Vec<Failed> {
    let of = |(index, process): (usize, &ProcessFigures)| {
        let end = process.end();
        let at_ns = process.failed_ns.unwrap_or(process.last_ns);
        let unix_ns = process.header.start_unix_ns.saturating_add(at_ns);
        let has_failed = end <= ProcessEnd::CutOff && !process.devices.is_empty();
        has_failed.then_some(Failed { end, unix_ns, index })
    };
    let mut all: Vec<Failed> = ranks.iter().enumerate().filter_map(of).collect();
    all.sort_unstable();
    if let [_, others @ ..] = &mut all[..] {
        others.sort_unstable_by_key(|one| (one.unix_ns, one.index));
    }
    all
}

/// The spread of the peaks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
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

/// Processes with a context on a card that is another one's: they hold more on a card of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guests {
    /// The process whose card it is, and the number of the device there.
    pub host: (usize, DeviceId),
    pub guests: Vec<usize>,
    /// Of their contexts there.
    pub bytes: u64,
}

/// The guests that hold most. `torch.load` without map_location makes such contexts, on card 0.
pub fn guests(ranks: &[ProcessFigures]) -> Option<Guests> {
    let own = |index: usize| {
        let devices = ranks[index].devices.iter().rev();
        devices.max_by_key(|(_, device)| device.peak_bytes).map(|(id, _)| *id)
    };
    let found = by_card(ranks).into_values().filter_map(|users| {
        let (hosts, mut guests): (Vec<_>, Vec<_>) =
            users.into_iter().partition(|(index, id)| own(*index) == Some(*id));
        let contexts = |of: &(usize, DeviceId)| ranks[of.0].devices[&of.1].in_use_at_peak.contexts;
        guests.retain(|of| contexts(of) > 0);
        let bytes = guests.iter().map(contexts).fold(0, u64::saturating_add);
        let guests = guests.into_iter().map(|(index, _)| index).collect();
        (bytes > 0).then_some(Guests { host: *hosts.first()?, guests, bytes })
    });
    found.max_by_key(|of| of.bytes)
}

/// The modified z-score above which a peak is an outlier.
const SCORE: f64 = 3.5;
/// The MAD of a normal distribution, in standard deviations.
const MAD_PART: f64 = 0.6745;
/// A distance from the median below this part of the median never counts.
const ALIKE_PART: f64 = 0.10;
/// A distance from the median below this many bytes never counts.
const ALIKE_BYTES: u64 = 64 << 20;
/// With fewer processes, there is no majority to compare with.
const MIN_PROCESSES: usize = 3;

/// For each process the reasons why it is an outlier; `None`: it is none.
pub fn outliers(processes: &[ProcessFigures]) -> Vec<Option<String>> {
    let uses = |process: &&ProcessFigures| !process.devices.is_empty();
    let used: Vec<&ProcessFigures> = processes.iter().filter(uses).collect();
    if used.len() < MIN_PROCESSES {
        return vec![None; processes.len()];
    }
    let spread = Spread::of(used.iter().map(|process| process.peak_bytes()).collect());
    let refused = |process: &ProcessFigures| process.sum(DeviceFigures::refused) > 0;
    let sound = |process: &ProcessFigures| process.running || process.ended_in_order;
    let number = |what: &dyn Fn(&ProcessFigures) -> bool| {
        used.iter().filter(|process| what(process)).count()
    };
    let are_few = |number: usize| 2 * number < used.len();
    let refusals = number(&refused);
    let few_refused = are_few(refusals);
    let few_unsound = are_few(used.len() - number(&sound));
    let few_stopped = are_few(number(&|process| process.stopped));
    let look = |process: &ProcessFigures| {
        let mut reasons = Vec::new();
        if few_refused && refused(process) {
            reasons.push(if refusals == 1 { "the only refusals" } else { "refusals" }.to_string());
        }
        let peak = process.peak_bytes();
        if spread.stands_out(peak) {
            reasons.push(peak_reason(peak, spread.median));
        }
        if few_unsound && !sound(process) {
            reasons.push("did not end in order".to_string());
        }
        if few_stopped && process.stopped {
            reasons.push("recording stopped".to_string());
        }
        (uses(&process) && !reasons.is_empty()).then(|| reasons.join(", "))
    };
    processes.iter().map(look).collect()
}

/// Median and median absolute deviation of some figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spread {
    median: u64,
    mad: u64,
}

impl Spread {
    fn of(figures: Vec<u64>) -> Spread {
        let median = median(figures.clone());
        Spread { median, mad: self::median(figures.iter().map(|f| f.abs_diff(median)).collect()) }
    }

    fn stands_out(&self, figure: u64) -> bool {
        let apart = figure.abs_diff(self.median);
        apart > ALIKE_BYTES
            && apart as f64 > self.median as f64 * ALIKE_PART
            && MAD_PART * apart as f64 > SCORE * self.mad as f64
    }
}

/// The median; of an even number of figures the upper one of the two in the middle. 0 of none.
fn median(mut figures: Vec<u64>) -> u64 {
    figures.sort_unstable();
    figures.get(figures.len() / 2).copied().unwrap_or(0)
}

/// `peak +3.00 GiB (1.4 times the median, 8.00 GiB)`.
fn peak_reason(peak: u64, median: u64) -> String {
    let apart = size(peak.abs_diff(median));
    let sign = if peak > median { '+' } else { '-' };
    if median == 0 {
        return format!("peak {sign}{apart} (the median is 0)");
    }
    let times = times(peak as f64 / median as f64);
    format!("peak {sign}{apart} ({times} times the median, {})", size(median))
}

/// With two significant digits: `12`, `4.2`, `0.35`.
fn times(part: f64) -> String {
    let decimals = match part {
        part if part >= 9.95 => 0,
        part if part >= 0.995 => 1,
        _ => 2,
    };
    format!("{part:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{replay::InUse, trace::DeviceInfo};

    const GIB: u64 = 1 << 30;

    /// A process that ended in order.
    fn sound(peak_bytes: u64) -> ProcessFigures {
        let device = DeviceFigures { peak_bytes, ..DeviceFigures::default() };
        ProcessFigures {
            devices: [(DeviceId(0), device)].into(),
            ended_in_order: true,
            ..ProcessFigures::default()
        }
    }

    fn odd(peaks: &[u64]) -> Vec<usize> {
        let all: Vec<ProcessFigures> = peaks.iter().map(|peak| sound(*peak)).collect();
        let found = outliers(&all);
        (0..peaks.len()).filter(|index| found[*index].is_some()).collect()
    }

    #[test]
    fn a_ramp_and_unlike_processes_have_no_odd_one() {
        let ramp: Vec<u64> = (1..=8).map(|n| n * GIB).collect();
        assert!(odd(&ramp).is_empty());
        let unlike = [GIB, 2 * GIB, 3 * GIB, 5 * GIB, 8 * GIB];
        assert!(odd(&unlike).is_empty());
        assert!(odd(&[GIB, 9 * GIB]).is_empty(), "two have no majority");
    }

    #[test]
    fn one_among_alike_stands_out() {
        assert_eq!(odd(&[8 * GIB, 8 * GIB, 8 * GIB, 10 * GIB]), [3]);
        let mut noisy: Vec<u64> = (0..64).map(|n| 8 * GIB + n % 7 * (20 << 20)).collect();
        assert!(odd(&noisy).is_empty());
        noisy[17] = 11 * GIB;
        assert_eq!(odd(&noisy), [17]);
        noisy[17] = 5 * GIB;
        assert_eq!(odd(&noisy), [17]);
    }

    #[test]
    fn small_distances_never_count() {
        assert!(odd(&[GIB, GIB, GIB, GIB + (60 << 20)]).is_empty(), "below 64 MiB");
        assert!(odd(&[8 * GIB, 8 * GIB, 8 * GIB, 8 * GIB + GIB / 2]).is_empty(), "below a tenth");
    }

    #[test]
    fn a_peak_is_compared_with_the_median_by_bytes_and_as_a_multiple() {
        for (peak, median, words) in [
            (42 * GIB, 10 * GIB, "+32.00 GiB (4.2 times the median, 10.00 GiB)"),
            (11 * GIB, 8 * GIB, "+3.00 GiB (1.4 times the median, 8.00 GiB)"),
            (8 * GIB, 10 * GIB, "-2.00 GiB (0.80 times the median, 10.00 GiB)"),
            (300 << 20, 30 * GIB, "-29.71 GiB (0.01 times the median, 30.00 GiB)"),
            (120 * GIB, 10 * GIB, "+110.00 GiB (12 times the median, 10.00 GiB)"),
            (GIB, 0, "+1.00 GiB (the median is 0)"),
        ] {
            assert_eq!(peak_reason(peak, median), format!("peak {words}"));
        }
    }

    #[test]
    fn a_context_on_the_card_of_another_is_a_guest() {
        let mut ranks = [sound(9), sound(2), sound(9)];
        for (rank, contexts) in [0, 1, 1].into_iter().enumerate() {
            let card =
                DeviceInfo { uuid: [7; 16], name: String::new(), total_bytes: 0, mig: false };
            ranks[rank].devices.extend(sound(3).devices.into_values().map(|of| {
                let in_use_at_peak = InUse { contexts, ..InUse::default() };
                (DeviceId(1), DeviceFigures { info: Some(card.clone()), in_use_at_peak, ..of })
            }));
        }
        let found = Guests { host: (1, DeviceId(1)), guests: vec![2], bytes: 1 };
        assert_eq!(guests(&ranks), Some(found));
    }

    #[test]
    fn what_most_do_not_is_odd() {
        let all = || sound(0);
        let cut = ProcessFigures { ended_in_order: false, ..all() };
        let mut refused = ProcessFigures { stopped: true, ..all() };
        refused.devices.get_mut(&DeviceId(0)).unwrap().refused_by_cap = 1;
        let idle = ProcessFigures::default();
        let found = outliers(&[all(), cut, refused, all(), all(), idle]);
        let found: Vec<Option<&str>> = found.iter().map(Option::as_deref).collect();
        let of_refused = Some("the only refusals, recording stopped");
        assert_eq!(found, [None, Some("did not end in order"), of_refused, None, None, None]);
    }
}
