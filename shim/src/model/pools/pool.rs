//! One pool: what is known of it, and its state.

use crate::model::cap::{Growth, Reading};
use crate::model::pool_readers::Readers;
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

/// Pools at one time that have an id of their own in the trace. The ids above are for each device (0 to 63,
/// unknown) one for the further pools of this process and one for imported ones.
pub const OWN_IDS: u32 = if cfg!(test) { 100 } else { u16::MAX as u32 - 2 * 65 };

/// The figures of a destroyed pool without blocks.
pub const GONE: Reading = Reading { reserved: 0, used: Some(0) };

#[repr(C)]
pub struct Pool {
    /// From 1.
    pub(super) number: AtomicU32,
    pub(super) handle: AtomicU64,
    pub(super) group: AtomicU32,
    pub(super) state: AtomicU8,
    /// It may hold memory of the device: its bit in the chunk is set.
    pub(super) active: AtomicBool,
    /// A block was freed since the last synchronisation: it is in the list of those.
    pub(super) freed: AtomicBool,
    /// The next pool in that list; 0: none.
    pub(super) next_freed: AtomicU32,
    /// The next pool in the list of unused ones.
    pub(super) next_unused: AtomicU32,
    /// Time of the last reading of the driver's figures.
    pub(super) looked_ns: AtomicU64,
    pub growth: Growth,
    /// Its part of the figures that were recorded for a shared id.
    pub(super) reported: [AtomicU64; 2],
    /// Threads that read its figures from the driver now.
    pub(super) readers: Readers,
}

/// Least time between two readings of a pool that is not known to have grown.
pub(super) const LOOK_EVERY_NS: u64 = 1_000_000;

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
        PoolId((OWN_IDS + 1 + u32::from(self.device().0).min(64) * 2 + imported) as u16)
    }

    /// Whether other pools may have the same id in the trace.
    pub fn shares_id(&self) -> bool {
        self.number() > OWN_IDS
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

    /// Its group, and whether it shares its id.
    pub(super) fn group(&self) -> (Group, bool) {
        (self.group.load(Ordering::Relaxed), self.shares_id())
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

/// Device, kind and origin in one word. Pools of one group can have the same number, one after the other.
pub(super) type Group = u32;

pub(super) fn group_of(device: DeviceId, kind: Kind, origin: PoolOrigin) -> Group {
    u32::from(device.0) | (kind as u32) << 8 | (origin as u32) << 16
}
