//! The memory pools of this process: maps the driver's handles to ids, and holds the figures of each
//! pool.
//!
//! Handles are reused by the driver, ids are not. A pool stays known after its destruction: its
//! blocks may outlive it.

use crate::model::cap::{Growth, Reading};
use crate::runtime::hash_table::{KeyedSlot, Table, pages};
use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use vramtrace_format::{DeviceId, Event, Kind, PoolId};

#[repr(C)]
pub struct Pool {
    id: AtomicU32,
    handle: AtomicU64,
    device: AtomicU32,
    kind: AtomicU32,
    pub growth: Growth,
    /// Time of the last reading of the driver's figures.
    looked_ns: AtomicU64,
    destroyed: AtomicBool,
    /// A block was freed since the last synchronisation.
    freed: AtomicBool,
}

/// Least time between two readings of a pool that is not known to have grown.
const LOOK_EVERY_NS: u64 = 1_000_000;

impl Pool {
    #[inline]
    pub fn id(&self) -> PoolId {
        PoolId(self.id.load(Ordering::Relaxed) as u16)
    }

    #[inline]
    pub fn device(&self) -> DeviceId {
        DeviceId(self.device.load(Ordering::Relaxed) as u8)
    }

    /// `Pool`; for a pool of other memory the kind of its blocks, `Managed` or `HostPinned`.
    pub fn kind(&self) -> Kind {
        Kind::from_u8(self.kind.load(Ordering::Relaxed) as u8).unwrap_or(Kind::Pool)
    }

    /// The common case of `kind`.
    #[inline]
    pub fn is_device_memory(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == Kind::Pool as u32
    }

    /// The driver's handle, while the pool can be queried.
    pub fn handle(&self) -> Option<u64> {
        (!self.destroyed.load(Ordering::Acquire)).then(|| self.handle.load(Ordering::Relaxed))
    }

    /// True from time to time: the caller then reads the figures.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let last = self.looked_ns.load(Ordering::Relaxed);
        now_ns >= last.saturating_add(LOOK_EVERY_NS)
            && self
                .looked_ns
                .compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Notes a freed block. `Some`: it was the last one of a destroyed pool, which now holds nothing.
    #[inline]
    pub fn freed(&self, size: u64) -> Option<Reading> {
        self.growth.freed(size);
        // (If this load misses a concurrent destruction, that call checks the same after the driver's.)
        (self.destroyed.load(Ordering::Acquire) && self.growth.is_unused()).then_some(GONE)
    }
}

/// The figures of a destroyed pool without blocks.
pub const GONE: Reading = Reading { reserved: 0, used: 0 };

const CHUNK: usize = 64;
const CHUNKS: usize = 1024;
/// Ids are 16 bits wide and 0 is none.
const MOST: usize = CHUNK * CHUNKS - 1;

pub struct Pools {
    /// By handle: the index of the pool plus 1.
    handles: Lock<Table<KeyedSlot<u32>>>,
    /// Pages that are never unmapped, so that a pool's address stays valid.
    chunks: [AtomicPtr<Pool>; CHUNKS],
    count: AtomicU32,
    /// Some pool's `freed` is set.
    freed: AtomicBool,
}

impl Default for Pools {
    fn default() -> Self {
        Pools {
            handles: Lock::new(Table::new()),
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            count: AtomicU32::new(0),
            freed: AtomicBool::new(false),
        }
    }
}

impl Pools {
    /// The pool of an id.
    #[inline]
    pub fn by_id(&self, id: PoolId) -> Option<&Pool> {
        self.at((id.0 as usize).checked_sub(1)?)
    }

    fn at(&self, index: usize) -> Option<&Pool> {
        let chunk = self.chunks[index / CHUNK].load(Ordering::Acquire);
        // SAFETY: a chunk that is there holds CHUNK pools for ever; zero bytes are a valid Pool.
        (!chunk.is_null()).then(|| unsafe { &*chunk.add(index % CHUNK) })
    }

    pub fn find(&self, handle: u64) -> Option<&Pool> {
        let place = self.handles.lock().get(handle)?.value;
        self.at(place as usize - 1)
    }

    /// The pool of a handle. True: it is new, and the caller must write its definition. `None`: there
    /// are no more ids or pages.
    pub fn meet(&self, handle: u64, device: DeviceId, kind: Kind) -> Option<(&Pool, bool)> {
        let mut handles = self.handles.lock();
        if let Some(known) = handles.get(handle) {
            return self.at(known.value as usize - 1).map(|pool| (pool, false));
        }
        let index = self.count.load(Ordering::Relaxed) as usize;
        if index >= MOST {
            return None;
        }
        let chunk = &self.chunks[index / CHUNK];
        if chunk.load(Ordering::Acquire).is_null() {
            let fresh = pages(CHUNK * size_of::<Pool>()).ok()?;
            chunk.store(fresh.cast(), Ordering::Release);
        }
        let pool = self.at(index)?;
        pool.id.store(index as u32 + 1, Ordering::Relaxed);
        pool.handle.store(handle, Ordering::Relaxed);
        pool.device.store(device.0.into(), Ordering::Relaxed);
        pool.kind.store(kind as u32, Ordering::Relaxed);
        handles.insert(KeyedSlot { key: handle, value: index as u32 + 1 }).ok()?;
        self.count.store(index as u32 + 1, Ordering::Release);
        Some((pool, true))
    }

    /// Before the driver destroys it. Afterwards it may reuse the handle.
    pub fn begin_destroy(&self, handle: u64) -> Option<&Pool> {
        let place = self.handles.lock().remove(handle)?.value;
        let pool = self.at(place as usize - 1)?;
        pool.destroyed.store(true, Ordering::Release);
        Some(pool)
    }

