//! An allocator of the program that keeps pieces, each larger than those before: a later request is larger than any
//! piece that is kept, so that a new one is allocated, and the smaller ones are never used again.
//!
//! It grows as a leak does. What tells them apart is that the sizes rise from piece to piece, and that a frame of the
//! stack names an allocator: a list of ever larger pieces that a program forgets is a leak.

use super::judge::JudgedLeak;
use super::sorted::pool_of;
use crate::analysis::{Level, StackClassifier};

/// Maximum number of pieces in use at once in one request: each has a series of sizes.
const SERIES: usize = 4;
/// Fewer pieces show no rule.
const MIN_PIECES: u64 = 12;
/// Of 100 pieces, so many are not smaller than the earlier one of their series, and so many are larger.
const NOT_SMALLER: u64 = 90;
const LARGER: u64 = 75;

/// How the sizes of successive allocations of one stack compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces {
    /// The latest sizes, bytes, the last one first.
    last: [u64; SERIES],
    allocations: u64,
    /// By distance: pairs of allocations of which the later one is not smaller, and is larger.
    not_smaller: [u64; SERIES],
    larger: [u64; SERIES],
    /// Pairs at each distance.
    pairs: [u64; SERIES],
    /// By distance: bytes of the latest pieces, one of each series. After [`Pieces::add`], of all stacks.
    newest: [u64; SERIES],
}

impl Pieces {
    pub(super) fn allocated(&mut self, size: u64) {
        for (at, earlier) in self.last.into_iter().enumerate() {
            if self.allocations > at as u64 {
                self.pairs[at] += 1;
                self.not_smaller[at] += u64::from(size >= earlier);
                self.larger[at] += u64::from(size > earlier);
            }
        }
        self.last.rotate_right(1);
        self.last[0] = size;
        self.allocations += 1;
        let mut sum = 0u64;
        for (newest, last) in self.newest.iter_mut().zip(self.last) {
            sum = sum.saturating_add(last);
            *newest = sum;
        }
    }

    /// Adds another stack of the same line.
    pub(super) fn add(&mut self, other: &Pieces) {
        self.allocations += other.allocations;
        for at in 0..SERIES {
            self.pairs[at] += other.pairs[at];
            self.not_smaller[at] += other.not_smaller[at];
            self.larger[at] += other.larger[at];
            self.newest[at] = self.newest[at].saturating_add(other.newest[at]);
        }
    }

    /// Bytes of the largest pieces, if the sizes rise.
    pub(super) fn exact(&self) -> Option<u64> {
        let rises = |at: usize| {
            let pairs = self.pairs[at];
            pairs + SERIES as u64 >= MIN_PIECES
                && self.not_smaller[at] * 100 >= pairs * NOT_SMALLER
                && self.larger[at] * 100 >= pairs * LARGER
        };
        (0..SERIES).find(|at| rises(*at)).map(|at| self.newest[at])
    }
}

/// Such a pool takes more than this many times the bytes of its largest pieces.
const TIMES: u64 = 2;

impl JudgedLeak {
    /// Whether it is growth of such an allocator.
    pub(super) fn is_outgrown(&self, classifier: &StackClassifier) -> bool {
        let JudgedLeak { case, leak } = self;
        let (level, _) = case.at;
        let stays = case.sums.highest_count * 10 >= case.sums.allocations * 9;
        level == Level::Driver
            && leak.count >= MIN_PIECES
            && stays
            && classifier.names_pool(case.stack)
            && pool_of(classifier, level, case.stack).is_none()
            && case
                .sums
                .pieces
                .exact()
                .is_some_and(|exact| leak.bytes > exact.saturating_mul(TIMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sizes: impl IntoIterator<Item = u64>) -> Pieces {
        let mut pieces = Pieces::default();
        sizes.into_iter().for_each(|size| pieces.allocated(size));
        pieces
    }

    #[test]
    fn sizes_that_rise_in_one_or_several_series() {
        assert_eq!(of((1..=30).map(|n| n * 100)).exact(), Some(3000));
        let two = (1..=30).flat_map(|n| [n * 100, 5000 + n * 10]);
        assert_eq!(of(two).exact(), Some(3000 + 5300));
        // Now and then one is as large as before.
        assert_eq!(of((0..40).map(|n| 1000 + (n - n % 5 / 4) * 10)).exact(), Some(1380));
        let mut both = of((1..=20).map(|n| n * 100));
        both.add(&of((1..=20).map(|n| n * 7)));
        assert_eq!(both.exact(), Some(2140));
    }

    #[test]
    fn sizes_that_do_not_rise() {
        assert_eq!(of([4096; 100]).exact(), None, "equal sizes");
        assert_eq!(of((1..=5).map(|n| n * 100)).exact(), None, "too few");
        assert_eq!(of((1..=30).rev().map(|n| n * 100)).exact(), None, "smaller and smaller");
        let mut seed = 1u64;
        let random = (0..200).map(|_| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 40
        });
        assert_eq!(of(random).exact(), None, "any size");
        assert_eq!(of((0..60).map(|n| n % 6 * 300)).exact(), None, "the layers of a model");
        assert_eq!(of((0..60).map(|n| 512 << (n / 30))).exact(), None, "two sizes");
        assert_eq!(of([u64::MAX; 9]).exact(), None);
    }
}
