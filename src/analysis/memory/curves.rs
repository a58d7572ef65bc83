//! Allocated and reserved bytes of PyTorch's cache over time, in bounded memory, for charts in a terminal.

use vramtrace_format::{DeviceId, Stamped};

use crate::replay::{ByDevice, DeviceState, Observer};

/// With more bins, pairs of bins become one.
const MOST_BINS: usize = 1024;
/// The first width of a bin: 1,024 ns.
const SHIFT: u32 = 10;

/// The highest value of each bin of time. Memory is bounded for runs of any length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    bins: Vec<u64>,
    shift: u32,
    last: u64,
    /// The bin of the last change.
    bin: usize,
}

impl Curve {
    /// Adds a change of the value.
    #[inline]
    pub fn push(&mut self, time_ns: u64, value: u64) {
        // Most changes are in the bin of the one before.
        if (time_ns >> self.shift) as usize == self.bin
            && let Some(highest) = self.bins.get_mut(self.bin)
        {
            *highest = (*highest).max(value);
            self.last = value;
        } else {
            self.push_elsewhere(time_ns, value);
        }
    }

    #[cold]
    fn push_elsewhere(&mut self, time_ns: u64, value: u64) {
        self.shift = self.shift.max(SHIFT);
        while (time_ns >> self.shift) as usize >= MOST_BINS && self.shift < 63 {
            let pair = |pair: &[u64]| pair.iter().copied().max().unwrap_or(0);
            self.bins = self.bins.chunks(2).map(pair).collect();
            self.shift += 1;
        }
        let bin = ((time_ns >> self.shift) as usize).min(MOST_BINS - 1);
        // The previous value holds up to here. Times may decrease a little.
        while self.bins.len() <= bin {
            self.bins.push(self.last);
        }
        self.bins[bin] = self.bins[bin].max(value);
        (self.last, self.bin) = (value, bin);
    }

    /// The highest value in each of `columns` equal parts of `from_ns..to_ns`.
    pub fn columns(&self, from_ns: u64, to_ns: u64, columns: usize) -> Vec<u64> {
        let length = u128::from(to_ns.saturating_sub(from_ns).max(1));
        let bin = |column: usize| {
            let at = u128::from(from_ns) + length * column as u128 / columns.max(1) as u128;
            (at >> self.shift) as usize
        };
        let value = |column: usize| {
            let bins = bin(column)..bin(column + 1).max(bin(column) + 1);
            let value = |at: usize| self.bins.get(at).copied().unwrap_or(self.last);
            // All bins after the last one have the same value: one of them is enough.
            let end = bins.end.min(self.bins.len().max(bins.start) + 1);
            (bins.start..end).map(value).max().unwrap_or(0)
        };
        (0..columns).map(value).collect()
    }
}

/// The curves of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curves {
    pub allocated: Curve,
    pub reserved: Curve,
    /// Time of the first block, ns since the start of the trace.
    pub from_ns: u64,
}

/// Collects the curves of all devices during a replay.
#[derive(Clone, Debug, Default)]
pub struct CurvesObserver {
    pub devices: ByDevice<Curves>,
}

impl Observer for CurvesObserver {
    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let cache = &state.cache;
        if cache.allocated == 0 && cache.reserved == 0 && !self.devices.contains_key(&device) {
            return;
        }
        let fresh = || Curves { from_ns: at.time_ns, ..Curves::default() };
        let curves = self.devices.get_or_insert_with(device, fresh);
        let time_ns = at.time_ns.saturating_sub(curves.from_ns);
        curves.allocated.push(time_ns, cache.allocated);
        curves.reserved.push(time_ns, cache.reserved);
    }
}

impl Curves {
    /// The highest allocated and reserved bytes in each of `columns` equal parts of the time from the
    /// first block to `to_ns`.
    pub fn columns(&self, to_ns: u64, columns: usize) -> (Vec<u64>, Vec<u64>) {
        let to_ns = to_ns.saturating_sub(self.from_ns);
        (self.allocated.columns(0, to_ns, columns), self.reserved.columns(0, to_ns, columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_of_each_part() {
        let mut curve = Curve::default();
        let second = 1_000_000_000;
        for (at, value) in [(0, 5), (1, 9), (2, 3), (7, 4)] {
            curve.push(at * second, value);
        }
        assert_eq!(curve.columns(0, 8 * second, 8), [5, 9, 9, 3, 3, 3, 3, 4]);
        assert_eq!(curve.columns(0, 16 * second, 2), [9, 4]);
        assert_eq!(Curve::default().columns(0, 8, 2), [0, 0]);
    }

    #[test]
    fn a_long_run_takes_no_more_room_and_keeps_its_peak() {
        let mut curve = Curve::default();
        for n in 0..200_000u64 {
            curve.push(n * n * 1_000, if n == 77_777 { 1_000 } else { n % 100 });
        }
        assert!(curve.bins.len() <= MOST_BINS);
        assert_eq!(curve.columns(0, 40_000_000_000_000, 40).iter().max(), Some(&1_000));
        curve.push(u64::MAX, 1);
        curve.push(0, u64::MAX);
        let all = curve.columns(0, u64::MAX, 3);
        assert_eq!(all[0], u64::MAX);
    }
}
