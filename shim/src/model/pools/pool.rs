//! One pool: what is known of it, and its state.

use crate::model::cap::{Growth, Reading};
use crate::model::pool_readers::{Readers, Reading as UnderWay};
use crate::runtime::zero_pages::Zeroed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use vramtrace_format::{DeviceId, Kind, PoolId, PoolOrigin};

/// Not in use; zero bytes are such a pool.
pub(super) const UNUSED: u8 = 0;
pub(super) const LIVE: u8 = 1;
/// The driver is destroying it, or refuses to.
pub(super) const DESTROYING: u8 = 2;
/// Destroyed, with blocks that are not freed yet.
pub(super) const DESTROYED: u8 = 3;
/// A request named it; no call that returned pools gave it, and the driver has served no request from it. It may be a
/// destroyed one, whose figures may not be asked for: the driver reads freed memory (measured with 580.159.04).
pub(super) const NAMED: u8 = 4;

/// The figures of a destroyed pool without blocks.
pub const GONE: Reading = Reading { reserved: 0, used: Some(0) };

// SAFETY: numbers; zeros are a pool that is not in use.
unsafe impl Zeroed for Pool {}

#[repr(C)]
pub struct Pool {
    /// From 1.
    pub(super) number: AtomicU32,
    pub(super) handle: AtomicU64,
    pub(super) group: AtomicU32,
    pub(super) state: AtomicU8,
    /// It may hold memory of the device.
    pub(super) active: AtomicBool,
    /// A block was freed since the last synchronisation.
    pub(super) freed: AtomicBool,
    /// The next pool in the list of unused ones.
    pub(super) next_unused: AtomicU32,
    pub growth: Growth,
    /// Threads that read its figures from the driver now.
    pub(super) readers: Readers,
}

impl Pool {
    /// The number under which [`Pools::by_number`] finds it.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Its id in the trace.
    pub fn id(&self) -> PoolId {
        PoolId(self.number() as u16)
    }

    #[inline]
    pub fn device(&self) -> DeviceId {
        DeviceId(self.group.load(Ordering::Relaxed) as u8)
    }

    /// `Pool`; for a pool of other memory the kind of its blocks, `Managed` or `HostPinned`.
    pub fn kind(&self) -> Kind {
        Kind::from_u8((self.group.load(Ordering::Relaxed) >> 8) as u8).unwrap_or(Kind::Pool)
    }

    /// The common case of `kind`.
    #[inline]
    pub fn is_device_memory(&self) -> bool {
        (self.group.load(Ordering::Relaxed) >> 8) as u8 == Kind::Pool as u8
    }

    pub fn origin(&self) -> PoolOrigin {
        match self.group.load(Ordering::Relaxed) >> 16 {
            0 => PoolOrigin::Default,
            1 => PoolOrigin::Created,
            _ => PoolOrigin::Imported,
        }
    }

    /// Before a block is allocated.
    #[inline]
    pub fn takes(&self) {
        if !self.active.load(Ordering::Relaxed) {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    /// After a reading: a pool without blocks for which the driver holds nothing is not read again until it
    /// is used. (If a block is allocated meanwhile, the pool's figures are those of that allocation until
    /// the next one.)
    pub fn rests(&self) {
        let is_created = self.origin() == PoolOrigin::Created;
        if is_created && self.growth.known() == (0, 0) && self.growth.is_unused() {
            self.active.store(false, Ordering::Relaxed);
        }
    }

    /// The driver's handle, while the pool can be queried: until the other value is dropped, it is not destroyed.
    #[inline(always)]
    pub fn begin_reading(&self) -> Option<(u64, UnderWay<'_>)> {
        let reading = self.readers.begin();
        let is_live = self.state.load(Ordering::SeqCst) == LIVE;
        is_live.then(|| (self.handle.load(Ordering::Relaxed), reading))
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

    /// Whether it is destroyed and holds nothing any more. To be checked after each free, and after its
    /// destruction. (A thread that frees the last block may miss a destruction on another one, and the
    /// other one that free: the next reading of all pools asks again.)
    #[inline]
    pub fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) == DESTROYED && self.growth.is_unused()
    }
}

/// Device, kind and origin in one word. Pools of one group can have the same number, one after the other.
pub(super) fn group_of(device: DeviceId, kind: Kind, origin: PoolOrigin) -> u32 {
    u32::from(device.0) | (kind as u32) << 8 | (origin as u32) << 16
}
