//! Does what a stack holds grow without end? Judged over time and over activity: a program may
//! pause for hours, and it may work in bursts.

use super::observer::{ACTIVITY_SHIFT, TIME_SHIFT};
use super::series::{self, Series};
use super::trend::{FEWEST, Trend, slope, trend};

/// This part of an axis, from its beginning, is warm-up.
pub const WARM_UP: f64 = 0.2;
/// Rises from which on a trend is a trend; fewer, with no free at all, are reported as never freed.
const RISES: usize = 6;
const SPORADIC_RISES: usize = 3;
/// Least order of the values (Kendall's tau), and the chance that is still taken for accident.
const LEAST_TAU: f64 = 0.5;
const ACCIDENT: f64 = 0.02;
/// A larger part of the whole in one rise is a jump, not growth.
const JUMP: f64 = 0.6;
/// Of the time after warm-up, rises must spread over this part ...
const SPREAD: f64 = 0.3;
const SPORADIC_SPREAD: f64 = 0.5;
/// Or over this part of the events: one step of training is no more.
const SPREAD_OF_EVENTS: f64 = 0.5;
/// ... and may have ended for this part of it, or for twice the longest pause before.
const QUIET: f64 = 0.1;
/// A step that is under way at the end is not longer than so many bins, or it is seen as one that
/// comes and goes.
const LAST: usize = 3;

/// The axes on which all stacks of a place are judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axes {
    /// ns from the beginning of the watch to where the end's frees begin, and to the end.
    pub settled_ns: u64,
    pub end_ns: u64,
    /// The place's last allocation, its events up to there, and all of them.
    pub last_alloc_ns: u64,
    pub events: u64,
    pub all_events: u64,
}

/// What a stack, or several, held, bin by bin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BinnedHistory {
    /// Lowest bytes in each bin of time up to where the end's frees begin.
    pub time: Vec<u64>,
    /// And over events.
    pub activity: Vec<u64>,
    /// The last allocation, ns since the watch began.
    pub last_alloc_ns: u64,
}

/// What is known to stay of what is live at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The process ended in order: what was live then.
    Known(u64),
    /// This at most: a step may be under way.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    Growing,
    /// A few times only; a leak if nothing is ever freed.
    Sporadic,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    pub strength: Strength,
    pub tau: f64,
    pub straight: f64,
    pub rises: usize,
    /// Of how many values: bins, or low points where it comes and goes.
    pub points: usize,
    pub troughs: bool,
    /// The part of the events after warm-up over which it went up.
    pub spread_of_events: f64,
    /// Bytes by which the floor went up after warm-up.
    pub risen: u64,
    pub bytes_per_second: f64,
    /// The bins of time in which it went up first and last.
    pub first_ns: u64,
    pub last_ns: u64,
}

/// Why something that is held does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeptReason {
    /// It is what it was at the end of warm-up.
    Steady,
    /// It grew and stopped.
    Stopped,
    /// It rises and falls back, or jumped once.
    Moves,
}

impl Axes {
    fn time_shift(&self) -> u32 {
        series::shift_for(self.end_ns, TIME_SHIFT)
    }

    /// Width of a bin of time.
    pub fn bin_ns(&self) -> u64 {
        1 << self.time_shift()
    }

