//! Ranges of addresses that do not overlap, each with something that is known of it.

use std::collections::BTreeMap;
use std::ops::Range;
use vramtrace_format::holes::holes;

#[derive(Clone, Debug)]
pub struct Spans<T> {
    /// By start: end, and what is known.
    map: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Spans<T> {
    fn default() -> Spans<T> {
        Spans { map: BTreeMap::new() }
    }
}

impl<T: Copy> Spans<T> {
    /// Takes out what lies in the range, in order; of what reaches out of it, the part inside.
    pub fn cut(&mut self, range: Range<u64>) -> Vec<(Range<u64>, T)> {
        let over: Vec<(Range<u64>, T)> = self.over(range.clone()).collect();
        for (span, known) in &over {
            self.map.remove(&span.start);
            if span.start < range.start {
                self.map.insert(span.start, (range.start, *known));
            }
            if span.end > range.end {
                self.map.insert(range.end, (span.end, *known));
            }
        }
        let inside = |(span, known): (Range<u64>, T)| {
            (span.start.max(range.start)..span.end.min(range.end), known)
        };
        over.into_iter().map(inside).collect()
    }

    /// Takes the range's place. Empty ranges are nothing.
    pub fn put(&mut self, range: Range<u64>, known: T) {
        if range.is_empty() {
            return;
        }
        self.cut(range.clone());
        self.map.insert(range.start, (range.end, known));
    }

    /// The span that holds the address.
    pub fn at(&self, address: u64) -> Option<(Range<u64>, T)> {
        let (start, (end, known)) = self.map.range(..=address).next_back()?;
        (address < *end).then_some((*start..*end, *known))
    }

    /// The spans that overlap the range, in order, whole.
    pub fn over(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, T)> {
        let first = if range.is_empty() { None } else { self.at(range.start) };
        let from = first.as_ref().map_or(range.start, |(span, _)| span.end);
        let rest = self.map.range(from.min(range.end)..range.end);
        first.into_iter().chain(rest.map(|(start, (end, known))| (*start..*end, *known)))
    }

    /// The parts of the range that no span covers.
    pub fn holes(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let covered = self.over(range.clone()).map(|(span, _)| (span.start, span.end - span.start));
        holes(range, covered).map(|(start, bytes)| start..start + bytes).collect()
    }

    /// In order of address.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Range<u64>, T)> {
        self.map.iter().map(|(start, (end, known))| (*start..*end, *known))
    }

    pub fn clear(&mut self) {
        self.map.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against an array of bytes.
        #[test]
        fn spans_are_what_was_put_last(
            steps in proptest::collection::vec((0..40u64, 0..12u64, any::<bool>(), any::<u8>()), 1..40)
        ) {
            let mut spans = Spans::default();
            let mut bytes = [None; 64];
            for (start, length, put, known) in steps {
                let range = start..start + length;
                let covered: Vec<u64> = range.clone().filter(|at| bytes[*at as usize].is_some()).collect();
                let holes: Vec<u64> = spans.holes(range.clone()).into_iter().flatten().collect();
                let free: Vec<u64> = range.clone().filter(|at| !covered.contains(at)).collect();
                prop_assert_eq!(holes, free);
                if put {
                    spans.put(range.clone(), known);
                } else {
                    let cut: Vec<(u64, u8)> = spans
                        .cut(range.clone())
                        .into_iter()
                        .flat_map(|(span, known)| span.map(move |at| (at, known)))
                        .collect();
                    let expected: Vec<(u64, u8)> =
                        covered.iter().map(|at| (*at, bytes[*at as usize].unwrap())).collect();
                    prop_assert_eq!(cut, expected);
                }
                range.for_each(|at| bytes[at as usize] = put.then_some(known));
                for at in 0..64 {
                    prop_assert_eq!(spans.at(at).map(|(_, known)| known), bytes[at as usize]);
                }
                prop_assert!(spans.iter().all(|(span, _)| !span.is_empty()));
            }
        }
    }
}
