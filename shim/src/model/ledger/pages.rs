//! Device memory that small allocations share in pages of 2 MiB, and the bytes that leave with an allocation.

use super::shard::Shard;
use super::{Entry, Ledger, Removed, SHARDS, Sink};
use crate::runtime::hash_table::spread;
use vramtrace_format::physical::{PAGE, Physical, pages};
use vramtrace_format::{DeviceId, Drift, Kind};

impl Ledger {
    /// The shard that counts what is live in a 2 MiB page of device addresses.
    pub(super) fn page_shard(&self, page: u64) -> &Shard {
        &self.shards[(spread(page) >> 58) as usize % SHARDS]
    }

    /// Adds a small allocation to its pages. Returns the bytes that became live, and those that the driver took. The caller
    /// holds no lock.
    pub(super) fn open_pages(&self, entry: &Entry) -> (u64, u64) {
        let (first, last) = pages(entry.key, entry.size);
        let (mut counted, mut taken) = (0, 0);
        for page in first..=last {
            let opened = self.page_shard(page).lock().open_page(page, entry.device, entry.kind);
            counted += if opened.counted { PAGE } else { 0 };
            taken += if opened.taken { PAGE } else { 0 };
        }
        (counted, taken)
    }

    /// Removes a small allocation from its pages. The caller holds no lock.
    pub(super) fn free_pages(&self, sink: &impl Sink, key: u64, size: u64) -> u64 {
        let (first, last) = pages(key, size);
        (first..=last)
            .map(|page| {
                let owner = self.page_shard(page).lock().close_page(page);
                let Some((device, kind)) = owner else { return 0 };
                self.subtract(sink, device, kind, PAGE);
                PAGE
            })
            .sum()
    }

    pub(super) fn subtract(&self, sink: &impl Sink, device: DeviceId, kind: Kind, bytes: u64) {
        if !self.totals(device).add(kind, -(bytes as i64), 0) {
            self.drift(sink, Drift::Underflow, bytes);
        }
    }

    /// After the driver's free: the physical bytes that the driver has freed. For a small allocation
    /// these are its page, if the page holds no other allocation that is live or being freed.
    #[inline(always)]
    pub fn left(&self, removed: &Removed) -> u64 {
        let entry = &removed.entry;
        match entry.physical() {
            Physical::Shared(_) => {
                let (first, last) = pages(entry.key, entry.size);
                (first..=last)
                    .filter(|page| self.page_shard(*page).lock().leave_page(*page))
                    .map(|_| PAGE)
                    .sum()
            }
            _ => removed.bytes,
        }
    }
}
