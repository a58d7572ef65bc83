//! Blocks of a framework's cache, of which programs make millions: the same as `insert` and `remove`
//! for an entry that is in no sum, in fewer steps.

use super::entry::EntrySlot;
use super::totals::Step;
use super::{Entry, Ledger, Sink};
use crate::model::ledger::entry;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use vramtrace_format::Space;

impl Ledger {
    /// As [`Ledger::insert`].
    #[inline]
    pub fn insert_block(&self, sink: &impl Sink, entry: &Entry) {
        debug_assert_eq!(entry.space, Space::Block);
        let shard = self.shard(Space::Block, entry.key);
        let mut inner = shard.lock();
        let hash = entry::hash(Space::Block, entry.key);
        if inner.entries.find_by(hash, |slot| slot.is_block(entry.key)).is_some() {
            drop(inner);
            self.insert(sink, entry);
            return;
        }
        self.awaited.note_allocation(entry);
        let epoch = self.epoch.load(Acquire);
        if inner.put(entry, epoch, 0) {
            let peak = self.totals(entry.device).epoch_for(entry.kind, true);
            inner.site_add(entry.maker(), Step::Allocated, entry.weighed(), epoch, peak);
        }
        shard.note_place(&inner);
    }

    /// As [`Ledger::remove`]. False: there is no such block.
    #[inline]
    pub fn remove_block(&self, sink: &impl Sink, key: u64) -> bool {
        let mut inner = self.shard(Space::Block, key).lock();
        let hash = entry::hash(Space::Block, key);
        let is_it = |slot: &EntrySlot| slot.is_block(key);
        let Some(index) = inner.entries.find_by(hash, is_it) else { return false };
        if self.running.load(Relaxed) != 0 {
            // A running checkpoint may have to write the entry first.
            drop(inner);
            return self.remove(sink, Space::Block, key).is_some();
        }
        let epoch = self.epoch.load(Relaxed);
        let Some(slot) = inner.entries.at(index) else { return false };
        let (made_by, weighed) = (slot.made_by(), slot.weighed());
        let peak = self.totals(made_by.device).epoch_for(made_by.kind, false);
        inner.site_add(made_by, Step::Freed, weighed, epoch, peak);
        inner.drop_at(index);
        true
    }

    /// Prefetches the cache lines that the call for this block will need.
    #[inline]
    pub fn prefetch_block(&self, key: u64) {
        self.shard(Space::Block, key).prefetch(entry::hash(Space::Block, key));
    }
}
