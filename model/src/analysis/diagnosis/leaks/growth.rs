//! The growth of what a stack holds, over time and over activity (events): a program may pause for hours,
//! or work in bursts. Input: the lowest live bytes in each bin. Output: [`Growth`], or why there is none.

use serde::Serialize;

use super::observer::{ACTIVITY_SHIFT, TIME_SHIFT};
use super::series::{self, Series};
use super::trend::{MIN_VALUES, Trend, UNLIKELY, slope, trend};

/// The first part of an axis, which is warm-up.
pub(super) const WARM_UP: f64 = 0.2;
/// The fewest rises of a leak. Fewer, from `FEW_RISES` on, are no evidence for or against one.
pub(super) const RISES: usize = 8;
const FEW_RISES: usize = 3;
/// The lowest Kendall's tau of a trend.
const MIN_TAU: f64 = 0.5;
/// A rise of more than this part of the whole is a jump, not growth.
const JUMP: f64 = 0.6;
/// The least part of the time after warm-up over which rises must be spread.
const SPREAD: f64 = 0.3;
/// Or the least part of the events: one step of training takes no more.
const SPREAD_OF_EVENTS: f64 = 0.5;
/// Growth has stopped if the last rise is further back than this part of the time, and than twice the
/// longest pause between rises.
pub(super) const QUIET: f64 = 0.1;
/// Maximum number of bins of a step that the end of the trace interrupts.
const LAST: usize = 3;

/// The lengths of the axes of all stacks of one level and device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axes {
    /// Begin of the frees at the process's end, ns since the begin of the observation.
    pub settled_ns: u64,
    /// End of the trace, ns since the begin of the observation.
    pub end_ns: u64,
    /// The end of what is judged: the same, or a refusal.
    pub until_ns: u64,
    /// What is judged ends by a refusal.
    pub refused: bool,
    /// Time of the last allocation, ns since the begin of the observation.
    pub last_alloc_ns: u64,
    /// Events up to the last allocation, and all events.
    pub events: u64,
    pub all_events: u64,
}

/// The lowest live bytes of one stack, or of several together, in each bin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct BinnedHistory {
    /// Over time, up to the begin of the frees at the process's end.
    pub time: Vec<u64>,
    /// Over events.
    pub activity: Vec<u64>,
    /// Time of the last allocation, ns since the begin of the observation.
    pub last_alloc_ns: u64,
}

/// The part of the live bytes at the end that is known to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The process ended in order with these live bytes.
    Known(u64),
    /// At most these: the end may have interrupted a step.
    AtMost(u64),
}

impl Left {
    fn of(self, values: &[u64]) -> u64 {
        match self {
            Left::Known(bytes) => bytes,
            Left::AtMost(bytes) => bytes.min(settled(values)),
        }
    }
}

/// Growth that was found. Sizes are bytes; see [`Trend`] for `tau` and `straight`.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    pub tau: f64,
    pub straight: f64,
    pub rises: usize,
    /// Number of values: bins, or low points where `troughs` is true.
    pub points: usize,
    pub troughs: bool,
    /// The part of the events after warm-up from the first rise to the last.
    pub spread_of_events: f64,
    /// Bytes by which the floor rose after warm-up.
    pub risen: u64,
    pub bytes_per_second: f64,
    /// Begin of the bins of time with the first and the last rise.
    pub first_ns: u64,
    pub last_ns: u64,
}

/// Why held memory does not count as growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeptReason {
    /// It is unchanged since the end of warm-up.
    Steady,
    /// It grew and stopped.
    Stopped,
    /// It rises and falls, or rose in one jump, or other memory of the device fell by as much.
    Moves,
    /// It grew a few times only, in a short part of the run at its end, or while nothing else was allocated or freed: the program may be loading.
    Unjudged,
    /// It grew as a pool of the program does that keeps ever larger pieces (`larger.rs`).
    Outgrown,
}

impl Axes {
    fn time_shift(&self) -> u32 {
        series::shift_for(self.end_ns, TIME_SHIFT)
    }

    /// Width of a bin of time.
    pub(super) fn bin_ns(&self) -> u64 {
        1 << self.time_shift()
    }

