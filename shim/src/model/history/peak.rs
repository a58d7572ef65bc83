//! The largest holders at the highest peak of each device so far, as the ledger has them.

use super::best::Best;
use super::bins::{Key, LEVELS};
use crate::runtime::fallible::TryPush;
use vramtrace_format::summary::HOLDERS;
use vramtrace_format::{DeviceId, SummaryHolder, SummaryMoment};

struct OfDevice {
    device: DeviceId,
    /// The number of its peak when the sample began.
    number: u32,
    levels: [Best<(Key, [u64; 2])>; LEVELS],
}

#[derive(Default)]
pub(super) struct PeakHolders {
    /// In this sample.
    now: Vec<OfDevice>,
    /// There was no new peak while they were read.
    is_one_peak: bool,
    pub(super) found: Vec<SummaryHolder>,
}

impl PeakHolders {
    pub(super) fn begin(&mut self) {
        self.now.clear();
        self.is_one_peak = false;
    }

    pub(super) fn begin_device(&mut self, device: DeviceId, number: u32) {
        // Without host memory its peak has no holders.
        let _ = self.now.try_push(OfDevice { device, number, levels: Default::default() });
    }

    /// All sums have been read.
    pub(super) fn walked(&mut self, number: impl Fn(DeviceId) -> u32) {
        self.is_one_peak = self.now.iter().all(|of| number(of.device) == of.number);
    }

    /// Bytes and allocations of a stack at the peak.
    pub(super) fn offer(&mut self, key: Key, sums: [u64; 2]) {
        if self.is_one_peak
            && let Some(of) = self.now.iter_mut().find(|of| of.device == key.device())
        {
            of.levels[key.level()].offer(sums[0], (key, sums), HOLDERS);
        }
    }

    /// The sample is complete.
    pub(super) fn end(&mut self) {
        if !self.is_one_peak {
            return;
        }
        self.found.clear();
        for (key, [bytes, count]) in self.now.iter().flat_map(|of| &of.levels).flat_map(Best::iter)
        {
            let _ = self.found.try_push(SummaryHolder {
                device: key.device(),
                moment: SummaryMoment::Peak,
                of_framework: key.level() == 1,
                stack: key.stack(),
                bytes: *bytes,
                count: *count,
            });
        }
    }
}