    pub fn history(&self, time: &Series, activity: &Series, last_alloc_ns: u64) -> BinnedHistory {
        let shift = series::shift_for(self.all_events, ACTIVITY_SHIFT);
        let mut time = time.lowest(self.settled_ns, self.time_shift());
        // Frees of the end may lie in the last bin.
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
    pub fn add(&mut self, other: &BinnedHistory) {
        self.last_alloc_ns = self.last_alloc_ns.max(other.last_alloc_ns);
        let pairs = [(&mut self.time, &other.time), (&mut self.activity, &other.activity)];
        for (sum, values) in pairs {
            sum.resize(sum.len().max(values.len()), 0);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
        }
    }

    /// Bytes where the end's frees begin, without a step that was under way there.
    pub fn settled(&self) -> u64 {
        settled(&self.time).max(settled(&self.activity))
    }

    /// `left`: bytes of which it is known that they stay. `Err`: how it stands instead.
    pub fn growth(&self, axes: &Axes, left: Left) -> Result<Growth, KeptReason> {
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
        // What was given back after the last allocation is no growth.
        let over_events = over_events.filter(|trend| {
            let then = self.time.get((axes.last_alloc_ns / bin_ns) as usize + 1..);
            let lowest = then.and_then(|then| then.iter().min());
            let from = trend.floor.first().map_or(0, |(_, value)| *value);
            lowest.is_none_or(|lowest| *lowest >= from.saturating_add(trend.risen / 2))
        });
        let judged = [&over_time, &over_events].into_iter().flatten();
        let judged = judged.filter_map(|trend| Some((trend, strength(trend)?)));
        let growing = |how: &Strength| *how == Strength::Growing;
        let found = judged.max_by(|(a, of_a), (b, of_b)| {
            growing(of_a).cmp(&growing(of_b)).then(a.tau.total_cmp(&b.tau))
        });
        let Some((trend, strength)) = found else {
            let moves = risen > 0 || window.iter().max() > window.iter().min();
            return Err(if moves { KeptReason::Moves } else { KeptReason::Steady });
        };
        // Warm-up may be most of the time of a program that works in bursts.
        let (rises, length) = match &over_time {
            Some(trend) if trend.rises.len() >= SPORADIC_RISES => {
                (trend.rises.iter().map(|at| warm + at).collect(), self.time.len())
            }
            _ => {
                let floor = self::floor(&self.time, of_time);
                let rises = (1..floor.len()).filter(|at| floor[*at] > floor[at - 1]);
                // It may lie beyond the bins.
                let last = (self.last_alloc_ns / bin_ns) as usize;
                let rises: Vec<usize> = rises.chain([last]).collect();
                (rises, self.time.len().max(last + 1))
            }
        };
        let (Some(first), Some(last)) = (rises.first().copied(), rises.last().copied()) else {
            return Err(KeptReason::Moves);
        };
        // Time without allocations is not evidence: the program does something else.
        let active = length.min((axes.last_alloc_ns / bin_ns) as usize + 1).max(last + 1);
        let time = (rises.as_slice(), warm.min(first), active);
        let events = over_events.as_ref().map(|trend| {
            let length = self.activity.len() - after_warm_up(&self.activity);
            (trend.rises.as_slice(), 0, length)
        });
        let both = || [Some(time), events].into_iter().flatten();
        // On either axis: a cache may be full before a slow part of the run, or a busy one.
        let full = busy.len() >= FEWEST && floor_of_events.first() == floor_of_events.last();
        if full || both().any(|(rises, from, to)| has_stopped(rises, to - from, to - 1)) {
            return Err(KeptReason::Stopped);
        }
        // On one of them: what is a moment of the time may be most of the work.
        let (of_time, of_events) = match strength {
            Strength::Growing => (SPREAD, SPREAD_OF_EVENTS),
            Strength::Sporadic => (SPORADIC_SPREAD, SPORADIC_SPREAD),
        };
        let spread_of = |(rises, from, to): (&[usize], usize, usize)| spread(rises, to - from);
        let spread_of_events = events.map_or(0.0, spread_of);
        if spread_of(time) < of_time && spread_of_events < of_events {
            return Err(KeptReason::Moves);
        }
        let seconds = |bins: usize| bins as f64 * bin_ns as f64 / 1e9;
        // While it grew: what it does next cannot be separated from a pause.
        let bytes_per_second = match &over_time {
            Some(trend) if trend.rises.len() >= SPORADIC_RISES => {
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
            strength,
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

/// Rises, the last bin, and of how many: is it longer since the last one than they let expect?
fn has_stopped(rises: &[usize], length: usize, end: usize) -> bool {
    let Some(last) = rises.last() else { return false };
    let part = |bins: usize| bins as f64 / length as f64;
    let pause = rises.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0);
    let quiet = end.saturating_sub(*last);
    part(quiet) > QUIET.max(2.0 * part(pause))
}

/// The part of so many bins over which they spread.
fn spread(rises: &[usize], length: usize) -> f64 {
    let ends = rises.first().zip(rises.last());
    ends.map_or(0.0, |(first, last)| last.saturating_sub(*first) as f64 / length as f64)
}

fn strength(trend: &Trend) -> Option<Strength> {
    if trend.tau < LEAST_TAU || trend.chance > ACCIDENT || trend.largest > JUMP {
        return None;
    }
    match trend.rises.len() {
        RISES.. => Some(Strength::Growing),
        SPORADIC_RISES.. => Some(Strength::Sporadic),
        _ => None,
    }
}

fn settled(values: &[u64]) -> u64 {
    values.iter().rev().take(LAST).copied().min().unwrap_or(0)
}

fn after_warm_up(values: &[u64]) -> usize {
    (values.len() as f64 * WARM_UP) as usize
}

/// The lowest from each place on, `left` at most.
fn floor(values: &[u64], left: u64) -> Vec<u64> {
    let mut floor: Vec<u64> = values.iter().map(|value| left.min(*value)).collect();
    for index in (1..floor.len()).rev() {
        floor[index - 1] = floor[index - 1].min(floor[index]);
    }
    floor
}
