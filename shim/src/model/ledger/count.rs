//! Counting a change of an entry in the sums: of its stack, of its kind, of its device.

use super::shard::{Inner, Shard, SiteTable};
use super::totals::{KindSum, Step};
use super::{Entry, Ledger};
use crate::runtime::lock::Guard;
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::Kind;
use vramtrace_format::physical::{Physical, physical};
use vramtrace_format::summary::is_held;

impl Ledger {
    /// Counts a change of an entry in the sums of its stack and its kind. `BLOCK`: see [`Ledger::insert_as`]. `at`: the
    /// index of its device. `now`: the last checkpoint.
    #[inline(always)]
    pub(super) fn count<const BLOCK: bool>(
        &self,
        shard: &Shard,
        sites: &mut SiteTable,
        entry: &Entry,
        at: usize,
        step: Step,
        now: u32,
    ) -> Physical {
        let Entry { kind, size, .. } = *entry;
        match kind {
            // In no sum but its stack's.
            _ if BLOCK => {
                let [bytes, number] = entry.weighed();
                let of = (number, Some(bytes));
                self.add_to_site(sites, entry, (at, Kind::Block), of, step, now);
                Physical::None
            }
            // Compiled by itself: the kind of most programs' allocations.
            Kind::Pool => {
                self.add_to_site(sites, entry, (at, Kind::Pool), (1, Some(size)), step, now);
                self.add_to_kind(shard, (at, Kind::Pool), size, step, now);
                Physical::Reserved
            }
            _ => {
                let physical = physical_of(kind, size);
                let held = is_held(kind).then_some(physical.share(size));
                self.add_to_site(sites, entry, (at, kind), (1, held), step, now);
                self.add_to_kind(shard, (at, kind), size, step, now);
                physical
            }
        }
    }

    /// `number`, `held`: as [`super::totals::SiteSlot::add`].
    #[inline(always)]
    fn add_to_site(
        &self,
        sites: &mut SiteTable,
        entry: &Entry,
        (at, kind): (usize, Kind),
        (number, held): (u64, Option<u64>),
        step: Step,
        now: u32,
    ) {
        if let Some(site) = sites.of(entry, now) {
            let peak = self.devices[at].epoch_for(kind, step);
            site.add(step, number, held, now, peak);
        }
    }

    #[inline(always)]
    fn add_to_kind(
        &self,
        shard: &Shard,
        (at, kind): (usize, Kind),
        size: u64,
        step: Step,
        now: u32,
    ) {
        let sum = shard.sum(at, kind as usize);
        if step == Step::Allocated && sum.is_none_or(KindSum::is_empty) {
            self.first_of_kind(at, kind);
        }
        if let Some(sum) = sum {
            sum.add(step, size, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn first_of_kind(&self, at: usize, kind: Kind) {
        if kind.is_physical() {
            self.devices[at].seen.store(1, Relaxed);
        }
    }

    /// Counts an entry that was put in its shard. Returns the physical bytes that the driver took.
    #[inline(always)]
    pub(super) fn count_in<const BLOCK: bool>(
        &self,
        shard: &Shard,
        mut inner: Guard<'_, Inner>,
        entry: &Entry,
        at: usize,
        step: Step,
        now: u32,
    ) -> i64 {
        let (counted, taken) =
            match self.count::<BLOCK>(shard, &mut inner.sites, entry, at, step, now) {
                Physical::Reserved | Physical::None => return 0,
                Physical::Own(bytes) => (bytes, bytes),
                Physical::Shared(_) => {
                    drop(inner);
                    self.open_pages(entry)
                }
            };
        self.devices[at].add(entry.kind, counted as i64, entry.time_ns);
        taken as i64
    }
}

/// Out of line: its table of jumps takes registers from those that need no look at it.
#[inline(never)]
fn physical_of(kind: Kind, size: u64) -> Physical {
    physical(kind, size)
}
