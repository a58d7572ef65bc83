//! The memory pools of this process: maps the driver's handles to numbers, and holds the figures of each
//! pool.
//!
//! Handles are reused by the driver. A pool stays known after its destruction until its last block is
//! freed; then its number is given to another pool of the same device, kind and origin, for which a
//! trace's definition stays true. So only the number of pools at one time is bounded: a trace has 16 bits for a pool.

mod pool;

pub use pool::{GONE, Pool};

use crate::runtime::fallible_map::Map;
use crate::runtime::hash_table::{KeyedSlot, Table};
use crate::runtime::lock::Lock;
use crate::runtime::zero_pages::ZeroPages;
use pool::{DESTROYED, DESTROYING, LIVE, NAMED, UNUSED, group_of};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vramtrace_format::{DeviceId, Event, Kind, PoolOrigin};

/// How long a destruction waits for threads that read the pool's figures.
const READERS_WAIT: Duration = Duration::from_secs(10);

const CHUNK: usize = if cfg!(test) { 64 } else { 1024 };
const CHUNKS: usize = if cfg!(test) { 4 } else { 64 };
/// Pools at one time that are followed.
pub const MOST: usize = CHUNK * CHUNKS - 1;
const _: () = assert!(MOST <= u16::MAX as usize);

/// Zeros are pools that are not in use.
type Chunk = [Pool; CHUNK];

#[derive(Default)]
struct Known {
    /// By handle: the number of the pool.
    handles: Table<KeyedSlot>,
    /// The first unused pool of each group; 0: none.
    unused: Map<u32, u32>,
}

pub struct Pools {
    known: Lock<Known>,
    chunks: [ZeroPages<Chunk>; CHUNKS],
    /// Pools that were ever in use at one time.
    count: AtomicU32,
    /// A block was freed in some pool.
    freed: AtomicBool,
    /// Some pool is not followed.
    overflowed: AtomicBool,
}

impl Default for Pools {
    fn default() -> Self {
        Pools {
            known: Lock::new(Known::default()),
            chunks: [const { ZeroPages::NONE }; CHUNKS],
            count: AtomicU32::new(0),
            freed: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
        }
    }
}

/// A pool that a call named.
pub struct Seen<'a> {
    pub pool: &'a Pool,
    /// Its id must be defined in the trace.
    pub define: bool,
}

impl Pools {
    #[inline]
    pub fn by_number(&self, number: u32) -> Option<&Pool> {
        self.at((number as usize).checked_sub(1)?)
    }

    #[inline]
    fn at(&self, index: usize) -> Option<&Pool> {
        Some(&self.chunks[index / CHUNK].get()?[index % CHUNK])
    }

    pub fn find(&self, handle: u64) -> Option<&Pool> {
        let number = self.known.lock().handles.get(handle)?.value;
        self.by_number(number)
    }