    /// The driver refused to destroy it.
    pub fn put_back(&self, pool: &Pool) {
        let handle = pool.handle.load(Ordering::Relaxed);
        let place = pool.id.load(Ordering::Relaxed);
        let mut handles = self.handles.lock();
        if handles.find(handle).is_none()
            && handles.insert(KeyedSlot { key: handle, value: place }).is_ok()
        {
            pool.destroyed.store(false, Ordering::Release);
        }
    }

    /// Notes that a block of the pool was freed. Usually only loads, so that threads do not contend for
    /// cache lines.
    #[inline]
    pub fn freed_one(&self, pool: &Pool) {
        if !pool.freed.load(Ordering::Relaxed) {
            pool.freed.store(true, Ordering::Relaxed);
        }
        if !self.freed.load(Ordering::Relaxed) {
            self.freed.store(true, Ordering::Release);
        }
    }

    /// Whether a block of any pool was freed since [`Pools::take_freed`].
    #[inline]
    pub fn any_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed)
    }

    /// Those pools, each once.
    pub fn take_freed(&self) -> impl Iterator<Item = &Pool> {
        self.freed.store(false, Ordering::Relaxed);
        self.all().filter(|pool| pool.freed.swap(false, Ordering::Acquire))
    }

    /// Writes the figures of each pool. Later changes follow in the file as `PoolState`.
    pub fn checkpoint(&self, id: u32, emit: &mut dyn FnMut(&Event)) {
        for pool in self.all() {
            let (reserved, used) = pool.growth.known();
            if reserved != 0 || used != 0 {
                emit(&Event::CheckpointPool { id, pool: pool.id(), reserved, used });
            }
        }
    }

    /// All pools that were ever used.
    pub fn all(&self) -> impl Iterator<Item = &Pool> {
        let count = self.count.load(Ordering::Acquire) as usize;
        (0..count).filter_map(|index| self.at(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_handle_is_another_pool() {
        let pools = Pools::default();
        let (first, new) = pools.meet(0x10, DeviceId(2), Kind::Pool).unwrap();
        assert!(new && !pools.meet(0x10, DeviceId(2), Kind::Pool).unwrap().1);
        assert_eq!(
            (first.id(), first.device(), first.handle()),
            (PoolId(1), DeviceId(2), Some(0x10))
        );
        pools.begin_destroy(0x10).unwrap();
        assert!(pools.find(0x10).is_none() && first.handle().is_none());
        let (second, _) = pools.meet(0x10, DeviceId(0), Kind::HostPinned).unwrap();
        assert_eq!((second.id(), second.kind()), (PoolId(2), Kind::HostPinned));
        assert_eq!(pools.by_id(PoolId(1)).unwrap().device(), DeviceId(2));
        assert!(pools.by_id(PoolId(0)).is_none());
        assert_eq!(pools.all().count(), 2);
    }

    #[test]
    fn a_destroyed_pool_ends_with_its_last_block() {
        let pools = Pools::default();
        let (pool, _) = pools.meet(0x10, DeviceId(0), Kind::Pool).unwrap();
        pool.growth.took(100);
        pool.growth.took(600);
        assert_eq!(pool.freed(100), None);
        pools.begin_destroy(0x10);
        assert_eq!(pool.freed(600), Some(GONE));
    }

    #[test]
    fn freed_pools_are_looked_at_once() {
        let pools = Pools::default();
        pools.meet(0x10, DeviceId(0), Kind::Pool).unwrap();
        let (pool, _) = pools.meet(0x20, DeviceId(0), Kind::Pool).unwrap();
        assert!(!pools.any_freed());
        pools.freed_one(pool);
        assert!(pools.any_freed());
        assert_eq!(pools.take_freed().map(Pool::id).collect::<Vec<_>>(), [PoolId(2)]);
        assert!(!pools.any_freed() && pools.take_freed().next().is_none());
    }

    #[test]
    fn a_checkpoint_has_what_holds_something() {
        let pools = Pools::default();
        pools.meet(0x10, DeviceId(0), Kind::Pool).unwrap();
        let (pool, _) = pools.meet(0x20, DeviceId(0), Kind::Pool).unwrap();
        pool.growth.took(512);
        let mut events = Vec::new();
        pools.checkpoint(7, &mut |event| events.push(*event));
        let held = Event::CheckpointPool { id: 7, pool: PoolId(2), reserved: 0, used: 512 };
        assert_eq!(events, [held]);
    }

    #[test]
    fn a_failed_destroy_leaves_it_as_it_was() {
        let pools = Pools::default();
        pools.meet(0x10, DeviceId(0), Kind::Pool).unwrap();
        let pool = pools.begin_destroy(0x10).unwrap();
        pools.put_back(pool);
        assert_eq!(pools.find(0x10).unwrap().id(), PoolId(1));
        assert_eq!(pool.handle(), Some(0x10));
    }

    #[test]
    fn many_pools_get_many_ids_and_then_none() {
        let pools = Pools::default();
        for handle in 1..=MOST as u64 {
            let (pool, _) = pools.meet(handle, DeviceId(0), Kind::Pool).unwrap();
            assert_eq!(u64::from(pool.id().0), handle);
            pools.begin_destroy(handle);
        }
        assert!(pools.meet(1, DeviceId(0), Kind::Pool).is_none());
    }

    #[test]
    fn it_is_looked_at_once_in_a_while() {
        let pools = Pools::default();
        let (pool, _) = pools.meet(1, DeviceId(0), Kind::Pool).unwrap();
        assert!(pool.is_due(LOOK_EVERY_NS));
        assert!(!pool.is_due(LOOK_EVERY_NS + 5));
        assert!(pool.is_due(2 * LOOK_EVERY_NS));
    }
}
