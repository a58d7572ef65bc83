//! The memory pools of this process: maps the driver's handles to numbers, and holds the figures of each
//! pool.
//!
//! Handles are reused by the driver. A pool stays known after its destruction until its last block is
//! freed; then its number is given to another pool of the same device, kind and origin, for which a
//! trace's definition stays true. So only the number of pools at one time is bounded.
//!
//! A trace has 16 bits for a pool. Pools beyond [`OWN_IDS`] at one time are capped each as the others, and
//! share an id for each device, under which the sum of their figures is recorded.

use crate::model::cap::{Growth, Reading};
use crate::model::pool_readers::{self, Readers};
use crate::runtime::fallible::TryPush;
use crate::runtime::fallible_map::Map;
use crate::runtime::hash_table::{KeyedSlot, Table, pages};
use crate::runtime::lock::Lock;
use crate::runtime::thread_numbers::{self, OWN};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vramtrace_format::{DeviceId, Event, Kind, PoolId, PoolOrigin};

/// Not in use; zero bytes are such a pool.
const UNUSED: u8 = 0;
const LIVE: u8 = 1;
/// The driver is destroying it, or refuses to.
const DESTROYING: u8 = 2;
/// Destroyed, with blocks that are not freed yet.
const DESTROYED: u8 = 3;
/// A request named it; no call that returned pools gave it, and the driver has served no request from it. It may be a
/// destroyed one, whose figures may not be asked for: the driver reads freed memory (measured with 580.159.04).
const NAMED: u8 = 4;

/// How long a destruction waits for threads that read the pool's figures.
const READERS_WAIT: Duration = Duration::from_secs(10);

#[repr(C)]
pub struct Pool {
    /// From 1.
    number: AtomicU32,
    handle: AtomicU64,
    device: AtomicU32,
    kind: AtomicU32,
    origin: AtomicU8,
    state: AtomicU8,
    /// It may hold memory of the device: its bit in the chunk is set.
    active: AtomicBool,
    /// A block was freed since the last synchronisation: it is in the list of those.
    freed: AtomicBool,
    /// The next pool in that list; 0: none.
    next_freed: AtomicU32,
    /// The next pool in the list of unused ones.
    next_unused: AtomicU32,
    /// Time of the last reading of the driver's figures.
    looked_ns: AtomicU64,
    pub growth: Growth,
    /// Its part of the figures that were recorded for a shared id.
    reported: [AtomicU64; 2],
    /// Threads without a word among [`Pools::readers`] that read its figures from the driver now.
    readers: AtomicU64,
}

/// Least time between two readings of a pool that is not known to have grown.
const LOOK_EVERY_NS: u64 = 1_000_000;

impl Pool {
    /// The number under which [`Pools::by_number`] finds it.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Its id in the trace.
    pub fn id(&self) -> PoolId {
        let number = self.number();
        if number <= OWN_IDS {
            return PoolId(number as u16);
        }
        let imported = u32::from(self.origin() == PoolOrigin::Imported);
        PoolId((OWN_IDS + 1 + self.device.load(Ordering::Relaxed).min(64) * 2 + imported) as u16)
    }

    /// Whether other pools may have the same id in the trace.
    pub fn shares_id(&self) -> bool {
        self.number() > OWN_IDS
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

    pub fn origin(&self) -> PoolOrigin {
        match self.origin.load(Ordering::Relaxed) {
            0 => PoolOrigin::Default,
            1 => PoolOrigin::Created,
            _ => PoolOrigin::Imported,
        }
    }

    fn group(&self) -> Group {
        let (device, kind) = (self.device().0, self.kind() as u8);
        Group { device, kind, origin: self.origin() as u8, shares_id: self.shares_id() }
    }

    /// The driver has served a request from it, so it exists.
    #[inline]
    pub fn served(&self) {
        if self.state.load(Ordering::Relaxed) == NAMED {
            self.exists();
        }
    }

    #[cold]
    fn exists(&self) {
        let _ = self.state.compare_exchange(NAMED, LIVE, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// True from time to time: the caller then reads the figures.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let last = self.looked_ns.load(Ordering::Relaxed);
        now_ns >= last.wrapping_add(LOOK_EVERY_NS)
            && self
                .looked_ns
                .compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Whether it is destroyed and holds nothing any more. To be checked after each free, and after its
    /// destruction. (A thread that frees the last block may miss a destruction on another one, and the
    /// other one that free: the next reading of all pools asks again.)
    #[inline]
    pub fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) == DESTROYED && self.growth.is_unused()
    }
}

/// A thread that reads a pool's figures from the driver.
pub struct Reader<'a> {
    pool: &'a Pool,
    _reading: pool_readers::Reading<'a>,
}

