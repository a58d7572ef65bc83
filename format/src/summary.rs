//! The summary at the end of a trace, by rules by which it has the figures of a replay.
//!
//! For each stack, the live bytes now and at the device's highest peak are stored. While memory use grows, every
//! allocation is a new peak, so the figures of all stacks cannot be copied at each peak. Each peak has a number, the
//! *epoch*. A stack's figures are copied at their first change in a new epoch ([`AtPeak`]).
//!
//! A framework allocates a segment to serve a block right after. The first block on a device after its peak is
//! therefore counted as part of that peak.

use crate::kind::Kind;
use crate::record::values::{StateHolder, SummaryMoment};

/// Greatest number of holders that a summary stores for each device, moment and level (framework or driver).
pub const HOLDERS: usize = 64;

/// Whether memory of this kind is attributed to a holder: imported memory and host memory are not.
#[inline]
pub fn is_held(kind: Kind) -> bool {
    !kind.is_host() && kind != Kind::Imported
}

/// One change of the bytes that a stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Bytes that were allocated or freed.
    pub bytes: u64,
    /// Number of allocations: 1, or more where samples stand for others.
    pub number: u64,
    /// True: an allocation. False: a free.
    pub came: bool,
    /// The number of the device's highest peak so far.
    pub epoch: u32,
    /// It is the block for which the framework allocated the memory that made the peak.
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
    /// Applies an allocation or a free. Sums saturate.
    #[inline]
    pub fn apply(&mut self, change: Change) {
        if self.epoch != change.epoch {
            self.keep(change.epoch);
        }
        let step = [change.bytes, change.number];
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

    #[cold]
    #[inline(never)]
    fn keep(&mut self, epoch: u32) {
        (self.peak, self.epoch) = (self.now, epoch);
    }

    /// Frees everything that the stack holds, in this epoch.
    pub fn forget(&mut self, epoch: u32) {
        if self.epoch != epoch {
            self.keep(epoch);
        }
        self.now = [0; 2];
    }

    /// Live bytes and allocations at this moment. `epoch`: the device's current one.
    pub fn at(&self, moment: SummaryMoment, epoch: u32) -> [u64; 2] {
        match moment {
            SummaryMoment::Peak if self.epoch == epoch => self.peak,
            SummaryMoment::Peak | SummaryMoment::End => self.now,
        }
    }
}

/// Keeps the [`HOLDERS`] largest holders with more than 0 bytes, largest first; equal ones by cause and stack id.
/// `holders`: of one device, moment and level.
pub fn keep_largest(holders: &mut Vec<StateHolder>) {
    largest_first(holders);
    holders.truncate(HOLDERS);
}

/// Keeps the holders with more than 0 bytes, in the order of [`keep_largest`].
pub fn largest_first(holders: &mut Vec<StateHolder>) {
    holders.retain(|holder| holder.bytes > 0);
    holders.sort_unstable_by_key(|holder| {
        (std::cmp::Reverse(holder.bytes), holder.cause, holder.stack.0)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DeviceId, StackId};

    fn change(bytes: u64, came: bool, epoch: u32) -> Change {
        Change { bytes, number: 1, came, epoch, joins_peak: false }
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
        let holder = |stack: u32, bytes| StateHolder {
            device: DeviceId(0),
            moment: SummaryMoment::End,
            of_framework: false,
            cause: None,
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
