//! The history of one figure in bounded room: its lowest and its last value in each of some 100
//! bins, over an axis whose end is not known beforehand. When it grows too long, two bins become
//! one.

/// Maximum number of bins of an axis; at least half of them are in use once it was that long.
pub(super) const BINS: u64 = 128;

#[derive(Clone, Copy, Debug, PartialEq)]
struct SeriesBin {
    number: u32,
    lowest: u64,
    last: u64,
}

/// Bins in which nothing changed take no room.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// A bin is `1 << shift` wide.
    shift: u32,
    /// The value before the first bin.
    before: u64,
    /// All bins but the last one, in which most changes are.
    bins: Vec<SeriesBin>,
    last: Option<SeriesBin>,
}

/// The width of bins, as a shift, at which an axis of this length fits.
pub(super) fn shift_for(length: u64, least: u32) -> u32 {
    let mut shift = least;
    while length.checked_shr(shift).unwrap_or(0) >= BINS {
        shift += 1;
    }
    shift
}

impl Series {
    /// Bins start as `1 << shift` wide. `value`: what it is from the axis's beginning on.
    pub fn new(shift: u32, value: u64) -> Series {
        Series { shift, before: value, bins: Vec::new(), last: None }
    }

    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// The value goes from `from` to `to`. A position before the last one counts as that.
    pub fn change(&mut self, position: u64, from: u64, to: u64) {
        self.coarsen(shift_for(position, self.shift));
        let number = (position >> self.shift) as u32;
        match &mut self.last {
            Some(bin) if bin.number >= number => {
                bin.lowest = bin.lowest.min(to);
                bin.last = to;
            }
            last => {
                self.bins.extend(last.replace(SeriesBin { number, lowest: from.min(to), last: to }))
            }
        }
    }

    /// This much more was there all along.
    pub fn lift(&mut self, by: u64) {
        self.before = self.before.saturating_add(by);
        for bin in self.bins.iter_mut().chain(&mut self.last) {
            bin.lowest = bin.lowest.saturating_add(by);
            bin.last = bin.last.saturating_add(by);
        }
    }

    /// This history, `by` later on its axis, behind earlier values: positions in ascending order, each with the value
    /// from there on. The value before the first of them is that one, or, without any, this history's first.
    pub(super) fn after(&self, earlier: &[(u64, u64)], by: u64) -> Series {
        let mut value = earlier.first().map_or(self.before, |(_, value)| *value);
        let mut all = Series::new(self.shift, value);
        let mut go = |position: u64, to: u64| {
            all.change(position, value, to);
            value = to;
        };
        earlier.iter().filter(|(position, _)| *position < by).for_each(|(at, to)| go(*at, *to));
        go(by, self.before);
        for bin in self.all() {
            let position = by.saturating_add(u64::from(bin.number) << self.shift);
            go(position, bin.lowest);
            go(position, bin.last);
        }
        all
    }

    fn coarsen(&mut self, shift: u32) {
        if shift <= self.shift {
            return;
        }
        let by = shift - self.shift;
        self.shift = shift;
        self.bins.extend(self.last.take());
        for bin in &mut self.bins {
            // All of the axis may be in one bin now.
            bin.number = bin.number.checked_shr(by).unwrap_or(0);
        }
        self.bins.dedup_by(|next, bin| {
            let same = next.number == bin.number;
            if same {
                bin.lowest = bin.lowest.min(next.lowest);
                bin.last = next.last;
            }
            same
        });
        self.last = self.bins.pop();
    }

    fn all(&self) -> impl Iterator<Item = &SeriesBin> {
        self.bins.iter().chain(&self.last)
    }

    /// The lowest value in each bin of an axis of this length, `1 << shift` wide: not finer than
    /// what was kept, by the last position of a change.
    pub fn lowest(&self, length: u64, shift: u32) -> Vec<u64> {
        debug_assert!(shift >= self.shift, "bins of {} cannot be split to {shift}", self.shift);
        let mut coarse = self.clone();
        coarse.coarsen(shift);
        let mut values = Vec::with_capacity((length >> shift) as usize + 1);
        let mut value = coarse.before;
        let mut bins = coarse.all().peekable();
        for number in 0..=(length >> shift).min(BINS) {
            match bins.next_if(|bin| u64::from(bin.number) == number) {
                Some(bin) => {
                    values.push(bin.lowest);
                    value = bin.last;
                }
                None => values.push(value),
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_values_by_bin() {
        let mut series = Series::new(0, 5);
        series.change(2, 5, 9);
        series.change(2, 9, 7);
        series.change(4, 7, 1);
        series.change(4, 1, 6);
        assert_eq!(series.lowest(6, 0), [5, 5, 5, 7, 1, 6, 6]);
        assert_eq!(series.lowest(6, 1), [5, 5, 1, 6]);
        // Time may run back a little.
        series.change(3, 6, 2);
        assert_eq!(series.lowest(6, 0), [5, 5, 5, 7, 1, 2, 2]);
        series.lift(10);
        assert_eq!(series.lowest(6, 0), [15, 15, 15, 17, 11, 12, 12]);
    }

    #[test]
    fn a_long_axis_stays_in_bounded_room() {
        let mut series = Series::new(0, 0);
        for step in 0..1_000_000 {
            // Up by ten, down by nine.
            series.change(step, step, step + 10);
            series.change(step, step + 10, step + 1);
        }
        assert!(series.all().count() as u64 <= BINS);
        let shift = shift_for(999_999, 0);
        let values = series.lowest(999_999, shift);
        assert!((BINS / 2..=BINS).contains(&(values.len() as u64)), "{}", values.len());
        for (bin, value) in values.iter().enumerate() {
            assert_eq!(*value, (bin as u64) << shift, "the lowest of a bin is where it begins");
        }
    }

    #[test]
    fn an_axis_of_any_length_from_one_change_to_the_next() {
        // Time in ns: from the first moment to 26 days, and to the last moment there is.
        for end in [1u64 << 51, u64::MAX] {
            let mut series = Series::new(0, 1);
            series.change(100, 1, 7);
            series.change(end, 7, 3);
            let shift = shift_for(end, 0);
            let values = series.lowest(end, shift);
            assert_eq!(values.len() as u64, (end >> shift) + 1);
            assert_eq!((values[0], values[1], values.last()), (1, 7, Some(&3)));
        }
    }

    #[test]
    fn a_history_goes_on_behind_earlier_values() {
        let mut series = Series::new(0, 8);
        series.change(2, 8, 9);
        let all = series.after(&[(0, 2), (3, 5), (20, 1)], 10);
        assert_eq!(all.lowest(13, 0), [2, 2, 2, 2, 5, 5, 5, 5, 5, 5, 5, 8, 8, 9]);
        let flat = series.after(&[], 4).lowest(7, 0);
        assert_eq!(flat, [8, 8, 8, 8, 8, 8, 8, 9], "not told apart before");
    }

    #[test]
    fn the_same_whether_it_was_coarsened_early_or_late() {
        let mut random = 7u64;
        let (mut fine, mut early) = (Series::new(0, 0), Series::new(0, 0));
        early.coarsen(5);
        let mut value = 50;
        for position in 0..100 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let to = random >> 57;
            for series in [&mut fine, &mut early] {
                series.change(position, value, to);
            }
            value = to;
        }
        assert_eq!(fine.lowest(99, 5), early.lowest(99, 5));
    }
}
