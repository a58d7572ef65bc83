//! The trend of a figure: a rank test (Mann-Kendall) on its floor, the values that it never fell below
//! again. Values that rise and fall with each step have no trend, nor has a single jump.

/// With fewer values there is no result.
pub(super) const MIN_VALUES: usize = 12;
/// With fewer troughs, the test uses all values: the last rise may fall again.
const MIN_TROUGHS: usize = 5;
/// A fall of at least this part of the whole range ends a period.
const FALL: f64 = 0.25;

/// With too few troughs, at least this part of the whole rise must precede the last fall.
const KEPT: f64 = 0.25;

/// The z of the normal distribution with 0.02 above it.
pub(super) const UNLIKELY: f64 = 2.053_749;

/// How a figure moved.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trend {
    /// Kendall's tau: 1 = each value above all before it, 0 = no order.
    pub tau: f64,
    /// The test's z: such a tau without a trend has a probability of 0.02 above [`UNLIKELY`], if the values are independent.
    pub z: f64,
    /// Positions of the values at which the floor rose.
    pub rises: Vec<usize>,
    /// Sum of these rises.
    pub risen: u64,
    /// The largest rise, as a part of `risen`.
    pub largest: f64,
    /// `risen` as a part of all increases of the figure: 1 = it never fell.
    pub straight: f64,
    /// Number of low points that the test used. 0: it used all values.
    pub troughs: usize,
    /// The floor: position and value.
    pub floor: Vec<(usize, u64)>,
}

/// The trend of some values. `cap`: the value that is known to remain afterwards; higher values count as
/// this one. `None`: the floor does not rise, or there are too few values.
pub(super) fn trend(values: &[u64], cap: u64) -> Option<Trend> {
    if values.len() < MIN_VALUES {
        return None;
    }
    let (low, high) = (values.iter().min()?, values.iter().max()?);
    let fall = ((high - low) as f64 * FALL).max(1.0) as u64;
    let troughs = troughs(values, fall);
    let (points, troughs, last): (Vec<(usize, u64)>, usize, usize) = match troughs {
        Some(troughs) if troughs.len() >= MIN_TROUGHS => {
            let count = troughs.len();
            (troughs, count, 0)
        }
        few => {
            let last = few.and_then(|few| few.last().map(|(at, _)| *at)).unwrap_or(0);
            (values.iter().copied().enumerate().collect(), 0, last)
        }
    };
    let points: Vec<(usize, u64)> =
        points.into_iter().map(|(at, value)| (at, value.min(cap))).collect();
    let mut floor = points.clone();
    for index in (1..floor.len()).rev() {
        floor[index - 1].1 = floor[index - 1].1.min(floor[index].1);
    }
    let steps = floor.windows(2).filter(|pair| pair[1].1 > pair[0].1);
    let risen = floor.last()?.1 - floor[0].1;
    // The test of most stacks ends here, before all pairs of values are compared.
    if risen == 0 {
        return None;
    }
    if last > 0 {
        // It fell a few times. The rise since the last fall may be followed by another fall.
        let kept = floor.iter().find(|(at, _)| *at >= last).map_or(0, |(_, low)| low - floor[0].1);
        if (kept as f64) < KEPT * risen as f64 {
            return None;
        }
    }
    let largest = steps.clone().map(|pair| pair[1].1 - pair[0].1).max().unwrap_or(0);
    let values_of: Vec<u64> = points.iter().map(|(_, value)| *value).collect();
    let rises = values_of.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    let up = rises.fold(0, u64::saturating_add);
    let (tau, z) = mann_kendall(&values_of);
    Some(Trend {
        tau,
        z,
        rises: steps.map(|pair| pair[1].0).collect(),
        risen,
        largest: largest as f64 / risen.max(1) as f64,
        straight: risen as f64 / up.max(1) as f64,
        troughs,
        floor,
    })
}

/// The low points between a fall of at least `fall` and the next rise of at least `fall`. The last one
/// needs no rise. `None`: it never fell that far.
fn troughs(values: &[u64], fall: u64) -> Option<Vec<(usize, u64)>> {
    let mut found = Vec::new();
    let mut high = values[0];
    // The lowest point since the last fall; `None` while it climbs.
    let mut lowest: Option<(usize, u64)> = None;
    for (at, value) in values.iter().copied().enumerate() {
        match lowest {
            None if high - value.min(high) >= fall => lowest = Some((at, value)),
            None => high = high.max(value),
            Some((_, low)) if value <= low => lowest = Some((at, value)),
            Some((_, low)) if value - low >= fall => {
                found.extend(lowest.take());
                high = value;
            }
            Some(_) => {}
        }
    }
    found.extend(lowest);
    (!found.is_empty()).then_some(found)
}

