//! The distribution of the request sizes of a run, weighted by bytes.

use crate::allocator::rounding;

pub(super) const SMALL_SEGMENT: u64 = rounding::SMALL_SEGMENT;

/// Whether a request of this size is served from the pool for small blocks.
pub(super) fn is_small(size: u64) -> bool {
    size <= rounding::SMALL
}

/// Each power of two has 2^FINE bins, so that a bin spans an eighth of its size at most.
const FINE: u32 = 3;
const BINS: usize = 64 << FINE;

/// A histogram of bytes by size, for each of the two pools.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// Requested bytes, and the smallest size, of each bin.
    bins: [Box<[(u128, u64)]>; 2],
}

impl Default for Sizes {
    fn default() -> Sizes {
        let empty = || vec![(0, u64::MAX); BINS].into_boxed_slice();
        Sizes { bins: [empty(), empty()] }
    }
}

impl Sizes {
    /// Adds one request.
    pub(super) fn add(&mut self, size: u64) {
        let power = size.max(1 << FINE).ilog2();
        let fine = (size >> (power - FINE)) & ((1 << FINE) - 1);
        let bin = ((power as usize) << FINE) + fine as usize;
        let (bytes, least) = &mut self.bins[usize::from(is_small(size))][bin];
        *bytes += u128::from(size);
        *least = size.min(*least);
    }

    /// The size at or above which half of all bytes of the pool were requested, to an eighth. 0 without
    /// requests.
    pub(super) fn usual(&self, small: bool) -> u64 {
        let bins = &self.bins[usize::from(small)];
        let all: u128 = bins.iter().map(|(bytes, _)| bytes).sum();
        let mut above = 0;
        for (bytes, least) in bins.iter().rev().filter(|(bytes, _)| *bytes > 0) {
            above += bytes;
            if above * 2 >= all {
                return *least;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_all_bytes_lie_at_or_above_the_usual_request() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.usual(true), 0);
        (0..1000).for_each(|_| sizes.add(512));
        sizes.add(600_000);
        assert_eq!(sizes.usual(true), 600_000, "512,000 bytes in small pieces are less than half");
        (0..1000).for_each(|_| sizes.add(512));
        assert_eq!(sizes.usual(true), 512);
        assert_eq!(sizes.usual(false), 0);
        for mib in 2..=10 {
            sizes.add(mib << 20);
        }
        // 54 MiB in all; 10 + 9 + 8 are the upper half.
        assert_eq!(sizes.usual(false), 8 << 20);
        sizes.add(u64::MAX);
        sizes.add(0);
    }
}
