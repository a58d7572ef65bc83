//! One device's sums of a framework's cache.

use serde::Serialize;
use vramtrace_format::{StackId, ThreadId};

use crate::facts;
use crate::replay::live::Live;

/// A highest value, and where it was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachePeak {
    pub bytes: u64,
    pub time_ns: u64,
    /// File offset of the event that reached it.
    pub offset: u64,
}

/// The framework's own totals, by its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedTotals {
    pub time_ns: u64,
    pub allocated: u64,
    pub reserved: u64,
}

/// The framework gave up on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct CacheOomAt {
    /// Since the start of the trace. In a trace without times it is only an order.
    #[serde(rename = "at_s", with = "facts::Seconds")]
    pub time_ns: u64,
    #[serde(skip)]
    pub offset: u64,
    #[serde(skip)]
    pub thread: ThreadId,
    /// Bytes of the block that it wanted.
    #[serde(rename = "size_bytes")]
    pub size: u64,
    /// Its own totals at that moment.
    #[serde(skip)]
    pub allocated: u64,
    #[serde(skip)]
    pub reserved: u64,
    #[serde(skip)]
    pub stack: StackId,
}

fn changed(sum: u64, by: i128) -> u64 {
    u64::try_from((i128::from(sum) + by).max(0)).unwrap_or(u64::MAX)
}

/// All zero where the device has no blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSums {
    /// Bytes of live blocks, with and without memory below them: as the framework counts.
    pub allocated: u64,
    /// Bytes of segments, likewise.
    pub reserved: u64,
    /// Bytes of `allocated`, and of `reserved`, that have no memory below them: it was unmapped.
    pub paused: u64,
    pub reserved_paused: u64,
    /// Bytes of `allocated` that lie in no known driver memory, so in no segment.
    pub outside: u64,
    /// Live blocks.
    pub blocks: u64,
    pub peak_allocated: CachePeak,
    pub peak_reserved: CachePeak,
    /// Of the moments with that reserve the one with most allocated; `bytes` are those.
    pub fullest: CachePeak,
    /// Blocks allocated and freed, as far as the file has the events.
    pub allocations: u64,
    pub frees: u64,
    pub reported_by_torch: Option<ReportedTotals>,
    /// Samples of the blocks are recorded: `allocated` is the framework's own figure, as of its last record, and `blocks`,
    /// `allocations` and `frees` are the recorder's counts.
    pub sampled: bool,
    /// How often the framework's own totals differed from these.
    pub disagreements: u64,
    /// Requests on which the framework gave up.
    pub ooms: u64,
    pub last_oom: Option<CacheOomAt>,
    /// A block was made after the last of them.
    pub went_on: bool,
}

impl CacheSums {
    /// Bytes of segments in no block.
    pub fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated.saturating_sub(self.outside))
    }

    /// Bytes of blocks with memory below them.
    pub fn resident(&self) -> u64 {
        self.allocated.saturating_sub(self.paused)
    }

    /// Bytes of segments with memory below them.
    pub fn reserved_resident(&self) -> u64 {
        self.reserved.saturating_sub(self.reserved_paused)
    }

    /// Of what is in no block, bytes with memory below them.
    pub fn free_resident(&self) -> u64 {
        let resident = self.resident().saturating_sub(self.outside);
        self.reserved_resident().saturating_sub(resident)
    }

    /// Was there ever a block here?
    pub fn is_used(&self) -> bool {
        self.peak_allocated.bytes > 0
            || self.blocks > 0
            || self.reported_by_torch.is_some()
            || self.ooms > 0
    }

    /// The part of what was reserved at most that no block ever needed: 1 - peak of allocated /
    /// peak of reserved, 0 to 1. `None` where nothing was reserved.
    pub fn fragmentation(&self) -> Option<f64> {
        let (allocated, reserved) = (self.peak_allocated.bytes, self.peak_reserved.bytes);
        (reserved > 0).then(|| (1.0 - allocated as f64 / reserved as f64).max(0.0))
    }

    /// The run's last word on this device was that the framework gave up.
    pub fn ended_in_oom(&self) -> bool {
        self.ooms > 0 && !self.went_on
    }

    pub(in crate::replay) fn add_block(&mut self, size: u64, number: u64, outside: bool) {
        if !self.sampled {
            self.allocated = self.allocated.saturating_add(size);
            self.blocks = self.blocks.saturating_add(number);
        }
        if outside {
            self.outside = self.outside.saturating_add(size);
        }
    }

    /// `outside`, `paused`: bytes of it that were in no segment, and that had no memory below them.
    pub(in crate::replay) fn remove_block(&mut self, live: &Live, outside: u64, paused: u64) {
        if !self.sampled {
            self.allocated = self.allocated.saturating_sub(live.weigh(live.size));
            self.blocks = self.blocks.saturating_sub(live.weigh(1));
        }
        self.paused = self.paused.saturating_sub(paused);
        self.outside = self.outside.saturating_sub(live.weigh(outside));
    }

    pub(in crate::replay) fn reserve(&mut self, bytes: i128) {
        self.reserved = changed(self.reserved, bytes);
    }

    pub(in crate::replay) fn pause_reserved(&mut self, bytes: i128) {
        self.reserved_paused = changed(self.reserved_paused, bytes);
    }

    pub(in crate::replay) fn note_peaks(&mut self, time_ns: u64, offset: u64) {
        if self.allocated > self.peak_allocated.bytes {
            self.peak_allocated = CachePeak { bytes: self.allocated, time_ns, offset };
        }
        if self.reserved > self.peak_reserved.bytes {
            self.peak_reserved = CachePeak { bytes: self.reserved, time_ns, offset };
            self.fullest = CachePeak { bytes: self.allocated, time_ns, offset };
        } else if self.reserved == self.peak_reserved.bytes && self.allocated > self.fullest.bytes {
            self.fullest = CachePeak { bytes: self.allocated, time_ns, offset };
        }
    }

    pub(in crate::replay) fn take_reported(&mut self, reported_by_torch: ReportedTotals) {
        if self.sampled {
            self.allocated = reported_by_torch.allocated;
        }
        // Where driver memory is not known, neither is what is reserved.
        let reserved_differs = self.outside == 0 && reported_by_torch.reserved != self.reserved;
        self.disagreements +=
            u64::from(reported_by_torch.allocated != self.allocated || reserved_differs);
        self.reported_by_torch = Some(reported_by_torch);
    }

    /// Forgets what is live; what happened stays.
    pub(in crate::replay) fn forget_live(&mut self) {
        self.allocated = 0;
        self.reserved = 0;
        self.paused = 0;
        self.reserved_paused = 0;
        self.outside = 0;
        self.blocks = 0;
    }
}