/// Kendall's tau of the values against their order, and its z.
fn mann_kendall(values: &[u64]) -> (f64, f64) {
    let n = values.len();
    let pairs = |n: usize| (n * n.saturating_sub(1) / 2) as i64;
    let mut sorted: Vec<u64> = Vec::with_capacity(n);
    let mut falls = 0;
    for value in values {
        let place = sorted.partition_point(|earlier| earlier <= value);
        falls += (sorted.len() - place) as i64;
        sorted.insert(place, *value);
    }
    let equal: i64 = sorted.chunk_by(|a, b| a == b).map(|same| pairs(same.len())).sum();
    let score = pairs(n) - equal - 2 * falls;
    let spread = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0) / 18.0;
    let ties: f64 = sorted.chunk_by(|a, b| a == b).map(|same| spread(same.len() as f64)).sum();
    let variance = spread(n as f64) - ties;
    let tau = score as f64 / pairs(n).max(1) as f64;
    if variance <= 0.0 {
        return (tau, 0.0);
    }
    (tau, (score as f64 - (score.signum() as f64)) / variance.sqrt())
}

/// Theil-Sen: the median slope of all pairs. `None` for fewer than two points.
pub(super) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let pairs = points.iter().enumerate().flat_map(|(index, a)| {
        points[index + 1..].iter().filter(|b| b.0 > a.0).map(move |b| (b.1 - a.1) / (b.0 - a.0))
    });
    let mut slopes: Vec<f64> = pairs.collect();
    let middle = slopes.len().checked_sub(1)? / 2;
    Some(*slopes.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Option<Trend> {
        trend(&values.into_iter().collect::<Vec<_>>(), u64::MAX)
    }

    #[test]
    fn what_is_above_the_rest_does_not_count() {
        // Ends in the middle of a step.
        let mut values: Vec<u64> = (0..40).map(|n| 10 * n).collect();
        values.extend([5_000; 2]);
        assert!(trend(&values, u64::MAX).unwrap().largest > 0.9);
        let capped = trend(&values, 400).unwrap();
        assert!(capped.largest < 0.1 && capped.risen == 400, "{capped:?}");
    }

    #[test]
    fn a_line_goes_up_and_a_flat_one_says_nothing() {
        let line = of((0..40).map(|n| 10 * n)).unwrap();
        assert_eq!((line.tau, line.risen, line.rises.len(), line.troughs), (1.0, 390, 39, 0));
        assert!(line.z > 5.0 && line.largest < 0.03);
        assert_eq!(of([7; 40]), None);
        assert_eq!(of(0..5), None, "too few");
        assert_eq!(of((0..40).map(|n| 400 - 10 * n)), None);
    }

    #[test]
    fn a_saw_tooth_is_judged_by_its_low_points() {
        assert_eq!(of((0..64).map(|n| 100 + n % 8 * 50)), None);
        let leaking = of((0..64).map(|n| 100 + n % 8 * 50 + n / 8 * 10)).unwrap();
        assert_eq!((leaking.risen, leaking.tau, leaking.troughs), (60, 1.0, 7), "{leaking:?}");
        assert_eq!(of((0..32).map(|n| n % 16 * 50)), None, "too few periods to say");
        let fell_once = of((0..40).map(|n| n * 50 - if n > 20 { 500 } else { 0 })).unwrap();
        assert!(fell_once.risen == 1450 && fell_once.tau > 0.5, "{fell_once:?}");
    }

    #[test]
    fn a_step_is_one_rise() {
        let step = of((0..40).map(|n| if n < 20 { 100 } else { 900 })).unwrap();
        assert_eq!((step.rises.as_slice(), step.largest), (&[20][..], 1.0));
    }

    #[test]
    fn the_order_of_values_has_a_z() {
        // Five in order: S = 10, variance 50/3.
        let (tau, z) = mann_kendall(&[1, 2, 3, 4, 5]);
        assert!(tau == 1.0 && (z - 9.0 / (50.0f64 / 3.0).sqrt()).abs() < 1e-9);
        assert_eq!((mann_kendall(&[4; 9]), mann_kendall(&[2, 1, 3, 3]).0), ((0.0, 0.0), 0.5));
    }

    #[test]
    fn the_slope_is_not_moved_by_outliers() {
        let mut points: Vec<(f64, f64)> =
            (0..20).map(|n| (f64::from(n), 3.0 * f64::from(n))).collect();
        points[3].1 = 1e9;
        points[17].1 = -1e9;
        assert!((slope(&points).unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(slope(&points[..1]), None);
    }
}
