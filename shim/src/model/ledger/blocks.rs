//! Blocks of a framework's cache, of which programs make millions: the same as `insert` and `remove`
//! for an entry that is in no sum, in fewer steps.

use super::entry::{self, EntrySlot};
use super::shard::Inner;
use super::totals::Step;
use super::{Entry, Ledger, Sink};
use vramtrace_format::{Kind, Space};

impl Ledger {
    /// As [`Ledger::insert`].
    #[inline(always)]
    pub fn insert_block(&self, sink: &impl Sink, entry: Entry) {
        debug_assert_eq!(entry.space, Space::Block);
        let shard = self.shard(Space::Block, entry.key);
        let mut inner = shard.lock();
        let key = entry.key;
        // By value: an entry that nothing refers to is made where it is stored.
        let is_there = move |slot: &EntrySlot| slot.entry().is(Space::Block, key);
        let Some(index) = inner.entries.vacancy(entry::hash(key), is_there) else {
            drop(inner);
            return self.insert_crowded_block(sink, entry);
        };
        self.note_allocation(&entry);
        let totals = self.totals(entry.device);
        let (epoch, _) = totals.checkpoints.now();
        inner.entries.fill(index, EntrySlot::new(&entry, epoch, 0));
        let peak = totals.epoch_for(entry.kind, Step::Allocated);
        if let Some(site) = inner.sites.of(&entry, epoch) {
            let of = entry.weighed();
            site.add(Step::Allocated, of, Some(of[0]), epoch, peak);
        }
    }

    #[cold]
    #[inline(never)]
    fn insert_crowded_block(&self, sink: &impl Sink, entry: Entry) {
        self.insert(sink, &entry);
        let shard = self.shard(Space::Block, entry.key);
        shard.note_place(&shard.lock());
    }

    /// As [`Ledger::remove`]. False: there is no such block.
    #[inline(always)]
    pub fn remove_block(&self, sink: &impl Sink, key: u64) -> bool {
        let hash = entry::hash(key);
        let mut inner = self.shards[Ledger::shard_at(Space::Block, hash)].lock();
        let is_it = move |slot: &EntrySlot| slot.entry().is(Space::Block, key);
        let Some(index) = inner.entries.find_by(hash, is_it) else { return false };
        let Inner { entries, sites, .. } = &mut *inner;
        let Some(slot) = entries.at(index) else { return false };
        let entry = slot.entry();
        let totals = self.totals(entry.device);
        let (epoch, running) = totals.checkpoints.now();
        if running != 0 {
            // A running checkpoint may have to write the entry first.
            drop(inner);
            return self.remove_owed(sink, key);
        }
        let peak = totals.epoch_for(Kind::Block, Step::Freed);
        if let Some(site) = sites.of(entry, epoch) {
            let of = entry.weighed();
            site.add(Step::Freed, of, Some(of[0]), epoch, peak);
        }
        inner.take_at(index);
        true
    }

    #[cold]
    #[inline(never)]
    fn remove_owed(&self, sink: &impl Sink, key: u64) -> bool {
        self.remove(sink, Space::Block, key).is_some()
    }

    /// Prefetches the cache lines that the call for this block will need.
    #[inline]
    pub fn prefetch_block(&self, key: u64) {
        self.shard(Space::Block, key).prefetch(entry::hash(key));
    }
}