    /// The bins of a stack.
    pub(super) fn history(
        &self,
        time: &Series,
        activity: &Series,
        last_alloc_ns: u64,
    ) -> BinnedHistory {
        let shift = series::shift_for(self.all_events, ACTIVITY_SHIFT);
        let mut time = time.lowest(self.settled_ns, self.time_shift());
        // The last bin may contain frees of the process's end.
        if self.settled_ns < self.end_ns {
            time.pop();
        }
        let mut activity = activity.lowest(self.events, shift);
        if self.settled_ns < self.end_ns {
            activity.pop();
        }
        BinnedHistory { time, activity, last_alloc_ns }
    }
}

impl BinnedHistory {
    /// Adds the bytes of another stack.
    pub(super) fn add(&mut self, other: &BinnedHistory) {
        self.last_alloc_ns = self.last_alloc_ns.max(other.last_alloc_ns);
        let pairs = [(&mut self.time, &other.time), (&mut self.activity, &other.activity)];
        for (sum, values) in pairs {
            sum.resize(sum.len().max(values.len()), 0);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
        }
    }

    /// Live bytes before the frees at the process's end, without a step that the end interrupts.
    pub(super) fn settled(&self) -> u64 {
        settled(&self.time).max(settled(&self.activity))
    }

    /// The growth, or why there is none. `left`: the bytes that are known to stay.
    pub(super) fn growth(&self, axes: &Axes, left: Left) -> Result<Growth, KeptReason> {
        let bin_ns = axes.bin_ns();
        let warm = after_warm_up(&self.time);
        let window = &self.time[warm..];
        let of_time = left.of(&self.time);
        let over_time = trend(window, of_time);
        let floor = floor(window, of_time);
        let risen = floor.last().zip(floor.first()).map_or(0, |(last, first)| last - first);
        let busy = &self.activity[after_warm_up(&self.activity)..];
        let over_events = trend(busy, left.of(&self.activity));
        let floor_of_events = self::floor(busy, left.of(&self.activity));
        // Memory that was freed after the last allocation is no growth.
        let over_events = over_events.filter(|trend| {
            let then = self.time.get((axes.last_alloc_ns / bin_ns) as usize + 1..);
            let lowest = then.and_then(|then| then.iter().min());
            let from = trend.floor.first().map_or(0, |(_, value)| *value);
            lowest.is_none_or(|lowest| *lowest >= from.saturating_add(trend.risen / 2))
        });
        let judged =
            [&over_time, &over_events].into_iter().flatten().filter(|trend| is_clear(trend));
        let found = judged.max_by(|a, b| {
            let many = |trend: &Trend| trend.rises.len() >= RISES;
            many(a).cmp(&many(b)).then(a.tau.total_cmp(&b.tau))
        });
        let Some(trend) = found else {
            let moves = risen > 0 || window.iter().max() > window.iter().min();
            return Err(if moves { KeptReason::Moves } else { KeptReason::Steady });
        };
        // In a program that works in bursts, warm-up may be most of the time.
        let (rises, length) = match &over_time {
            Some(trend) if trend.rises.len() >= FEW_RISES => {
                (trend.rises.iter().map(|at| warm + at).collect(), self.time.len())
            }
            _ => {
                let floor = self::floor(&self.time, of_time);
                let rises = (1..floor.len()).filter(|at| floor[*at] > floor[at - 1]);
                // The last allocation may be later than the last bin.
                let last = (self.last_alloc_ns / bin_ns) as usize;
                let rises: Vec<usize> = rises.chain([last]).collect();
                (rises, self.time.len().max(last + 1))
            }
        };
        let (Some(first), Some(last)) = (rises.first().copied(), rises.last().copied()) else {
            return Err(KeptReason::Moves);
        };
        // All of it lies in one bin of time.
        if last < first {
            return Err(KeptReason::Unjudged);
        }
        // Time after the last allocation is no evidence of a stop: the program does something else.
        let active = length.min((axes.last_alloc_ns / bin_ns) as usize + 1).max(last + 1);
        let time = (rises.as_slice(), warm.min(first), active);
        let events = over_events.as_ref().map(|trend| {
            let length = self.activity.len() - after_warm_up(&self.activity);
            (trend.rises.as_slice(), 0, length)
        });
        // A stop on either axis counts: a cache may be full before a slow or a busy part of the run. But a busy part shows
        // nothing that begins and ends before the next rise is due.
        let full = busy.len() >= MIN_VALUES && floor_of_events.first() == floor_of_events.last();
        let is_due = active - 1 - last > longest_pause(&rises);
        let stopped =
            |(rises, from, to): (&[usize], usize, usize)| has_stopped(rises, to - from, to - 1);
        if full || stopped(time) || is_due && events.is_some_and(stopped) {
            return Err(KeptReason::Stopped);
        }
        if trend.rises.len() < RISES {
            return Err(KeptReason::Unjudged);
        }
        // A spread on one axis is enough: a short part of the time may be most of the work.
        let spread_of = |(rises, from, to): (&[usize], usize, usize)| spread(rises, to - from);
        let spread_of_events = events.map_or(0.0, spread_of);
        if spread_of(time) < SPREAD && spread_of_events < SPREAD_OF_EVENTS {
            return Err(KeptReason::Unjudged);
        }
        let seconds = |bins: usize| bins as f64 * bin_ns as f64 / 1e9;
        // The rate while it grew: after the last rise, a pause and a stop look the same.
        let bytes_per_second = match &over_time {
            Some(trend) if trend.rises.len() >= FEW_RISES => {
                let average = risen as f64 / seconds(last - first + 1);
                let points = trend.floor.iter().map(|(at, value)| (seconds(*at), *value as f64));
                let median = slope(&points.collect::<Vec<_>>());
                median.filter(|slope| *slope > average / 2.0).unwrap_or(average)
            }
            _ => {
                let from = seconds(first.saturating_sub(1));
                trend.risen as f64 / (self.last_alloc_ns as f64 / 1e9 - from).max(seconds(1))
            }
        };
        let risen = trend.risen.max(risen);
        Ok(Growth {
            tau: trend.tau,
            straight: trend.straight,
            rises: trend.rises.len(),
            points: trend.floor.len(),
            troughs: trend.troughs > 0,
            spread_of_events,
            risen,
            bytes_per_second,
            first_ns: first as u64 * bin_ns,
            last_ns: last as u64 * bin_ns,
        })
    }
}

