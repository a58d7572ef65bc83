//! Samples of allocations: a Poisson process over their bytes, with one point in `rate` bytes on average. An allocation
//! is recorded if a point lies in it, and stands for `1 / p` allocations of its size.
//!
//! The recorder computes with these functions too: they call no mathematical library.

use std::f64::consts::{LN_2, SQRT_2};

/// The probability with which an allocation of `size` bytes is recorded: `1 - exp(-size / rate)`. 1 for a rate of 0.
pub fn probability(size: u64, rate: u64) -> f64 {
    let points = size as f64 / rate as f64;
    if rate == 0 || points > 64.0 {
        return 1.0;
    }
    // 1 - exp(-2y) = p (2 - p) with p = 1 - exp(-y).
    let (mut small, mut doublings) = (points, 0);
    while small > 0.25 {
        (small, doublings) = (small * 0.5, doublings + 1);
    }
    let (mut sum, mut term) = (0.0, small);
    for n in 2..14 {
        sum += term;
        term *= -small / f64::from(n);
    }
    (0..doublings).fold(sum, |p, _| p * (2.0 - p))
}

/// The number of allocations that a recorded one of `size` bytes represents. 1 for a rate of 0: all were recorded.
#[inline]
pub fn weight(size: u64, rate: u64) -> f64 {
    if rate == 0 {
        return 1.0;
    }
    match probability(size, rate) {
        p if p > 0.0 => 1.0 / p,
        _ => 1.0,
    }
}

/// A figure of an allocation, times the number of allocations that it represents.
#[inline]
pub fn weigh(figure: u64, weight: f64) -> u64 {
    if weight == 1.0 { figure } else { (figure as f64 * weight + 0.5) as u64 }
}

/// The part of the variance of a sum that a recorded allocation adds: `figure^2 (1 - p) / p^2`. Summed over those that
/// were recorded, it estimates the sum of `figure^2 (1 - p) / p` over all.
pub fn variance(figure: u64, weight: f64) -> f64 {
    let figure = figure as f64;
    figure * figure * weight * (weight - 1.0)
}

/// The distance in bytes to the next point, from 64 random bits.
pub fn distance(random: u64, rate: u64) -> u64 {
    // Above 0 and at most 1.
    let uniform = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-ln(uniform) * rate as f64) as u64
}

/// The natural logarithm of a normal number above 0.
fn ln(value: f64) -> f64 {
    let bits = value.to_bits();
    let mut exponent = f64::from((bits >> 52) as i32 - 1023);
    let mut fraction = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if fraction > SQRT_2 {
        (fraction, exponent) = (fraction * 0.5, exponent + 1.0);
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), whose argument is at most 0.172.
    let argument = (fraction - 1.0) / (fraction + 1.0);
    let square = argument * argument;
    let sum = (0..10).rev().fold(0.0, |sum, n| sum * square + 1.0 / f64::from(2 * n + 1));
    exponent * LN_2 + 2.0 * argument * sum
}

/// The next 64 random bits of a generator (splitmix64). Any state is a seed.
pub fn random(state: u64) -> (u64, u64) {
    let next = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (next ^ next >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (next, mixed ^ mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_are_those_of_the_library() {
        // Miri's functions of floating point are inexact on purpose.
        let (mut state, most) = (7, if cfg!(miri) { 4e-14 } else { 4e-16 });
        for _ in 0..20_000 {
            let (next, bits) = random(state);
            state = next;
            let value = ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64;
            assert!((ln(value) - value.ln()).abs() <= most * value.ln().abs().max(1.0), "{value}");
            let (size, rate) = (1 + (bits >> (bits % 60)), 1 << (state % 40));
            let exact = -(-(size as f64) / rate as f64).exp_m1();
            let found = probability(size, rate);
            assert!((found - exact).abs() <= 1e-14 * exact, "{size} {rate}: {found} {exact}");
        }
        assert!(ln(1.0) == 0.0 && ln(f64::MIN_POSITIVE).is_finite());
    }

    #[test]
    fn without_a_rate_all_are_recorded() {
        assert_eq!((probability(512, 0), weight(512, 0)), (1.0, 1.0));
        assert_eq!(weight(0, 512), 1.0, "of nothing there is no chance");
        assert_eq!(weight(u64::MAX, 1), 1.0);
        assert_eq!(variance(1 << 30, 1.0), 0.0);
        assert_eq!(weigh(u64::MAX, 1.0), u64::MAX);
        assert_eq!(weigh(3, 1.5), 5);
    }

    #[test]
    fn distances_have_the_mean_of_the_rate() {
        let (rate, count) = (1u64 << 20, 100_000);
        let (mut state, mut sum) = (1, 0.0);
        for _ in 0..count {
            let (next, bits) = random(state);
            (state, sum) = (next, sum + distance(bits, rate) as f64);
        }
        // The standard deviation of an exponential distribution is its mean.
        let (mean, expected) = (sum / f64::from(count), rate as f64);
        assert!((mean / expected - 1.0).abs() < 4.0 / f64::from(count).sqrt(), "{mean}");
        assert_eq!(distance(u64::MAX, rate), 0);
        assert!(distance(0, rate) < 40 << 20);
    }
}
