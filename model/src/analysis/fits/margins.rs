//! How far a prediction may be off where every block has its law. The constants were set on recorded runs of five models
//! (docs/fits.md lists them), and not on the runs that measure how often the intervals hold.

use super::answer::Interval;
use super::varied::{Axis, Values};

/// Allocated bytes at a recorded batch, where the recorded blocks are replayed under another setting: a block may be up
/// to 1 MiB larger than its request. At most 0.13 % was seen in transformers and 0.5 % in a convolutional net.
const AT_RECORDED: f64 = 0.004;
/// For each doubling of the batch, or of the length: kernels with other buffers, which no recorded batch shows. At most 0.2 % was seen.
const PER_DOUBLING: f64 = 0.004;
/// Reserved bytes come in segments of 20 MiB and more: one more or one less is seen where blocks are larger by 512 B.
const SEGMENT: u64 = 20 << 20;

/// How much is reserved and not allocated depends on the order of all requests, where the cache does not always split off
/// the rest of a block: a run may have this part less or more of it than its replay. Half of 110 runs of 23 models differed
/// by less than 3 %, and 3 of them by more than the interval that these constants give.
const LESS_FRAGMENTED: f64 = 0.3;
const MORE_FRAGMENTED: f64 = 0.1;

/// What is added to the interval that the laws give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Margin {
    part: f64,
    bytes: u64,
}

impl Margin {
    /// Of allocated bytes.
    pub(super) fn allocated(at: Values, recorded: &[Values]) -> Margin {
        let nearest = recorded.iter().map(|it| doublings(at, *it)).fold(f64::MAX, f64::min);
        Margin { part: AT_RECORDED + PER_DOUBLING * nearest, bytes: 0 }
    }

    /// Of reserved bytes. `model_off`: the part by which the replay of a recorded run differs from the run.
    pub(super) fn reserved(at: Values, recorded: &[Values], model_off: f64) -> Margin {
        let allocated = Margin::allocated(at, recorded);
        Margin { part: allocated.part + model_off, bytes: SEGMENT }
    }

    pub(super) fn around(self, low: u64, expected: u64, high: u64) -> Interval {
        let (low, high) = (low.min(expected), high.max(expected));
        Interval {
            low: low.saturating_sub(self.of(low)),
            expected,
            high: high.saturating_add(self.of(high)),
        }
    }

    /// Around reserved bytes of a run without a limit; `unused`: those that are not allocated. A run that meets its limit
    /// frees them.
    pub(super) fn around_fragmented(
        self,
        low: u64,
        expected: u64,
        high: u64,
        unused: u64,
    ) -> Interval {
        let around = self.around(low, expected, high);
        Interval {
            low: around.low.saturating_sub(part(unused, LESS_FRAGMENTED)),
            high: around.high.saturating_add(Margin::more_fragmented(unused)),
            ..around
        }
    }

    /// Bytes that a run may need beside its replay, where the places of its blocks are not known.
    pub(super) fn more_fragmented(unused: u64) -> u64 {
        part(unused, MORE_FRAGMENTED)
    }

    /// The bytes of a figure.
    fn of(self, bytes: u64) -> u64 {
        part(bytes, self.part).max(self.bytes)
    }

    /// The capacity that stands for this one where the run needs the most, or the least.
    pub(super) fn capacity(self, capacity: u64, at_most: bool) -> u64 {
        match at_most {
            true => capacity.saturating_sub(self.of(capacity)),
            false => capacity.saturating_add(self.of(capacity)),
        }
    }
}

fn part(of: u64, part: f64) -> u64 {
    (of as f64 * part).round() as u64
}

/// The doublings between two batches, and between two lengths.
fn doublings(one: Values, other: Values) -> f64 {
    let of = |axis| (one.of(axis).max(1) as f64 / other.of(axis).max(1) as f64).log2().abs();
    of(Axis::First) + of(Axis::Second)
}
