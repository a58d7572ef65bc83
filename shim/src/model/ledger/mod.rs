//! What is live: every allocation by (space, key), slab pages, sums per device, kind and site.
//!
//! The ledger changes first, the file follows:
//!
//! * Allocation: the driver's call returns, the entry is inserted, the event is appended.
//! * Free: the entry is removed, the event is appended, the driver is called. On success the bytes
//!   leave the cap's count; on failure the entry is restored and `FreeFailed` is appended.
//!
//! So the order of the file is the true order for each address, with no lock held across a driver
//! call: the driver gives an address out again only after the real free, and the program can free
//! it only after the allocating call has returned. Locks are short and per shard.

mod blocks;
mod checkpoint;
mod entry;
mod figures;
mod held;
mod pages;
mod peaks;
mod shard;
mod summary;
mod totals;
mod walk;

#[cfg(test)]
mod model_test;

pub use checkpoint::Cursor;
pub use entry::Entry;
pub use held::{Held, HeldCursor, Walked};
pub use totals::{DEVICES, KINDS, SiteTotals, Sums, add_saturating, device_at, device_index};

use crate::model::sites::is_shared;
use crate::runtime::hash_table::{CROWDED, NoMemory};
use crate::runtime::lock::{Guard, Lock};
use entry::EntrySlot;
use shard::{Inner, Shard, SiteTable};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use totals::{DeviceTotals, KindSum, Step};
use vramtrace_format::physical::{PAGE, Physical, pages, physical};
use vramtrace_format::summary::is_held;
use vramtrace_format::{ContextId, DeviceId, Drift, Event, Kind, RefusedBy, SiteId, Space};

const SHARDS: usize = 64;
/// Shards of a framework's blocks. A few suffice, since the framework's lock admits one call at a time
/// for each device; and each shard has its own sums for every stack, which checkpoints write.
const BLOCK_SHARDS: usize = 4;

/// Where the ledger's own events go (drift, entries of a running checkpoint): the trace writer.
/// Called with a shard's lock held; it must not come back into the ledger.
pub trait Sink {
    fn emit(&self, event: &Event);
}

