//! The sums of one device: bytes by kind, shared pages, peak, counts, NVML's samples. Sizes are bytes.

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::physical::{PAGE, Physical, pages, physical};
use vramtrace_format::{Counters, Kind, Sample};

use super::cache::CacheSums;
use super::driver_own::{BytesByCause, DriverOwn, sum};
use super::in_use::{CacheInUse, InUse};
use super::live::{Key, Live};

/// Kinds are numbered from 1: slot 0 stays empty.
pub const KIND_SLOTS: usize = 13;
/// Bytes at index `Kind as usize`.
pub type BytesByKind = [u64; KIND_SLOTS];

/// The sums of one kind on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct KindSums {
    /// Physical bytes; for imports the requested size.
    pub live_bytes: u64,
    /// Highest `live_bytes` of this kind, at its own time.
    pub peak_bytes: u64,
    /// Requested bytes that are live.
    #[serde(rename = "requested_live_bytes")]
    pub requested_bytes: u64,
    pub live_allocations: u64,
    pub allocations: u64,
}

/// The most that a process held of a device, and the time when it was reached first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peak {
    /// [`DeviceState::held_bytes`].
    pub bytes: u64,
    /// The same when the allocations of the peak were made: what the driver took for itself may have grown a little since.
    pub at_offset_bytes: u64,
    pub time_ns: u64,
    /// File offset of the event that reached it, or of the block that the memory was for; `None` where
    /// it is known from the recorder's totals only.
    pub offset: Option<u64>,
    /// Time of the event at `offset`; of the peak where there is none.
    pub offset_ns: u64,
    /// The peak by kind; all zero where it is known from the recorder's totals only.
    pub by_kind: BytesByKind,
    /// The memory of the process at that moment. Where the peak is known from the recorder's totals only:
    /// with the contexts and the rest of the last sample.
    pub in_use: InUse,
}

/// NVML's and the driver's figures, with the ledger's at the same moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleAt {
    pub sample: Sample,
    pub time_ns: u64,
    pub live_bytes: u64,
    pub managed_bytes: u64,
    pub driver_own: BytesByCause,
}

impl SampleAt {
    /// The memory of the process at that moment, as NVML saw it.
    pub fn in_use(&self) -> InUse {
        InUse {
            live: self.live_bytes,
            managed: self.managed_bytes,
            contexts: self.sample.context_bytes,
            unattributed: self.unattributed(),
            driver_own: self.driver_own,
            cache: None,
        }
    }

