//! The summary at a trace's end: the rules by which recorder and replay compute the same one.
//!
//! For each stack, the live bytes now and at the device's highest peak are kept. While memory grows, every allocation is
//! a new peak, so figures are not copied at a peak. Each peak has a number, the *epoch*,
//! and a stack's figures are copied at their first change in a new epoch ([`AtPeak`]).
//!
//! A framework takes memory for a block that it hands out right after: the first block on a device
//! after its peak counts as part of that peak.

use crate::kind::Kind;
use crate::record::values::{SummaryHolder, SummaryMoment};

/// Holders of each device, moment and level that a summary keeps, largest first.
pub const HOLDERS: usize = 64;

/// Whether memory of this kind has a holder: another process's and the host's have none.
#[inline]
pub fn is_held(kind: Kind) -> bool {
    !kind.is_host() && kind != Kind::Imported
}

/// One change of the bytes that a stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub bytes: u64,
    /// An allocation; else a free.
    pub came: bool,
    /// The device's peak so far.
    pub epoch: u32,
    /// It is the block for which the memory of the peak was taken.
    pub joins_peak: bool,
}

/// Live bytes and allocations of one stack, now and at the device's highest peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AtPeak {
    now: [u64; 2],
    epoch: u32,
    peak: [u64; 2],
}

impl AtPeak {
    #[inline]
    pub fn apply(&mut self, change: Change) {
        if self.epoch != change.epoch {
            (self.peak, self.epoch) = (self.now, change.epoch);
        }
        let step = [change.bytes, 1];
        let add = |sums: &mut [u64; 2]| {
            for (sum, by) in sums.iter_mut().zip(step) {
                *sum = if change.came { sum.saturating_add(by) } else { sum.saturating_sub(by) };
            }
        };
        add(&mut self.now);
        if change.joins_peak {
            add(&mut self.peak);
        }
    }

    /// Everything ends at once, in this epoch.
    pub fn forget(&mut self, epoch: u32) {
        if self.epoch != epoch {
            (self.peak, self.epoch) = (self.now, epoch);
        }
        self.now = [0; 2];
    }

    /// Bytes and allocations at this moment; `epoch` is the device's last.
    pub fn at(&self, moment: SummaryMoment, epoch: u32) -> [u64; 2] {
        match moment {
            SummaryMoment::Peak if self.epoch == epoch => self.peak,
            SummaryMoment::Peak | SummaryMoment::End => self.now,
        }
    }
}

/// Leaves the largest of one device, moment and level; of equal ones the first stacks.
pub fn keep_largest(holders: &mut Vec<SummaryHolder>) {
    holders.retain(|holder| holder.bytes > 0);
    holders.sort_unstable_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.stack.0));
    holders.truncate(HOLDERS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DeviceId, StackId};

    fn change(bytes: u64, came: bool, epoch: u32) -> Change {
        Change { bytes, came, epoch, joins_peak: false }
    }

    #[test]
    fn figures_are_those_of_the_last_peak() {
        let mut stack = AtPeak::default();
        stack.apply(change(10, true, 0));
        assert_eq!(stack.at(SummaryMoment::Peak, 1), [10, 1], "not changed since peak 1");
        stack.apply(change(10, false, 1));
        assert_eq!(stack.at(SummaryMoment::Peak, 1), [10, 1]);
        assert_eq!(stack.at(SummaryMoment::End, 1), [0, 0]);
        stack.apply(change(7, true, 1));
        assert_eq!(stack.at(SummaryMoment::Peak, 1), [10, 1]);
        assert_eq!(stack.at(SummaryMoment::Peak, 2), [7, 1]);
        stack.apply(Change { joins_peak: true, ..change(5, true, 2) });
        stack.apply(change(1, true, 2));
        assert_eq!(stack.at(SummaryMoment::Peak, 2), [12, 2]);
        stack.forget(3);
        assert_eq!(stack.at(SummaryMoment::Peak, 3), [13, 3]);
        assert_eq!(stack.at(SummaryMoment::End, 3), [0, 0]);
        stack.apply(change(99, false, 3));
        assert_eq!(stack.at(SummaryMoment::End, 3), [0, 0], "never below zero");
    }

    #[test]
    fn the_largest_stay_in_order() {
        let holder = |stack: u32, bytes| SummaryHolder {
            device: DeviceId(0),
            moment: SummaryMoment::End,
            of_framework: false,
            stack: StackId(stack),
            bytes,
            count: 1,
        };
        let mut all: Vec<_> = (0..100).map(|n| holder(n, u64::from(n / 2))).collect();
        keep_largest(&mut all);
        assert_eq!(all.len(), HOLDERS);
        assert_eq!((all[0], all[1]), (holder(98, 49), holder(99, 49)));
        assert!(all.iter().all(|holder| holder.bytes > 0));
    }
}