/// Whether the growth has stopped before the bin `end`, by the pauses between the rises. `length`: number
/// of bins.
fn has_stopped(rises: &[usize], length: usize, end: usize) -> bool {
    let Some(last) = rises.last() else { return false };
    let part = |bins: usize| bins as f64 / length as f64;
    let quiet = end.saturating_sub(*last);
    part(quiet) > QUIET.max(2.0 * part(longest_pause(rises)))
}

fn longest_pause(rises: &[usize]) -> usize {
    rises.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0)
}

/// The part of `length` bins from the first rise to the last.
fn spread(rises: &[usize], length: usize) -> f64 {
    let ends = rises.first().zip(rises.last());
    ends.map_or(0.0, |(first, last)| last.saturating_sub(*first) as f64 / length as f64)
}

/// Whether a trend is strong, no accident, and not one jump.
fn is_clear(trend: &Trend) -> bool {
    trend.tau >= MIN_TAU
        && trend.z >= UNLIKELY
        && trend.largest <= JUMP
        && trend.rises.len() >= FEW_RISES
}

fn settled(values: &[u64]) -> u64 {
    values.iter().rev().take(LAST).copied().min().unwrap_or(0)
}

/// Index of the first bin after warm-up.
fn after_warm_up(values: &[u64]) -> usize {
    (values.len() as f64 * WARM_UP) as usize
}

/// The lowest value from each position on, at most `left`.
fn floor(values: &[u64], left: u64) -> Vec<u64> {
    let mut floor: Vec<u64> = values.iter().map(|value| left.min(*value)).collect();
    for index in (1..floor.len()).rev() {
        floor[index - 1] = floor[index - 1].min(floor[index]);
    }
    floor
}
