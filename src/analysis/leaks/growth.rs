//! Does what a stack holds grow without end? Judged over time and over activity: a program may
//! pause for hours, and it may work in bursts.

use super::series::{self, Series};
use super::trend::{Trend, slope, trend};
use super::watch::{ACTIVITY_SHIFT, TIME_SHIFT};

/// This part of an axis, from its beginning, is warm-up.
pub const WARM_UP: f64 = 0.2;
/// Rises from which on a trend is a trend; fewer, with no free at all, are told as never freed.
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
    /// The place's last allocation, and its events up to there.
    pub last_alloc_ns: u64,
    pub events: u64,
}

/// What a stack, or several, held, bin by bin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Lowest bytes in each bin of time up to where the end's frees begin.
    pub time: Vec<u64>,
    /// And over events.
    pub activity: Vec<u64>,
    /// The last allocation, ns since the watch began.
    pub last_alloc_ns: u64,
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
    /// Bytes by which the floor went up after warm-up.
    pub risen: u64,
    pub bytes_per_second: f64,
    /// The bins of time in which it went up first and last.
    pub first_ns: u64,
    pub last_ns: u64,
}

/// Why something that is held does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Still {
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

    pub fn history(&self, time: &Series, activity: &Series, last_alloc_ns: u64) -> History {
        let shift = series::shift_for(self.events, ACTIVITY_SHIFT);
        let mut time = time.lowest(self.settled_ns, self.time_shift());
        // Frees of the end may lie in the last bin.
        if self.settled_ns < self.end_ns {
            time.pop();
        }
        let mut activity = activity.lowest(self.events, shift);
        if self.settled_ns < self.end_ns {
            activity.pop();
        }
        History { time, activity, last_alloc_ns }
    }
}

impl History {
    pub fn add(&mut self, other: &History) {
        self.last_alloc_ns = self.last_alloc_ns.max(other.last_alloc_ns);
        let pairs = [(&mut self.time, &other.time), (&mut self.activity, &other.activity)];
        for (sum, values) in pairs {
            sum.resize(sum.len().max(values.len()), 0);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
        }
    }

    /// Bytes where the end's frees begin, without a step that was under way there.
    pub fn settled(&self) -> u64 {
        let last = self.time.iter().rev().take(LAST);
        last.copied().min().unwrap_or(0)
    }

    /// `left`: bytes of which it is known that they stay. `Err`: how it stands instead.
    pub fn growth(&self, axes: &Axes, left: u64) -> Result<Growth, Still> {
        let bin_ns = axes.bin_ns();
        let warm = after_warm_up(&self.time);
        let window = &self.time[warm..];
        let over_time = trend(window, left);
        let floor = floor(window, left);
        let risen = floor.last().zip(floor.first()).map_or(0, |(last, first)| last - first);
        let over_events = trend(&self.activity[after_warm_up(&self.activity)..], left);
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
            return Err(if moves { Still::Moves } else { Still::Steady });
        };
        // Warm-up may be most of the time of a program that works in bursts.
        let whole;
        let (rises, warm, length) = match &over_time {
            Some(trend) if trend.rises.len() >= SPORADIC_RISES => {
                (&trend.rises, warm, window.len())
            }
            _ => {
                let floor = self::floor(&self.time, left);
                let rises = (1..floor.len()).filter(|at| floor[*at] > floor[at - 1]);
                // It may lie beyond the bins.
                let last = (self.last_alloc_ns / bin_ns) as usize;
                whole = rises.chain([last]).collect::<Vec<usize>>();
                (&whole, 0, self.time.len().max(last + 1))
            }
        };
        let (Some(first), Some(last)) = (rises.first(), rises.last()) else {
            return Err(Still::Moves);
        };
        let part = |bins: usize| bins as f64 / length as f64;
        // On either axis: a cache may be full before a slow part of the run, or a busy one.
        let events = over_events.as_ref().map(|trend| {
            let length = self.activity.len() - after_warm_up(&self.activity);
            (trend.rises.as_slice(), length)
        });
        let axes = [Some((rises.as_slice(), length)), events].into_iter().flatten();
        if axes.into_iter().any(|(rises, length)| has_stopped(rises, length)) {
            return Err(Still::Stopped);
        }
        let spread = if strength == Strength::Growing { SPREAD } else { SPORADIC_SPREAD };
        if part(last.saturating_sub(*first)) < spread {
            return Err(Still::Moves);
        }
        let place = |at: usize| at as f64 * bin_ns as f64 / 1e9;
        let points: Vec<(f64, f64)> = match &over_time {
            Some(trend) => trend.floor.iter().map(|(at, v)| (place(*at), *v as f64)).collect(),
            None => Vec::new(),
        };
        let average = risen as f64 / place(window.len()).max(1e-9);
        let median = slope(&points).filter(|slope| *slope > average / 10.0);
        Ok(Growth {
            strength,
            tau: trend.tau,
            straight: trend.straight,
            rises: trend.rises.len(),
            points: trend.floor.len(),
            troughs: trend.troughs > 0,
            risen: trend.risen.max(risen),
            bytes_per_second: median.unwrap_or(average),
            first_ns: (warm + first) as u64 * bin_ns,
            last_ns: (warm + last) as u64 * bin_ns,
        })
    }
}

/// Rises among so many bins: is it longer since the last one than they let expect?
fn has_stopped(rises: &[usize], length: usize) -> bool {
    let Some(last) = rises.last() else { return false };
    let part = |bins: usize| bins as f64 / length as f64;
    let pause = rises.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0);
    let quiet = (length - 1).saturating_sub(*last);
    part(quiet) > QUIET.max(2.0 * part(pause))
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
