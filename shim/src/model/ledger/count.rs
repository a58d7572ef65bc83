//! Counting a change of an entry in the sums: of its stack, of its kind, of its device.

use super::shard::{Inner, Shard, SiteTable};
use super::totals::{KindSum, Step, device_index};
use super::{Entry, Ledger};
use crate::runtime::lock::Guard;
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::physical::{Physical, physical};
use vramtrace_format::summary::is_held;
use vramtrace_format::{DeviceId, Kind};

impl Ledger {
    /// Counts a change of an entry in the sums of its stack and its kind. `now`: the last checkpoint.
    #[inline(always)]
    pub(super) fn count(
        &self,
        shard: &Shard,
        sites: &mut SiteTable,
        entry: &Entry,
        device: DeviceId,
        step: Step,
        now: u32,
    ) -> Physical {
        let Entry { kind, size, .. } = *entry;
        match kind {
            // Decided first, and compiled by itself: the kind of most programs' allocations.
            Kind::Pool => {
                self.add_to_sums(shard, sites, entry, (device, Kind::Pool), Some(size), step, now);
                Physical::Reserved
            }
            Kind::Block => self.count_block(sites, entry, step, now),
            _ => {
                let physical = physical_of(kind, size);
                let held = is_held(kind).then_some(physical.share(size));
                self.add_to_sums(shard, sites, entry, (device, kind), held, step, now);
                physical
            }
        }
    }

    /// `held`: as [`SiteSlot::add`].
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn add_to_sums(
        &self,
        shard: &Shard,
        sites: &mut SiteTable,
        entry: &Entry,
        (device, kind): (DeviceId, Kind),
        held: Option<u64>,
        step: Step,
        now: u32,
    ) {
        let size = entry.size;
        if let Some(site) = sites.of(entry, now) {
            let peak = self.totals(device).epoch_for(kind, step);
            site.add(step, [size, 1], held, now, peak);
        }
        let sum = shard.sum(device, kind as usize);
        if step == Step::Allocated && sum.is_none_or(KindSum::is_empty) {
            self.first_of_kind(shard, device, kind);
        }
        match (sum, step) {
            (Some(sum), Step::Allocated) => sum.allocated(size, now),
            (Some(sum), Step::Freed) => sum.freed(size, now),
            (Some(sum), Step::Unfreed) => sum.unfreed(size, now),
            (None, _) => {}
        }
    }

    /// A block, which is in no sum but its stack's, and may be a sample.
    #[cold]
    #[inline(never)]
    fn count_block(&self, sites: &mut SiteTable, block: &Entry, step: Step, now: u32) -> Physical {
        if let Some(site) = sites.of(block, now) {
            let (of, peak) =
                (block.weighed(), self.totals(block.device).epoch_for(Kind::Block, step));
            site.add(step, of, Some(of[0]), now, peak);
        }
        Physical::None
    }

    #[cold]
    #[inline(never)]
    fn first_of_kind(&self, shard: &Shard, device: DeviceId, kind: Kind) {
        let at = self.shards.iter().position(|one| std::ptr::eq(one, shard)).unwrap_or(0);
        self.summed[device_index(device)][at].fetch_or(1 << kind as u16, Relaxed);
        if kind.is_physical() {
            self.totals(device).seen.store(1, Relaxed);
        }
    }

    /// Counts an entry that was put in its shard. Returns the physical bytes that the driver took.
    #[inline(always)]
    pub(super) fn count_in(
        &self,
        shard: &Shard,
        mut inner: Guard<'_, Inner>,
        entry: &Entry,
        step: Step,
        now: u32,
    ) -> i64 {
        let (counted, taken) =
            match self.count(shard, &mut inner.sites, entry, entry.device, step, now) {
                Physical::Reserved | Physical::None => return 0,
                Physical::Own(bytes) => (bytes, bytes),
                Physical::Shared(_) => {
                    drop(inner);
                    self.open_pages(entry)
                }
            };
        self.totals(entry.device).add(entry.kind, counted as i64, entry.time_ns);
        taken as i64
    }
}

/// Out of line: its table of jumps takes registers from those that need no look at it.
#[inline(never)]
fn physical_of(kind: Kind, size: u64) -> Physical {
    physical(kind, size)
}