impl Reader<'_> {
    #[inline]
    pub fn handle(&self) -> u64 {
        self.pool.handle.load(Ordering::Relaxed)
    }
}

/// The figures of a destroyed pool without blocks.
pub const GONE: Reading = Reading { reserved: 0, used: Some(0) };

/// Pools at one time that have an id of their own in the trace. The ids above are for each device (0 to 63,
/// unknown) one for the further pools of this process and one for imported ones.
pub const OWN_IDS: u32 = if cfg!(test) { 100 } else { u16::MAX as u32 - 2 * 65 };

const CHUNK: usize = if cfg!(test) { 64 } else { 1024 };
const CHUNKS: usize = if cfg!(test) { 4 } else { 1024 };
/// Pools at one time that are followed.
pub const MOST: usize = CHUNK * CHUNKS;

/// Zero bytes are unused pools.
#[repr(C)]
struct Chunk {
    /// A bit for each pool that may hold memory.
    active: [AtomicU64; CHUNK / 64],
    pools: [Pool; CHUNK],
}

/// Pools of one group can have the same number, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    device: u8,
    kind: u8,
    origin: u8,
    shares_id: bool,
}

/// The numbers of the bits of a word.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.checked_sub(1)?;
        Some(bit as usize)
    }
}

#[derive(Default)]
struct Known {
    /// By handle: the number of the pool.
    handles: Table<KeyedSlot<u32>>,
    /// The first unused pool of each group; 0: none.
    unused: Vec<(Group, u32)>,
}

impl Known {
    fn first_unused(&mut self, group: Group) -> Option<&mut u32> {
        let first = self.unused.iter_mut().find(|(of, _)| *of == group);
        first.map(|(_, first)| first).filter(|first| **first != 0)
    }
}

pub struct Pools {
    known: Lock<Known>,
    /// Pages that are never unmapped, so that a pool's address stays valid.
    chunks: [AtomicPtr<Chunk>; CHUNKS],
    /// Pools that were ever in use at one time.
    count: AtomicU32,
    /// The first pool in which a block was freed; 0: none.
    freed: AtomicU32,
    /// Some pool is not followed.
    overflowed: AtomicBool,
    /// The recorded figures of each shared id.
    shared: Lock<Map<u16, [u64; 2]>>,
    readers: Readers<OWN>,
}

