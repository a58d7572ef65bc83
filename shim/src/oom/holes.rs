//! Free bytes inside a framework's segments, and the longest free range: one pass over sorted copies.

use std::ops::Range;

/// A piece of device memory with addresses: an allocation, or a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub range: Range<u64>,
    /// Adjacent mapped pieces count as one.
    pub mapped: bool,
    /// Belongs to the framework, although no block is in it.
    pub empty: bool,
    /// The caller's number for it.
    pub number: usize,
}

/// The free bytes in pieces that contain blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    pub free: u64,
    pub largest: u64,
}

impl Holes {
    fn with(self, (_, bytes): (u64, u64)) -> Holes {
        Holes { free: self.free.saturating_add(bytes), largest: self.largest.max(bytes) }
    }
}

/// `blocks`: address and size of each. The numbers of the pieces that hold some, or are the
/// framework's all the same, go to `held`.
pub fn holes(
    mut pieces: Vec<Piece>,
    mut blocks: Vec<(u64, u64)>,
    mut held: impl FnMut(usize),
) -> Holes {
    pieces.sort_unstable_by_key(|piece| piece.range.start);
    blocks.sort_unstable();
    let mut all = Holes::default();
    let mut blocks = blocks.into_iter().peekable();
    for run in pieces.chunk_by(|a, b| a.mapped && b.mapped && a.range.end == b.range.start) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let (start, end) = (first.range.start, last.range.end);
        while blocks.next_if(|(address, _)| *address < start).is_some() {}
        let mut any = false;
        let inside = std::iter::from_fn(|| blocks.next_if(|(address, _)| *address < end));
        let inside = inside.inspect(|_| any = true);
        let with = vramtrace_format::holes::holes(start..end, inside).fold(all, Holes::with);
        if any || run.iter().all(|piece| piece.empty) {
            all = with;
            run.iter().for_each(|piece| held(piece.number));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(range: Range<u64>, mapped: bool, number: usize) -> Piece {
        Piece { range, mapped, empty: false, number }
    }

    fn found(pieces: &[Piece], blocks: &[(u64, u64)]) -> (Holes, Vec<usize>) {
        let mut numbers = Vec::new();
        let holes = holes(pieces.to_vec(), blocks.to_vec(), |number| numbers.push(number));
        (holes, numbers)
    }

    #[test]
    fn before_between_and_behind_the_blocks() {
        let pieces = [piece(1000..2000, false, 7), piece(0..500, false, 8)];
        let (holes, numbers) = found(&pieces, &[(1700, 100), (1100, 200)]);
        assert_eq!(holes, Holes { free: 100 + 400 + 200, largest: 400 });
        assert_eq!(numbers, [7], "what holds no block is not the framework's");
    }

    #[test]
    fn allocations_side_by_side_are_apart_and_mappings_are_one() {
        let blocks = [(0, 100), (1900, 100)];
        let apart = [piece(0..1000, false, 1), piece(1000..2000, false, 2)];
        assert_eq!(found(&apart, &blocks).0, Holes { free: 1800, largest: 900 });
        let mapped = [piece(0..1000, true, 1), piece(1000..2000, true, 2)];
        let (holes, numbers) = found(&mapped, &blocks);
        assert_eq!(holes, Holes { free: 1800, largest: 1800 });
        assert_eq!(numbers, [1, 2]);
        let gap = [piece(0..1000, true, 1), piece(1500..2000, true, 2)];
        assert_eq!(found(&gap, &blocks).0, Holes { free: 1300, largest: 900 });
    }

    #[test]
    fn an_empty_segment_is_a_hole_if_it_is_known_to_be_one() {
        let empty = Piece { empty: true, ..piece(0..1000, false, 1) };
        assert_eq!(found(&[empty], &[]), (Holes { free: 1000, largest: 1000 }, vec![1]));
        assert_eq!(found(&[piece(0..1000, false, 1)], &[]), (Holes::default(), vec![]));
    }

    #[test]
    fn blocks_outside_and_over_each_other_do_no_harm() {
        let pieces = [piece(1000..2000, false, 1)];
        let blocks = [(0, 10), (1000, 600), (1100, 100), (5000, 10), (u64::MAX, u64::MAX)];
        assert_eq!(found(&pieces, &blocks).0, Holes { free: 400, largest: 400 });
    }
}