    /// The pool of a handle that the driver returned. `None`: there are too many, or no pages.
    pub fn register(
        &self,
        handle: u64,
        device: DeviceId,
        kind: Kind,
        origin: PoolOrigin,
    ) -> Option<Seen<'_>> {
        self.add(handle, device, kind, origin, LIVE)
    }

    /// The pool of a handle that a request named. If it is a new one, the driver may know no such pool.
    pub fn named(&self, handle: u64, device: DeviceId) -> Option<Seen<'_>> {
        self.add(handle, device, Kind::Pool, PoolOrigin::Created, NAMED)
    }

    fn add(
        &self,
        handle: u64,
        device: DeviceId,
        kind: Kind,
        origin: PoolOrigin,
        state: u8,
    ) -> Option<Seen<'_>> {
        let mut known = self.known.lock();
        if let Some(slot) = known.handles.get(handle) {
            let pool = self.by_number(slot.value)?;
            let was_named = || pool.state.load(Ordering::Acquire) == NAMED;
            if state == NAMED || !was_named() {
                return Some(Seen { pool, define: false });
            }
            // What was named before this handle was given out: another pool, or one whose kind is known only now.
            known.handles.remove(handle);
            pool.state.store(DESTROYED, Ordering::Release);
        }
        let pool = self.unused(&mut known, device, kind, origin);
        let pool = pool.filter(|pool| {
            let slot = KeyedSlot { key: handle, value: pool.number() };
            known.handles.insert(slot).is_ok()
        });
        let Some(pool) = pool else {
            self.overflowed.store(true, Ordering::Relaxed);
            return None;
        };
        match known
            .unused
            .get_mut(&pool.group.load(Ordering::Relaxed))
            .filter(|first| **first == pool.number())
        {
            Some(first) => *first = pool.next_unused.load(Ordering::Relaxed),
            None => self.count.store(pool.number(), Ordering::Release),
        }
        pool.handle.store(handle, Ordering::Relaxed);
        pool.state.store(state, Ordering::Release);
        pool.active.store(origin != PoolOrigin::Created, Ordering::Relaxed);
        Some(Seen { pool, define: true })
    }

    /// A pool of the group that is not in use: one that was, or else the next that never was.
    fn unused(
        &self,
        known: &mut Known,
        device: DeviceId,
        kind: Kind,
        origin: PoolOrigin,
    ) -> Option<&Pool> {
        let group = group_of(device, kind, origin);
        let first = known.unused.get(&group);
        if let Some(unused) = first.and_then(|first| self.by_number(*first)) {
            return Some(unused);
        }
        let index = self.count.load(Ordering::Relaxed) as usize;
        if index >= MOST {
            return None;
        }
        let pool = &self.chunks[index / CHUNK].get_or_make()?[index % CHUNK];
        pool.group.store(group, Ordering::Relaxed);
        pool.number.store(index as u32 + 1, Ordering::Relaxed);
        Some(pool)
    }

    /// Whether every number is in use.
    pub fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) as usize >= MOST
    }

    /// Whether there are, or were, pools that are not followed.
    #[inline]
    pub fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Before the driver destroys it. Afterwards it may reuse the handle.
    pub fn begin_destroy(&self, handle: u64) -> Option<&Pool> {
        let number = self.known.lock().handles.remove(handle)?.value;
        let pool = self.by_number(number)?;
        pool.state.store(DESTROYING, Ordering::SeqCst);
        // The driver may not be asked for the figures of a pool while it destroys it. A reader waits for nothing but
        // the driver; the bound is for one that ended inside it.
        if pool.readers.any() {
            let until = Instant::now() + READERS_WAIT;
            while pool.readers.any() && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        Some(pool)
    }

    /// The driver served no request from a pool that is only named: it is not known any more. Returns whether it was
    /// one; then it is [destroyed](Pools::destroyed).
    pub fn forget_named(&self, pool: &Pool) -> bool {
        if pool.state.load(Ordering::Relaxed) != NAMED {
            return false;
        }
        let mut known = self.known.lock();
        let state = &pool.state;
        let was_named =
            state.compare_exchange(NAMED, DESTROYED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let handle = pool.handle.load(Ordering::Relaxed);
        if was_named && known.handles.get(handle).is_some_and(|slot| slot.value == pool.number()) {
            known.handles.remove(handle);
        }
        was_named
    }

    /// The driver refused to destroy it.
    pub fn put_back(&self, pool: &Pool) {
        let handle = pool.handle.load(Ordering::Relaxed);
        let mut known = self.known.lock();
        if known.handles.find(handle).is_none()
            && known.handles.insert(KeyedSlot { key: handle, value: pool.number() }).is_ok()
        {
            pool.state.store(LIVE, Ordering::Release);
        }
    }

    /// The driver has destroyed it.
    pub fn destroyed(&self, pool: &Pool) {
        pool.state.store(DESTROYED, Ordering::Release);
    }

    /// Ends a pool that [is over](Pool::is_over): `settle` removes its reserve, then its number is free.
    /// Only one of the threads that found it over does this.
    pub fn end(&self, pool: &Pool, settle: impl FnOnce()) {
        let state = &pool.state;
        if state
            .compare_exchange(DESTROYED, DESTROYING, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        // Its number may have been given to another pool meanwhile, and that one be destroyed.
        if !pool.growth.is_unused() {
            state.store(DESTROYED, Ordering::Release);
            return;
        }
        settle();
        let mut known = self.known.lock();
        // Without host memory the number is lost.
        if let Ok(first) = known.unused.get_or_insert(pool.group.load(Ordering::Relaxed), 0) {
            pool.next_unused.store(*first, Ordering::Relaxed);
            *first = pool.number();
        }
        state.store(UNUSED, Ordering::Release);
    }

    /// All pools that exist, and destroyed ones with blocks.
    pub fn all(&self) -> impl Iterator<Item = &Pool> {
        let count = self.count.load(Ordering::Acquire) as usize;
        let pools = (0..count).filter_map(|index| self.at(index));
        pools.filter(|pool| pool.state.load(Ordering::Relaxed) != UNUSED)
    }

    /// The pools that may hold memory.
    pub fn active(&self) -> impl Iterator<Item = &Pool> {
        self.all().filter(|pool| pool.active.load(Ordering::Relaxed))
    }

    /// Notes that a block of the pool was freed. Usually only a load, so that threads do not contend for
    /// cache lines.
    #[inline]
    pub fn freed_one(&self, pool: &Pool) {
        if !pool.freed.load(Ordering::Relaxed) {
            self.note_freed(pool);
        }
    }

    #[cold]
    fn note_freed(&self, pool: &Pool) {
        pool.freed.store(true, Ordering::Release);
        self.freed.store(true, Ordering::Release);
    }

    /// Whether a block of any pool was freed since [`Pools::take_freed`].
    #[inline]
    pub fn any_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed)
    }

    /// Those pools, each once. Another thread may note one again meanwhile.
    pub fn take_freed(&self) -> impl Iterator<Item = &Pool> {
        self.freed.swap(false, Ordering::AcqRel);
        self.all().filter(|pool| pool.freed.swap(false, Ordering::AcqRel))
    }

    /// Writes the figures of each pool. Later changes follow in the file as `PoolState`.
    pub fn checkpoint(&self, emit: &mut dyn FnMut(&Event)) {
        for pool in self.all() {
            let (reserved, used) = pool.growth.known();
            if reserved != 0 || used != 0 {
                emit(&Event::PoolState { pool: pool.id(), reserved, used });
            }
        }
    }
}

#[cfg(test)]
mod tests;
