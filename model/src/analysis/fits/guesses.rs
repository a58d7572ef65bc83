//! The size of a block without a law: an interval, from what was recorded of it.

use super::law::{Bound, Point};
use super::varied::{Axis, Values};

/// The size of a block at other values. Where two numbers differ, each may change the size by a factor of its own.
pub(super) fn unknown(points: &[Point], at: Values, bound: Bound) -> f64 {
    let Some(near) = points.iter().min_by_key(|point| distance(point.at, at)) else { return 0.0 };
    let of = |axis: Axis, other: Axis| {
        let row = points.iter().filter(|point| point.at.of(other) == near.at.of(other));
        let row: Vec<(f64, f64)> =
            row.map(|point| (point.at.of(axis) as f64, point.bytes as f64)).collect();
        guess(&row, at.of(axis) as f64, axis == Axis::Second)[bound as usize]
    };
    let first = of(Axis::First, Axis::Second);
    let has_second = points.iter().any(|point| point.at.second != 1) || at.second != 1;
    match has_second {
        false => first,
        true => first * of(Axis::Second, Axis::First) / (near.bytes as f64).max(1.0),
    }
}

/// Nearer points first: by the first number, then by the second.
fn distance(one: Values, other: Values) -> (u64, u64) {
    (one.first.abs_diff(other.first), one.second.abs_diff(other.second))
}

/// The size at another value of one number, by bound: as large as it was, in proportion to the number, or on the line through
/// the outermost recorded values. `square`: where one value alone was recorded, the size may have a square of it.
fn guess(points: &[(f64, f64)], x: f64, square: bool) -> [f64; 3] {
    let by_value = |one: &&(f64, f64), other: &&(f64, f64)| one.0.total_cmp(&other.0);
    let distance = |point: &&(f64, f64)| (point.0 - x).abs() as u64;
    let Some(&(near, flat)) = points.iter().min_by_key(distance) else {
        return [0.0; 3];
    };
    let ratio = x / near.max(1.0);
    let ends = points.iter().min_by(by_value).zip(points.iter().max_by(by_value));
    let ends = ends.filter(|(first, last)| first.0 < last.0);
    let line = ends.map(|(first, last)| {
        let slope = (last.1 - first.1) / (last.0 - first.0);
        flat + slope * (x - near)
    });
    let mut guesses = vec![flat, flat * ratio];
    guesses.extend(line.filter(|line| *line > 0.0));
    let shrinks = line.is_some_and(|line| (line < flat) != (x < near));
    if shrinks {
        // Another algorithm was chosen: any that was seen may come again.
        guesses.extend(points.iter().map(|point| point.1));
    }
    guesses.sort_by(f64::total_cmp);
    let expected = if shrinks { flat } else { guesses[guesses.len() / 2] };
    let (mut low, mut high) = (guesses[0], guesses[guesses.len() - 1]);
    if ends.map_or(square, |(first, last)| last.1 * first.0 > first.1 * last.0) {
        // It grew by more than the number did, or how it grows is not known.
        low = low.min(flat * ratio * ratio);
        high = high.max(flat * ratio * ratio);
    }
    [low, expected, high]
}
