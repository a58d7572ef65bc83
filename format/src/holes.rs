//! Free ranges between blocks.

use std::ops::Range;

/// The parts of `range` that no block covers, as address and bytes, in ascending order. `blocks`: address and bytes of
/// each block, sorted by address; blocks may overlap, and may extend beyond the range.
pub fn holes(
    range: Range<u64>,
    blocks: impl IntoIterator<Item = (u64, u64)>,
) -> impl Iterator<Item = (u64, u64)> {
    let mut from = range.start;
    blocks.into_iter().chain([(range.end, 0)]).filter_map(move |(address, bytes)| {
        let hole = (from, address.min(range.end).saturating_sub(from));
        from = from.max(address.saturating_add(bytes));
        (hole.1 > 0).then_some(hole)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(range: Range<u64>, blocks: &[(u64, u64)]) -> Vec<(u64, u64)> {
        holes(range, blocks.iter().copied()).collect()
    }

    #[test]
    fn holes_before_between_and_after_blocks() {
        assert_eq!(found(10..20, &[]), [(10, 10)]);
        assert_eq!(found(10..20, &[(12, 2), (14, 1), (17, 1)]), [(10, 2), (15, 2), (18, 2)]);
        assert_eq!(found(10..20, &[(10, 10)]), []);
        assert_eq!(found(10..10, &[]), []);
        assert_eq!(found(10..20, &[(0, 5), (8, 4), (19, u64::MAX)]), [(12, 7)]);
    }

    proptest! {
        /// Compares with a test of each address.
        #[test]
        fn holes_are_what_is_not_covered(
            start in 0..20u64,
            length in 0..20u64,
            mut blocks in proptest::collection::vec((0..50u64, 0..9u64), 0..9),
        ) {
            blocks.sort_unstable();
            let range = start..start + length;
            let covered = |at: &u64| blocks.iter().any(|(from, size)| (*from..from + size).contains(at));
            let expected: Vec<u64> = range.clone().filter(|at| !covered(at)).collect();
            let given = found(range, &blocks).into_iter().flat_map(|(at, bytes)| at..at + bytes);
            prop_assert_eq!(given.collect::<Vec<u64>>(), expected);
        }
    }
}
