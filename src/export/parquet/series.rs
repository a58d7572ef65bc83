//! Bytes over time, thinned: the lowest and the highest in each bin. The bins of all lines have the same width, a power
//! of two ns, which doubles whenever the time needs more bins than there may be. Memory is bounded by the number of lines.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// The width of the first bins: 1.05 ms.
const FIRST_SHIFT: u32 = 20;

/// A part of the time of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub from_ns: u64,
    pub until_ns: u64,
    pub lowest: u64,
    pub highest: u64,
}

/// A bin in which the line changed. Between two of them it has the last value of the earlier one.
#[derive(Clone, Copy, Debug)]
struct Bin {
    at: u64,
    lowest: u64,
    highest: u64,
    last: u64,
}

#[derive(Debug, Default)]
struct BinnedLine {
    now: u64,
    bins: Vec<Bin>,
}

/// Adds a bin behind the others, or to the last one where that has the same time.
fn add(bins: &mut Vec<Bin>, bin: Bin) {
    match bins.last_mut().filter(|last| last.at == bin.at) {
        Some(last) => {
            last.lowest = last.lowest.min(bin.lowest);
            last.highest = last.highest.max(bin.highest);
            last.last = bin.last;
        }
        None => bins.push(bin),
    }
}

impl BinnedLine {
    fn note(&mut self, at: u64, before: u64) {
        let (lowest, highest) = (before.min(self.now), before.max(self.now));
        add(&mut self.bins, Bin { at, lowest, highest, last: self.now });
    }

    /// Joins pairs of bins.
    fn coarsen(&mut self) {
        for bin in std::mem::take(&mut self.bins) {
            add(&mut self.bins, Bin { at: bin.at >> 1, ..bin });
        }
    }
}

/// The lines with the keys `K`.
#[derive(Debug)]
pub(super) struct BinnedSeries<K> {
    lines: FxHashMap<K, BinnedLine>,
    shift: u32,
    most: u64,
    /// Events are missing: values are noted when they are known again.
    lost: bool,
}

impl<K: Copy + Eq + Hash + Ord> BinnedSeries<K> {
    /// Of at most `most` bins.
    pub(super) fn new(most: u64) -> BinnedSeries<K> {
        BinnedSeries { lines: FxHashMap::default(), shift: FIRST_SHIFT, most, lost: false }
    }

    fn bin(&mut self, time_ns: u64) -> u64 {
        while time_ns >> self.shift >= self.most {
            self.shift += 1;
            self.lines.values_mut().for_each(BinnedLine::coarsen);
        }
        time_ns >> self.shift
    }

    /// The value of a line changes. Times never decrease.
    pub(super) fn change(&mut self, time_ns: u64, key: K, change: impl FnOnce(u64) -> u64) {
        let at = self.bin(time_ns);
        let line = self.lines.entry(key).or_default();
        let before = line.now;
        line.now = change(before);
        if !self.lost {
            line.note(at, before);
        }
    }

    /// Events are missing here: nothing is live that is known.
    pub(super) fn forget(&mut self) {
        self.lost = true;
        self.lines.values_mut().for_each(|line| line.now = 0);
    }

    /// What is live is known again.
    pub(super) fn resume(&mut self, time_ns: u64) {
        self.lost = false;
        let at = self.bin(time_ns);
        for line in self.lines.values_mut() {
            if line.bins.last().map_or(0, |bin| bin.last) != line.now {
                line.note(at, line.now);
            }
        }
    }

    /// All lines up to a time, by key; each from its first change on.
    pub(super) fn finish(self, end_ns: u64) -> Vec<(K, Vec<Span>)> {
        let shift = self.shift;
        let spans = |bins: Vec<Bin>| {
            let mut spans = Vec::new();
            let mut push = |from: u64, until: u64, lowest: u64, highest: u64| {
                let (from_ns, until_ns) = (from << shift, (until << shift).min(end_ns));
                if until_ns > from_ns || from_ns == end_ns {
                    spans.push(Span { from_ns, until_ns, lowest, highest });
                }
            };
            let behind = (end_ns >> shift) + 1;
            for (index, bin) in bins.iter().enumerate() {
                push(bin.at, bin.at + 1, bin.lowest, bin.highest);
                let next = bins.get(index + 1).map_or(behind, |next| next.at);
                if next > bin.at + 1 {
                    push(bin.at + 1, next, bin.last, bin.last);
                }
            }
            spans
        };
        let mut all: Vec<(K, Vec<Span>)> =
            self.lines.into_iter().map(|(key, line)| (key, spans(line.bins))).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BIN: u64 = 1 << FIRST_SHIFT;

    fn span(from_ns: u64, until_ns: u64, lowest: u64, highest: u64) -> Span {
        Span { from_ns, until_ns, lowest, highest }
    }

    #[test]
    fn a_bin_has_the_lowest_and_the_highest_and_between_bins_is_the_last() {
        let mut series = BinnedSeries::new(8);
        series.change(0, 'a', |_| 5);
        series.change(1, 'a', |bytes| bytes + 5);
        series.change(3 * BIN, 'a', |bytes| bytes - 7);
        let all = series.finish(5 * BIN);
        let expected = vec![
            span(0, BIN, 0, 10),
            span(BIN, 3 * BIN, 10, 10),
            span(3 * BIN, 4 * BIN, 3, 10),
            span(4 * BIN, 5 * BIN, 3, 3),
        ];
        assert_eq!(all, [('a', expected)]);
    }

    #[test]
    fn what_is_live_after_missing_events_is_no_low() {
        let mut series = BinnedSeries::new(8);
        series.change(0, 'a', |_| 5);
        series.forget();
        series.change(BIN, 'a', |bytes| bytes + 5);
        series.resume(BIN);
        assert_eq!(
            series.finish(3 * BIN),
            [('a', vec![span(0, BIN, 0, 5), span(BIN, 3 * BIN, 5, 5)])]
        );
    }

    proptest! {
        /// Every value lies within the span of its time, and there are no more bins than asked for.
        #[test]
        fn every_value_is_within_its_span(
            changes in prop::collection::vec((0u64..40 * BIN, 1u64..1000), 1..200),
        ) {
            let mut series = BinnedSeries::new(8);
            let (mut time_ns, mut values) = (0, Vec::new());
            for (after_ns, value) in changes {
                time_ns += after_ns;
                series.change(time_ns, (), |_| value);
                values.push((time_ns, value));
            }
            let all = series.finish(time_ns);
            let spans = &all[0].1;
            prop_assert!(spans.len() <= 16);
            for pair in spans.windows(2) {
                prop_assert_eq!(pair[0].until_ns, pair[1].from_ns);
            }
            for (at_ns, value) in values {
                let span = spans.iter().rfind(|span| span.from_ns <= at_ns).unwrap();
                prop_assert!(span.lowest <= value && value <= span.highest);
            }
        }
    }
}