impl Default for Pools {
    fn default() -> Self {
        Pools {
            known: Lock::new(Known::default()),
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            count: AtomicU32::new(0),
            freed: AtomicU32::new(0),
            overflowed: AtomicBool::new(false),
            shared: Lock::new(Map::default()),
            readers: Readers::default(),
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
        Some(&self.chunk(index / CHUNK)?.pools[index % CHUNK])
    }

    #[inline]
    fn chunk(&self, index: usize) -> Option<&Chunk> {
        // SAFETY: null, or a chunk that is there for ever; zero bytes are a valid one.
        unsafe { self.chunks[index].load(Ordering::Acquire).as_ref() }
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
        let group = pool.group();
        if let Some(first) = known.first_unused(group).filter(|first| **first == pool.number()) {
            *first = pool.next_unused.load(Ordering::Relaxed);
        } else {
            self.count.store(pool.number(), Ordering::Release);
        }
        pool.handle.store(handle, Ordering::Relaxed);
        pool.state.store(state, Ordering::Release);
        if origin != PoolOrigin::Created {
            self.note_active(pool);
        }
        let define = !pool.shares_id() || {
            let mut shared = self.shared.lock();
            let is_new = !shared.contains_key(&pool.id().0);
            is_new && shared.insert(pool.id().0, [0; 2]).is_ok()
        };
        Some(Seen { pool, define })
    }

    /// A pool of the group that is not in use: one that was, or else the next that never was.
    fn unused(
        &self,
        known: &mut Known,
        device: DeviceId,
        kind: Kind,
        origin: PoolOrigin,
    ) -> Option<&Pool> {
        for shares_id in [false, true] {
            let group =
                Group { device: device.0, kind: kind as u8, origin: origin as u8, shares_id };
            if let Some(first) = known.first_unused(group) {
                return self.by_number(*first);
            }
            // One without an id of its own is taken only if there is none that has one.
            if !shares_id && self.count.load(Ordering::Relaxed) < OWN_IDS {
                break;
            }
        }
        let index = self.count.load(Ordering::Relaxed) as usize;
        if index >= MOST {
            return None;
        }
        let chunk = &self.chunks[index / CHUNK];
        if chunk.load(Ordering::Acquire).is_null() {
            let fresh = pages(size_of::<Chunk>()).ok()?;
            chunk.store(fresh.cast(), Ordering::Release);
        }
        let pool = self.at(index)?;
        pool.device.store(device.0.into(), Ordering::Relaxed);
        pool.kind.store(kind as u32, Ordering::Relaxed);
        pool.origin.store(origin as u8, Ordering::Relaxed);
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

    /// The driver's handle, while the pool can be queried: until the value is dropped, it is not destroyed.
    #[inline(always)]
    pub fn begin_reading<'a>(&'a self, pool: &'a Pool) -> Option<Reader<'a>> {
        let (thread, number) = (thread_numbers::number(), pool.number().into());
        let reader = Reader { pool, _reading: self.readers.begin(thread, number, &pool.readers) };
        (pool.state.load(Ordering::SeqCst) == LIVE).then_some(reader)
    }

    /// Before the driver destroys it. Afterwards it may reuse the handle.
    pub fn begin_destroy(&self, handle: u64) -> Option<&Pool> {
        let number = self.known.lock().handles.remove(handle)?.value;
        let pool = self.by_number(number)?;
        pool.state.store(DESTROYING, Ordering::SeqCst);
        // The driver may not be asked for the figures of a pool while it destroys it. A reader waits for nothing but
        // the driver; the bound is for one that ended inside it.
        let is_read = || self.readers.any(number.into(), &pool.readers);
        if is_read() {
            let until = Instant::now() + READERS_WAIT;
            while is_read() && Instant::now() < until {
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
        self.record(pool, [0, 0], |_| ());
        let mut known = self.known.lock();
        let group = pool.group();
        let list = match known.unused.iter().position(|(of, _)| *of == group) {
            Some(at) => Some(&mut known.unused[at].1),
            None => match known.unused.try_push((group, 0)) {
                Ok(()) => known.unused.last_mut().map(|(_, first)| first),
                // Without host memory the number is lost.
                Err(_) => None,
            },
        };
        if let Some(first) = list {
            pool.next_unused.store(*first, Ordering::Relaxed);
            *first = pool.number();
        }
        state.store(UNUSED, Ordering::Release);
    }

    /// Before a block of the pool is allocated.
    #[inline]
    pub fn takes(&self, pool: &Pool) {
        if !pool.active.load(Ordering::Relaxed) {
            self.note_active(pool);
        }
    }

    #[cold]
    fn note_active(&self, pool: &Pool) {
        pool.active.store(true, Ordering::Relaxed);
        let (word, bit) = self.active_bit(pool);
        word.fetch_or(bit, Ordering::Release);
    }

    fn active_bit(&self, pool: &Pool) -> (&AtomicU64, u64) {
        static NONE: AtomicU64 = AtomicU64::new(0);
        let index = pool.number() as usize - 1;
        let chunk = self.chunk(index / CHUNK);
        (chunk.map_or(&NONE, |chunk| &chunk.active[index % CHUNK / 64]), 1 << (index % 64))
    }

    /// After a reading: a pool without blocks for which the driver holds nothing is not read again until it
    /// is used. (If a block is allocated meanwhile, the pool's figures are those of that allocation until
    /// the next one.)
    pub fn rests(&self, pool: &Pool) {
        let is_created = pool.origin() == PoolOrigin::Created;
        if is_created && pool.growth.known() == (0, 0) && pool.growth.is_unused() {
            let (word, bit) = self.active_bit(pool);
            word.fetch_and(!bit, Ordering::AcqRel);
            pool.active.store(false, Ordering::Relaxed);
        }
    }

    /// The pools that may hold memory.
    pub fn active(&self) -> impl Iterator<Item = &Pool> {
        let count = self.count.load(Ordering::Acquire) as usize;
        let words = (0..count.div_ceil(64)).map(|word| word * 64);
        words.flat_map(move |first| {
            let chunk = self.chunk(first / CHUNK);
            let word =
                chunk.map_or(0, |chunk| chunk.active[first % CHUNK / 64].load(Ordering::Acquire));
            Bits(word).filter_map(move |bit| self.at(first + bit))
        })
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
        if pool.freed.swap(true, Ordering::AcqRel) {
            return;
        }
        let number = pool.number();
        let _ = self.freed.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |first| {
            pool.next_freed.store(first, Ordering::Relaxed);
            Some(number)
        });
    }

    /// Whether a block of any pool was freed since [`Pools::take_freed`].
    #[inline]
    pub fn any_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) != 0
    }

    /// Those pools, each once.
    pub fn take_freed(&self) -> impl Iterator<Item = &Pool> {
        let mut next = self.freed.swap(0, Ordering::AcqRel);
        std::iter::from_fn(move || {
            let pool = self.by_number(next)?;
            next = pool.next_freed.load(Ordering::Relaxed);
            // From here on another thread may note it again.
            pool.freed.store(false, Ordering::Release);
            Some(pool)
        })
    }

    /// Calls `record` with the figures that the trace has for the pool's id: its own, or the sum of the pools
    /// that share the id, in the order of their changes.
    pub fn record(&self, pool: &Pool, now: [u64; 2], record: impl FnOnce([u64; 2])) {
        if !pool.shares_id() {
            return record(now);
        }
        let mut shared = self.shared.lock();
        let Some(sums) = shared.get_mut(&pool.id().0) else { return };
        for ((sum, reported), now) in sums.iter_mut().zip(&pool.reported).zip(now) {
            let before = reported.swap(now, Ordering::Relaxed);
            *sum = sum.saturating_sub(before).saturating_add(now);
        }
        record(*sums);
    }

    /// Writes the figures of each pool. Later changes follow in the file as `PoolState`.
    pub fn checkpoint(&self, id: u32, emit: &mut dyn FnMut(&Event)) {
        let mut emit = |pool, reserved, used| {
            if reserved != 0 || used != 0 {
                emit(&Event::CheckpointPool { id, pool, reserved, used });
            }
        };
        for pool in self.all().filter(|pool| !pool.shares_id()) {
            let (reserved, used) = pool.growth.known();
            emit(pool.id(), reserved, used);
        }
        for (pool, [reserved, used]) in self.shared.lock().iter() {
            emit(PoolId(*pool), *reserved, *used);
        }
    }

    /// All pools that exist, and destroyed ones with blocks.
    pub fn all(&self) -> impl Iterator<Item = &Pool> {
        let count = self.count.load(Ordering::Acquire) as usize;
        let pools = (0..count).filter_map(|index| self.at(index));
        pools.filter(|pool| pool.state.load(Ordering::Relaxed) != UNUSED)
    }
}

#[cfg(test)]
mod tests;
