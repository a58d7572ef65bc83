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
//!
//! The time of an event is read before its entry is inserted, removed or restored. A thread may be
//! interrupted in between for as long as a checkpoint takes: what the checkpoint has or lacks is then
//! explained by an event that is older than the checkpoint's end.

mod checkpoint;
mod count;
mod entry;
mod figures;
mod insert;
mod pages;
mod peaks;
mod remove;
mod shard;
mod summary;
mod totals;
mod walk;

#[cfg(test)]
pub mod model_test;

pub use checkpoint::Cursor;
pub use entry::Entry;
pub use remove::{ContextTotals, Removed};
pub use summary::Held;
pub use totals::{DEVICES, KINDS, SiteTotals, Sums, device_at, device_index};

use crate::runtime::hash_table::CROWDED;
use crate::runtime::lock::Lock;
use shard::Shard;
use std::sync::atomic::Ordering::Relaxed;
use totals::DeviceTotals;
use vramtrace_format::{DeviceId, Drift, Event, Kind, Listed, RefusedBy, Space};

const SHARDS: usize = 64;
/// Shards of a framework's blocks. A few suffice, since the framework's lock admits one call at a time
/// for each device; and each shard has its own sums for every stack, which checkpoints write.
const BLOCK_SHARDS: usize = 4;

/// Where the ledger's own events go (drift, entries of a running checkpoint): the trace writer.
/// Called with a shard's lock held; it must not come back into the ledger.
pub trait Sink {
    fn emit(&self, event: &Event);

    /// The time for [`Sink::emit_at`], read before the ledger changes.
    fn now_ns(&self) -> u64 {
        0
    }

    fn emit_at(&self, _time_ns: u64, event: &Event) {
        self.emit(event);
    }
}

pub struct Ledger {
    shards: [Shard; SHARDS],
    devices: [DeviceTotals; DEVICES],
    /// Counts and records refusals, so that a checkpoint falls between two of them.
    refusals: Lock<()>,
}

impl Default for Ledger {
    fn default() -> Ledger {
        CROWDED.store(true, Relaxed);
        Ledger {
            shards: std::array::from_fn(|_| Shard::default()),
            devices: std::array::from_fn(|_| DeviceTotals::default()),
            refusals: Lock::new(()),
        }
    }
}

impl Ledger {
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

    fn totals(&self, device: DeviceId) -> &DeviceTotals {
        &self.devices[device_index(device)]
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
        sink.emit(&Event::Drift { what, key });
    }

    /// Starts checkpoint `id` (ids grow). `append` writes its begin.
    ///
    /// An entry that is inserted or removed between the append and the new epoch counts as inserted or
    /// removed before the checkpoint, although its event follows the begin. The reader recognises
    /// such an `Alloc` by its key and time, and such a `Free` by its unknown key.
    pub fn begin_checkpoint(&self, id: u32, append: impl FnOnce()) {
        let _order = self.refusals.lock();
        append();
        self.devices.iter().for_each(|totals| totals.checkpoints.begin(id));
    }
}

fn checkpoint_alloc(id: u32, entry: &Entry) -> Event {
    let event = match (entry.rate(), entry.alloc()) {
        (0, alloc) => Event::Alloc(alloc),
        (rate, alloc) => Event::SampledAlloc { rate, alloc },
    };
    Event::StateEvent(Listed::new(id as u8, entry.time_ns, &event))
}

const _: () = assert!(KINDS > Kind::Block as usize);
