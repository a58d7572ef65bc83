//! Removing allocations, before the driver frees them or with their context, and restoring what it did not free.

use super::entry::{self, EntrySlot};
use super::shard::Inner;
use super::totals::{Step, device_index};
use super::{Entry, Ledger, Sink, checkpoint_alloc};
use crate::model::sites::is_shared;
use vramtrace_format::physical::Physical;
use vramtrace_format::{ContextId, Event, Kind, SiteId, Space};

/// An entry that was removed for a free.
#[derive(Clone, Copy, Debug)]
pub struct Removed {
    pub entry: Entry,
    /// Physical device bytes that are no longer live (a slab page counts when its last allocation is
    /// removed). [`Ledger::left`] gives the bytes that the driver frees.
    pub bytes: u64,
    epoch: u32,
    written: u32,
    /// The latest checkpoint when it was removed.
    seen: u32,
}

/// The bytes that ended with a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextTotals {
    pub allocations: u64,
    /// Physical device bytes.
    pub bytes: u64,
    /// The managed part of them.
    pub managed: u64,
}

impl Removed {
    #[inline(always)]
    fn new(slot: &EntrySlot, seen: u32) -> Removed {
        let EntrySlot { epoch, written, .. } = *slot;
        Removed { entry: *slot.entry(), bytes: 0, epoch, written, seen }
    }

    /// Whether a checkpoint has this entry: then its end must be recorded even if its allocation was
    /// not.
    pub fn is_in_checkpoint(&self) -> bool {
        self.written != 0 && self.written == self.seen
    }
}

impl Ledger {
    /// Removes an allocation before the driver's call that frees it. The caller records the free, calls
    /// the driver, and calls [`Ledger::restore`] if the driver refused.
    #[inline]
    pub fn remove(&self, sink: &impl Sink, space: Space, key: u64) -> Option<Removed> {
        self.remove_if(sink, space, key, |_| true)
    }

    /// As [`Ledger::remove`], if `wanted` returns true.
    #[inline]
    pub fn remove_if(
        &self,
        sink: &impl Sink,
        space: Space,
        key: u64,
        wanted: impl FnOnce(&Entry) -> bool,
    ) -> Option<Removed> {
        self.remove_as::<false>(sink, space, key, wanted)
    }

    /// A framework's block. False: there is no such block.
    #[inline(always)]
    pub fn remove_block(&self, sink: &impl Sink, key: u64) -> bool {
        self.remove_as::<true>(sink, Space::Block, key, |_| true).is_some()
    }

    /// Prefetches the cache lines that the call for this block will need.
    #[inline]
    pub fn prefetch_block(&self, key: u64) {
        self.shard(Space::Block, key).prefetch(entry::hash(key));
    }

    /// `BLOCK`: as [`Ledger::insert_as`].
    #[inline(always)]
    pub(super) fn remove_as<const BLOCK: bool>(
        &self,
        sink: &impl Sink,
        space: Space,
        key: u64,
        wanted: impl FnOnce(&Entry) -> bool,
    ) -> Option<Removed> {
        debug_assert_eq!(space == Space::Block, BLOCK);
        let hash = entry::hash(key);
        let shard = &self.shards[Ledger::shard_at(space, hash)];
        let mut inner = shard.lock();
        let index = inner.entries.find_by(hash, move |slot| slot.entry().is(space, key))?;
        let Inner { entries, sites, .. } = &mut *inner;
        let slot = entries.at_mut(index)?;
        if !wanted(slot.entry()) {
            return None;
        }
        let device = slot.entry().device;
        let at = device_index(device);
        let (seen, running) = self.devices[at].checkpoints.now();
        if running != 0 {
            write_owed(sink, slot, running);
        }
        // Counted while the slot has it: the copy is made once, for the caller.
        let physical = self.count::<BLOCK>(shard, sites, slot.entry(), at, Step::Freed, seen);
        if let Physical::Reserved | Physical::None = physical {
            let removed = Removed::new(slot, seen);
            inner.take_at(index);
            return Some(removed);
        }
        let (kind, size) = (slot.entry().kind, slot.entry().size);
        let removed = Removed::new(slot, seen);
        inner.take_at(index);
        let bytes = match physical {
            Physical::Own(bytes) => {
                self.subtract(sink, device, kind, bytes);
                bytes
            }
            _ => {
                drop(inner);
                self.free_pages(sink, key, size)
            }
        };
        Some(Removed { bytes, ..removed })
    }

