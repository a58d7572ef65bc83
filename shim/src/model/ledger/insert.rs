//! Entering allocations.

use super::entry::{self, EntrySlot};
use super::totals::{Step, device_index};
use super::{Entry, Ledger, Sink};
use crate::runtime::hash_table::NoMemory;
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::physical::{PAGE, Physical, pages};
use vramtrace_format::{Drift, Event, SiteId, Space};

impl Ledger {
    /// As [`Ledger::insert_or_not`]. Without host memory nothing is entered, but the bytes that the
    /// driver took are returned. They stay counted: the count is then too high, never too low.
    pub fn insert(&self, sink: &impl Sink, entry: &Entry) -> i64 {
        self.insert_or_not(sink, entry).unwrap_or_else(|NoMemory| most_taken(entry) as i64)
    }

    /// Enters a new allocation. Returns the bytes that the driver took for it (negative only if a
    /// larger one was still entered at the same key, which ends).
    #[inline(never)]
    pub fn insert_or_not(&self, sink: &impl Sink, entry: &Entry) -> Result<i64, NoMemory> {
        self.insert_as::<false>(sink, entry)
    }

    /// A framework's block. Without host memory it is not entered.
    #[inline(always)]
    pub fn insert_block(&self, sink: &impl Sink, entry: Entry) {
        let _ = self.insert_as::<true>(sink, &entry);
    }

    /// `BLOCK`: whether it is a framework's block, of which programs make millions: compiled apart, where it is used.
    #[inline(always)]
    fn insert_as<const BLOCK: bool>(
        &self,
        sink: &impl Sink,
        entry: &Entry,
    ) -> Result<i64, NoMemory> {
        debug_assert_eq!(entry.space == Space::Block, BLOCK);
        let at = device_index(entry.device);
        if self.devices[at].awaits.load(Relaxed) {
            self.note_awaited(entry.device, entry.kind);
        }
        let hash = entry::hash(entry.key);
        let shard = &self.shards[Ledger::shard_at(entry.space, hash)];
        let mut inner = shard.lock();
        let (space, key) = (entry.space, entry.key);
        let is_there = move |slot: &EntrySlot| slot.entry().is(space, key);
        let Some(index) = inner.entries.vacancy(hash, is_there) else {
            drop(inner);
            return self.insert_crowded::<BLOCK>(sink, *entry);
        };
        let (epoch, _) = self.devices[at].checkpoints.now();
        inner.entries.fill(index, EntrySlot::new(entry, epoch, 0));
        Ok(self.count_in::<BLOCK>(shard, inner, entry, at, Step::Allocated, epoch))
    }

    /// The same, where the address is still entered, or the table must grow. `entry`: a copy, so that a block's, which nothing
    /// refers to, is made where it is stored.
    #[cold]
    #[inline(never)]
    fn insert_crowded<const BLOCK: bool>(
        &self,
        sink: &impl Sink,
        entry: Entry,
    ) -> Result<i64, NoMemory> {
        let (space, key) = (entry.space, entry.key);
        let shard = self.shard(space, key);
        let mut growth = 0;
        let mut inner = shard.lock();
        while inner.entries.find((space, key)).is_some() {
            drop(inner);
            if let Some(earlier) = self.remove_as::<BLOCK>(sink, space, key, |_| true) {
                match space {
                    // The framework need not report every free.
                    Space::Block => {
                        let freed = Event::Free { key, space, site: SiteId(0) };
                        sink.emit_at(entry.time_ns, &freed);
                    }
                    _ => self.drift(sink, Drift::StillLive, key),
                }
                growth -= self.left(&earlier) as i64;
            }
            inner = shard.lock();
        }
        let at = device_index(entry.device);
        let (epoch, _) = self.devices[at].checkpoints.now();
        inner.put(&entry, epoch, 0)?;
        shard.note_place(&inner);
        Ok(growth + self.count_in::<BLOCK>(shard, inner, &entry, at, Step::Allocated, epoch))
    }

    /// Makes room for one more allocation with any address. The tables keep further room for calls in
    /// progress.
    pub fn make_room(&self) -> Result<(), NoMemory> {
        self.shards.iter().try_for_each(|shard| {
            let mut inner = shard.lock();
            inner.make_room()?;
            shard.note_place(&inner);
            Ok(())
        })
    }
}

/// The most bytes that the driver can have taken for it.
fn most_taken(entry: &Entry) -> u64 {
    match entry.physical() {
        Physical::Own(bytes) => bytes,
        Physical::Shared(_) => {
            let (first, last) = pages(entry.key, entry.size);
            (last - first + 1) * PAGE
        }
        Physical::Reserved | Physical::None => 0,
    }
}