pub struct Ledger {
    shards: [Shard; SHARDS],
    devices: [DeviceTotals; DEVICES],
    /// By device and shard, a bit for each kind that has a sum there. Most sums are empty, and each
    /// lies on a separate page.
    summed: [[AtomicU16; SHARDS]; DEVICES],
    /// Counts and records refusals, so that a checkpoint falls between two of them.
    refusals: Lock<()>,
    drifts: AtomicU64,
}

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

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    pub fn new() -> Ledger {
        CROWDED.store(true, Relaxed);
        Ledger {
            shards: std::array::from_fn(|_| Shard::default()),
            devices: std::array::from_fn(|_| DeviceTotals::default()),
            summed: [const { [const { AtomicU16::new(0) }; SHARDS] }; DEVICES],
            refusals: Lock::new(()),
            drifts: AtomicU64::new(0),
        }
    }

    /// The shard of an allocation with this hash. Neighbours are in different ones: threads that use a pool get
    /// blocks side by side.
    #[inline]
    fn shard_at(space: Space, hash: u64) -> usize {
        /// Calls for blocks know their space when they are compiled.
        #[cold]
        fn of_block(at: usize) -> usize {
            at % BLOCK_SHARDS
        }
        let at = (hash >> 58) as usize % SHARDS;
        if space == Space::Block { of_block(at) } else { at }
    }

    #[inline]
    fn shard(&self, space: Space, key: u64) -> &Shard {
        &self.shards[Ledger::shard_at(space, entry::hash(key))]
    }

    /// The kinds that were summed in this shard, and those sums.
    fn summed(&self, at: usize, device: DeviceId) -> impl Iterator<Item = (Kind, &KindSum)> {
        let bits = self.summed[device_index(device)][at].load(Relaxed);
        let known = Kind::ALL.into_iter().filter(move |kind| bits >> *kind as u16 & 1 == 1);
        known.filter_map(move |kind| Some((kind, self.shards[at].sum(device, kind as usize)?)))
    }

    fn totals(&self, device: DeviceId) -> &DeviceTotals {
        &self.devices[device_index(device)]
    }

    /// As [`Ledger::insert_or_not`]. Without host memory nothing is entered, but the bytes that the
    /// driver took are returned. They stay counted: the count is then too high, never too low.
    pub fn insert(&self, sink: &impl Sink, entry: &Entry) -> i64 {
        self.insert_or_not(sink, entry).unwrap_or_else(|NoMemory| most_taken(entry) as i64)
    }

    /// Enters a new allocation. Returns the bytes that the driver took for it (negative only if a
    /// larger one was still entered at the same key, which ends).
    pub fn insert_or_not(&self, sink: &impl Sink, entry: &Entry) -> Result<i64, NoMemory> {
        self.note_allocation(entry);
        let hash = entry.hash();
        let shard = &self.shards[Ledger::shard_at(entry.space, hash)];
        let mut inner = shard.lock();
        let (epoch, _) = self.totals(entry.device).checkpoints.now();
        let is_there = |slot: &EntrySlot| slot.entry().is(entry.space, entry.key);
        let Some(index) = inner.entries.vacancy(hash, is_there) else {
            drop(inner);
            return self.insert_crowded(sink, entry);
        };
        inner.entries.fill(index, EntrySlot::new(entry, epoch, 0));
        Ok(self.count_in(shard, inner, entry, Step::Allocated, epoch))
    }

    /// The same, where the address is still entered, or the table must grow.
    #[cold]
    #[inline(never)]
    fn insert_crowded(&self, sink: &impl Sink, entry: &Entry) -> Result<i64, NoMemory> {
        let (space, key) = (entry.space, entry.key);
        let shard = self.shard(space, key);
        let mut growth = 0;
        let mut inner = shard.lock();
        while inner.entries.find((space, key)).is_some() {
            drop(inner);
            if let Some(earlier) = self.remove(sink, space, key) {
                match space {
                    // The framework need not report every free.
                    Space::Block => sink.emit(&Event::Free { key, space, site: SiteId(0) }),
                    _ => self.drift(sink, Drift::StillLive, key),
                }
                growth -= self.left(&earlier) as i64;
            }
            inner = shard.lock();
        }
        let (epoch, _) = self.totals(entry.device).checkpoints.now();
        inner.put(entry, epoch, 0)?;
        Ok(growth + self.count_in(shard, inner, entry, Step::Allocated, epoch))
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

    /// Counts a change of an entry in the sums of its stack and its kind. `now`: the last checkpoint.
    #[inline(always)]
    fn count(
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
    fn count_in(
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
        let hash = entry::hash(key);
        let shard = &self.shards[Ledger::shard_at(space, hash)];
        let mut inner = shard.lock();
        let index = inner.entries.find_by(hash, |slot| slot.entry().is(space, key))?;
        let Inner { entries, sites, .. } = &mut *inner;
        let slot = entries.at_mut(index)?;
        if !wanted(slot.entry()) {
            return None;
        }
        let device = slot.entry().device;
        let totals = self.totals(device);
        let (seen, running) = totals.checkpoints.now();
        if running != 0 {
            write_owed(sink, slot, running);
        }
        // Counted while the slot has it: the copy is made once, for the caller.
        let physical = self.count(shard, sites, slot.entry(), device, Step::Freed, seen);
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
        let (epoch, _) = self.totals(entry.device).checkpoints.now();
        let mut written = removed.written;
        if epoch != removed.seen && written != epoch {
            // A checkpoint began meanwhile and lacks this entry.
            sink.emit(&checkpoint_alloc(epoch, entry));
            written = epoch;
        }
        // Without host memory its free will not be recognised, and its bytes stay counted.
        if inner.put(entry, removed.epoch, written).is_ok() {
            self.count_in(shard, inner, entry, Step::Unfreed, epoch);
        } else {
            drop(inner);
        }
        if matches!(entry.physical(), Physical::Shared(_)) {
            // It is live again, and no longer being freed.
            self.left(removed);
        }
        0
    }

    #[inline]
    pub fn get(&self, space: Space, key: u64) -> Option<Entry> {
        self.shard(space, key).lock().entries.get((space, key)).map(|slot| *slot.entry())
    }

    /// Adds (`by` = 1) or removes one open of an imported address. Returns the remaining references;
    /// `None`: there is no such entry. The last one is not removed here: that is a free.
    pub fn add_refs(&self, space: Space, key: u64, by: i32) -> Option<u32> {
        let mut inner = self.shard(space, key).lock();
        let slot = inner.entries.get_mut((space, key))?;
        let refs = slot.entry().refs.saturating_add_signed(by);
        slot.set_refs(refs);
        Some(refs)
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
                let removed = self.remove_if(sink, entry.space, entry.key, |now| {
                    now.context == context && now.time_ns == entry.time_ns
                });
                match removed {
                    Some(removed) => {
                        // A reader ends by the context what it has by the site.
                        if is_shared(entry.site) {
                            let Entry { key, space, .. } = entry;
                            sink.emit(&Event::Free { key, space, site: SiteId(0) });
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

    /// Reserved bytes of a pool or of a device's graph memory went up or down.
    pub fn add_reserved(
        &self,
        sink: &impl Sink,
        device: DeviceId,
        kind: Kind,
        delta: i64,
        now_ns: u64,
    ) {
        let totals = self.totals(device);
        totals.seen.store(1, Relaxed);
        if !totals.add(kind, delta, now_ns) {
            self.drift(sink, Drift::Underflow, delta.unsigned_abs());
        }
    }

    /// Counts a refusal. `record` writes its event under the same lock.
    pub fn refused(&self, device: DeviceId, by: RefusedBy, record: impl FnOnce()) {
        let _order = self.refusals.lock();
        let totals = self.totals(device);
        totals.seen.store(1, Relaxed);
        let counter = match by {
            RefusedBy::Driver => &totals.refused_by_driver,
            RefusedBy::Cap | RefusedBy::BadCap | RefusedBy::Group => &totals.refused_by_cap,
            RefusedBy::Warned => &totals.warned,
        };
        counter.fetch_add(1, Relaxed);
        record();
    }

    pub fn drift(&self, sink: &impl Sink, what: Drift, key: u64) {
        self.drifts.fetch_add(1, Relaxed);
        sink.emit(&Event::Drift { what, key });
    }

    /// The number of inconsistencies found so far.
    pub fn drifts(&self) -> u64 {
        self.drifts.load(Relaxed)
    }

    /// Starts checkpoint `id` (ids grow). `append` writes its `CheckpointBegin`.
    ///
    /// An entry that is inserted or removed between the append and the new epoch counts as inserted or
    /// removed before the checkpoint, although its event follows `CheckpointBegin`. The reader recognises
    /// such an `Alloc` by its key and time, and such a `Free` by its unknown key.
    pub fn begin_checkpoint(&self, id: u32, append: impl FnOnce()) {
        let _order = self.refusals.lock();
        append();
        self.devices.iter().for_each(|totals| totals.checkpoints.begin(id));
    }
}

/// Out of line: its table of jumps takes registers from those that need no look at it.
#[inline(never)]
fn physical_of(kind: Kind, size: u64) -> Physical {
    physical(kind, size)
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

/// The running checkpoint gets an entry that it has to have, and does not yet.
#[cold]
#[inline(never)]
fn write_owed(sink: &impl Sink, slot: &mut EntrySlot, running: u32) {
    if slot.is_owed(running) {
        slot.written = running;
        sink.emit(&checkpoint_alloc(running, slot.entry()));
    }
}

fn checkpoint_alloc(id: u32, entry: &Entry) -> Event {
    let (time_ns, alloc) = (entry.time_ns, entry.alloc());
    match entry.rate() {
        0 => Event::CheckpointAlloc { id, time_ns, alloc },
        rate => Event::CheckpointSampled { id, time_ns, rate, alloc },
    }
}

const _: () = assert!(KINDS > Kind::Block as usize);