    /// Restores an entry after a failed free. Returns the physical bytes that the cap does not count: 0
    /// in general, since it still counts them.
    pub fn restore(&self, sink: &impl Sink, removed: &Removed) -> i64 {
        let entry = &removed.entry;
        let shard = self.shard(entry.space, entry.key);
        let mut inner = shard.lock();
        if inner.entries.find((entry.space, entry.key)).is_some() {
            // The address was allocated again meanwhile, so it was freed after all.
            drop(inner);
            return -(self.left(removed) as i64);
        }
        let at = device_index(entry.device);
        let (epoch, _) = self.devices[at].checkpoints.now();
        let mut written = removed.written;
        if epoch != removed.seen && written != epoch {
            // A checkpoint began meanwhile and lacks this entry.
            sink.emit(&checkpoint_alloc(epoch, entry));
            written = epoch;
        }
        // Without host memory its free will not be recognised, and its bytes stay counted.
        if inner.put(entry, removed.epoch, written).is_ok() {
            self.count_in::<false>(shard, inner, entry, at, Step::Unfreed, epoch);
        } else {
            drop(inner);
        }
        if matches!(entry.physical(), Physical::Shared(_)) {
            // It is live again, and no longer being freed.
            self.left(removed);
        }
        0
    }

    /// Removes everything that ends with a context: all of its allocations except VMM objects, pool
    /// blocks and graph memory. The caller records `ContextDestroyed`.
    pub fn remove_context(&self, sink: &impl Sink, context: ContextId) -> ContextTotals {
        let mut all = ContextTotals::default();
        if context == ContextId(0) {
            return all;
        }
        for shard in &self.shards {
            let mut from = 0;
            loop {
                let found = {
                    let inner = shard.lock();
                    let capacity = inner.entries.capacity();
                    (from..capacity).find_map(|index| {
                        let slot = inner.entries.at(index)?;
                        let entry = *slot.entry();
                        let outlives = entry.space == Space::Vmm
                            || matches!(entry.kind, Kind::Pool | Kind::Graph);
                        (entry.context == context && !outlives).then_some((index, entry))
                    })
                };
                let Some((index, entry)) = found else { break };
                // A removal moves later entries back, to this index at the lowest.
                from = index;
                let now_ns = sink.now_ns();
                let removed = self.remove_if(sink, entry.space, entry.key, |now| {
                    now.context == context && now.time_ns == entry.time_ns
                });
                match removed {
                    Some(removed) => {
                        // A reader ends by the context what it has by the site.
                        if is_shared(entry.site) {
                            let Entry { key, space, .. } = entry;
                            sink.emit_at(now_ns, &Event::Free { key, space, site: SiteId(0) });
                        }
                        let bytes = self.left(&removed);
                        all.allocations += 1;
                        all.bytes = all.bytes.saturating_add(bytes);
                        if entry.kind == Kind::Managed {
                            all.managed = all.managed.saturating_add(bytes);
                        }
                    }
                    None => from += 1,
                }
            }
        }
        all
    }
}

/// The running checkpoint gets an entry that it has to have, and does not yet.
#[cold]
#[inline(never)]
fn write_owed(sink: &impl Sink, slot: &mut EntrySlot, running: u32) {
    if slot.is_owed(running) {
        slot.written = running;
        sink.emit(&checkpoint_alloc(running, slot.entry()));
    }
}