    /// NVML's figure less allocations and contexts: kernels, heaps, memory that bypassed the recorder.
    /// Negative if NVML shows less than the recorded allocations. `None` without NVML.
    pub fn unattributed(&self) -> Option<i64> {
        // Damaged files may have any number here.
        let explained = i128::from(self.live_bytes) - i128::from(self.managed_bytes)
            + i128::from(self.sample.context_bytes);
        let rest = i128::from(self.sample.process_bytes?) - explained;
        Some(rest.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// The same, with what calls made the driver take and free since. NVML may have been read after a call and before its
    /// record: then the figure has it already.
    fn unattributed_with(&self, now: &BytesByCause) -> Option<i64> {
        let (rest, named) = (self.unattributed()?, sum(now));
        let since =
            rest.saturating_add_unsigned(named).saturating_sub_unsigned(sum(&self.driver_own));
        Some(since.min(rest.max(i64::try_from(named).unwrap_or(i64::MAX))))
    }
}

/// Bytes of the card that neither are free nor belong to this process: other processes, and the driver's own. `None`: the
/// sample lacks a figure.
pub fn held_by_others(sample: &Sample) -> Option<u64> {
    let used = sample.driver_total?.checked_sub(sample.driver_free?)?;
    used.checked_sub(sample.process_bytes?)
}

#[derive(Clone, Copy, Debug)]
struct Page {
    /// Live allocations on it.
    count: u32,
    /// The kind of the first allocation on it: the page counts for this kind.
    kind: Kind,
}

#[inline]
pub(super) fn changed(sum: u64, by: u64, grows: bool) -> u64 {
    if grows { sum.saturating_add(by) } else { sum.saturating_sub(by) }
}

/// The sums of one device after an event.
#[derive(Clone, Debug, Default)]
pub struct DeviceState {
    /// Physical bytes of allocations: all kinds but imports.
    pub live_bytes: u64,
    /// The highest `live_bytes`, as the recorder counts them.
    pub live_peak_bytes: u64,
    pub peak: Peak,
    pub kinds: [KindSums; KIND_SLOTS],
    pub requested_bytes: u64,
    pub requested_peak_bytes: u64,
    /// Allocations of this process, without imports and host memory.
    pub live_allocations: u64,
    pub allocations: u64,
    /// By calls, and by the end of a context.
    pub frees: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    pub cap_bytes: Option<u64>,
    /// The cap only warns.
    pub cap_only_warns: bool,
    /// Requests that a cap that only warns would have refused.
    pub warned: u64,
    pub soft_limit: Option<u64>,
    /// Times that the count passed the soft limit.
    pub soft_crossings: u64,
    /// The cap on the sum of all processes of the group.
    pub group_cap_bytes: Option<u64>,
    pub graph_reserved: u64,
    pub graph_used: u64,
    /// Blocks of pools that are in use, by the driver's last answer.
    pub pool_used: u64,
    /// A pool grew to the peak, for an allocation that follows.
    pub(super) peak_is_of_pool: bool,
    /// Live contexts, and contexts ever created.
    pub contexts: u32,
    pub contexts_seen: u32,
    /// Bytes of the live contexts, measured when they were created.
    pub context_bytes: u64,
    /// Bytes that the driver is known to hold for itself, without contexts.
    pub driver_own: DriverOwn,
    pub sample: Option<SampleAt>,
    /// The sample with the highest process figure.
    pub peak_sample: Option<SampleAt>,
    /// The recorder's own totals, as last written.
    pub counters: Option<Counters>,
    /// Sums that would have gone below zero.
    pub underflows: u64,
    /// The sums of a framework's cache. No sum above includes them.
    pub cache: CacheSums,
    pages: FxHashMap<u64, Page>,
}

impl DeviceState {
    /// Bytes in live blocks; of driver memory where no blocks were recorded. What a pool of the driver only reserves is not
    /// allocated, as what a cache keeps free is not.
    pub fn allocated_bytes(&self) -> u64 {
        let pools = self.kind(Kind::Pool);
        match self.cache.is_used() {
            true => self.cache.allocated,
            false => self
                .live_bytes
                .saturating_sub(pools.live_bytes)
                .saturating_add(pools.requested_bytes),
        }
    }

    /// NVML's highest figure of the process, and its time.
    pub fn highest_reading(&self) -> Option<(u64, u64)> {
        let at = self.peak_sample?;
        Some((at.sample.process_bytes?, at.time_ns))
    }

    pub fn kind(&self, kind: Kind) -> &KindSums {
        &self.kinds[kind as usize]
    }

    /// Requests that got no memory.
    pub fn refused(&self) -> u64 {
        self.refused_by_cap.saturating_add(self.refused_by_driver)
    }

    /// Whether the device was used. A cap alone does not count, nor do handles of memory on another process's card, as NCCL
    /// opens them on all.
    pub fn was_used(&self) -> bool {
        self.contexts_seen > 0
            || self.allocations > 0
            || self.peak.bytes > 0
            || self.refused() > 0
            || self.cache.is_used()
            || self.sample.is_some_and(|at| at.sample.process_bytes > Some(0))
    }

    pub fn bytes_by_kind(&self) -> BytesByKind {
        self.kinds.map(|sums| sums.live_bytes)
    }

    /// The memory of the process now: the last sample plus the changes that were recorded since.
    pub fn in_use(&self) -> InUse {
        let (cache, own) = (&self.cache, &self.driver_own.by_cause);
        InUse {
            live: self.live_bytes,
            managed: self.kind(Kind::Managed).live_bytes,
            contexts: self.context_bytes,
            unattributed: self.sample.and_then(|at| at.unattributed_with(own)),
            driver_own: *own,
            cache: cache.is_used().then(|| CacheInUse {
                allocated: self.in_blocks(),
                reserved: cache
                    .reserved_resident()
                    .saturating_add(self.kind(Kind::Block).live_bytes),
            }),
        }
    }

    /// The memory of the process by NVML's last figure: now; where all contexts have ended, at that moment. `None`: the trace
    /// has no figure.
    pub fn measured(&self) -> Option<InUse> {
        let then = self.sample.map(|at| at.in_use());
        let now = (self.contexts > 0 || self.contexts_seen == 0).then(|| self.in_use());
        now.into_iter().chain(then).find(|of| of.in_nvidia_smi().is_some())
    }

    /// Bytes in blocks, as far as the sums of memory have them: not of blocks on memory that was not recorded, but for those
    /// of imports, which are memory themselves.
    pub fn in_blocks(&self) -> u64 {
        let inside = self.cache.resident().saturating_sub(self.cache.outside);
        inside.saturating_add(self.kind(Kind::Block).live_bytes)
    }

    /// Adds an allocation to the live sums, not to the counts of calls, or takes it away.
    pub(super) fn change_live(&mut self, key: Key, live: &Live, comes: bool) {
        let change = |sum: &mut u64, by: u64| *sum = changed(*sum, by, comes);
        let (number, size) = (live.weigh(1), live.weigh(live.size));
        if live.kind != Kind::Imported {
            change(&mut self.live_allocations, number);
            change(&mut self.requested_bytes, size);
            self.requested_peak_bytes = self.requested_peak_bytes.max(self.requested_bytes);
        }
        let sums = &mut self.kinds[live.kind as usize];
        change(&mut sums.live_allocations, number);
        change(&mut sums.requested_bytes, size);
        match physical(live.kind, live.size) {
            Physical::Own(bytes) => self.resize(live.kind, live.weigh(bytes), comes),
            // The addresses of the allocations that a sample represents are not known.
            Physical::Shared(_) if live.is_sample() => {
                self.resize(live.kind, live.share(), comes);
            }
            Physical::Shared(_) if comes => self.take_pages(key, live),
            Physical::Shared(_) => self.give_pages_back(key, live),
            Physical::Reserved => {}
            Physical::None => {
                change(&mut sums.live_bytes, size);
                sums.peak_bytes = sums.peak_bytes.max(sums.live_bytes);
            }
        }
    }

    fn take_pages(&mut self, key: Key, live: &Live) {
        let (first, last) = pages(key.number, live.size);
        let mut opened = 0;
        for page in first..=last {
            let page = self.pages.entry(page).or_insert(Page { count: 0, kind: live.kind });
            opened += u64::from(page.count == 0) * PAGE;
            page.count = page.count.saturating_add(1);
        }
        self.resize(live.kind, opened, true);
    }

    fn give_pages_back(&mut self, key: Key, live: &Live) {
        let (first, last) = pages(key.number, live.size);
        for number in first..=last {
            let Some(page) = self.pages.get_mut(&number) else {
                self.underflows += 1;
                continue;
            };
            page.count = page.count.saturating_sub(1);
            if page.count == 0 {
                let kind = page.kind;
                self.pages.remove(&number);
                self.resize(kind, PAGE, false);
            }
        }
    }

    /// A pool's or the graphs' reservation went from `before` to `after`.
    pub(super) fn reserve(&mut self, kind: Kind, before: u64, after: u64) {
        self.resize(kind, before.abs_diff(after), after >= before);
    }

    /// What the driver's pools reserve, and no allocation uses.
    pub fn free_in_pools(&self) -> u64 {
        let pools = self.kind(Kind::Pool);
        pools.live_bytes.saturating_sub(pools.requested_bytes)
    }

    /// Changes the bytes of a kind. A sum does not go below zero: each attempt is counted.
    fn resize(&mut self, kind: Kind, bytes: u64, grows: bool) {
        let sums = &mut self.kinds[kind as usize];
        if !grows && (sums.live_bytes < bytes || self.live_bytes < bytes) {
            self.underflows += 1;
        }
        sums.live_bytes = changed(sums.live_bytes, bytes, grows);
        sums.peak_bytes = sums.peak_bytes.max(sums.live_bytes);
        self.live_bytes = changed(self.live_bytes, bytes, grows);
    }

    /// What the process is known to hold: live allocations, contexts, and what calls made the driver take.
    pub fn held_bytes(&self) -> u64 {
        let own = sum(&self.driver_own.by_cause).saturating_add(self.context_bytes);
        self.live_bytes.saturating_add(own)
    }

    pub(super) fn note_peak(&mut self, time_ns: u64, offset: u64) {
        self.live_peak_bytes = self.live_peak_bytes.max(self.live_bytes);
        let (bytes, peak) = (self.held_bytes(), &self.peak);
        if bytes <= peak.bytes {
            return;
        }
        // The memory that modules take while all allocations stay is no other peak: at that moment a cache may have more free.
        let is_small = bytes - peak.at_offset_bytes <= peak.at_offset_bytes / 32;
        let in_use = self.in_use();
        self.peak = match peak.in_use.live == self.live_bytes && is_small {
            true => Peak { bytes, in_use: InUse { cache: peak.in_use.cache, ..in_use }, ..*peak },
            false => Peak {
                bytes,
                at_offset_bytes: bytes,
                time_ns,
                offset: Some(offset),
                offset_ns: time_ns,
                by_kind: self.bytes_by_kind(),
                in_use,
            },
        };
    }

    /// A segment got its first block. If the allocation of its memory reached the peak, the peak is
    /// moved to this event, at which the memory is known to be a segment.
    pub(super) fn move_peak(&mut self, time_ns: u64, offset: u64) {
        if self.held_bytes() == self.peak.bytes && self.peak.offset.is_some() {
            self.peak.offset = Some(offset);
            self.peak.offset_ns = time_ns;
            self.peak.in_use = self.in_use();
        }
    }

    /// The recorder's own peak, where events are missing.
    pub(super) fn note_recorded_peak(&mut self, counters: &Counters) {
        let (now, managed) = (self.in_use(), self.kind(Kind::Managed).peak_bytes);
        if counters.peak > self.live_peak_bytes {
            self.live_peak_bytes = counters.peak;
            let beside = self.held_bytes().saturating_sub(self.live_bytes);
            let bytes = counters.peak.saturating_add(beside);
            self.peak = Peak {
                bytes,
                at_offset_bytes: bytes,
                time_ns: counters.peak_time_ns,
                offset: None,
                offset_ns: counters.peak_time_ns,
                by_kind: [0; KIND_SLOTS],
                // How much of it was managed or in a cache is not known.
                in_use: InUse {
                    live: counters.peak,
                    cache: None,
                    unattributed: now.unattributed.filter(|_| managed == 0),
                    managed: 0,
                    ..now
                },
            };
        }
    }

    pub(super) fn note_sample(&mut self, sample: Sample, time_ns: u64) {
        self.context_bytes = sample.context_bytes;
        let at = SampleAt {
            sample,
            time_ns,
            live_bytes: self.live_bytes,
            managed_bytes: self.kind(Kind::Managed).live_bytes,
            driver_own: self.driver_own.by_cause,
        };
        // A sample without NVML's figure must not hide the last one that had it.
        if sample.process_bytes.is_some()
            || self.sample.is_none_or(|last| last.sample.process_bytes.is_none())
        {
            self.sample = Some(at);
        }
        let peak = self.peak_sample.and_then(|peak| peak.sample.process_bytes);
        if sample.process_bytes.is_some() && sample.process_bytes > peak {
            self.peak_sample = Some(at);
        }
    }

    /// Clears what is live; history (peaks, counts, samples, the cap) stays.
    pub(super) fn forget_live(&mut self) {
        self.live_bytes = 0;
        self.requested_bytes = 0;
        self.live_allocations = 0;
        self.graph_reserved = 0;
        self.graph_used = 0;
        self.pool_used = 0;
        self.contexts = 0;
        self.pages.clear();
        self.cache.forget_live();
        self.driver_own.forget();
        for sums in &mut self.kinds {
            sums.live_bytes = 0;
            sums.requested_bytes = 0;
            sums.live_allocations = 0;
        }
    }
}
