//! Finds a context's target by its handle without a lock, in a small fixed table. Contexts that do not
//! fit are found under the lock.

use super::Target;
use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::{ContextId, DeviceId};

/// Programs have one context a device, seldom more than a few.
const SLOTS: usize = 128;
const EMPTY: u64 = 0;
/// The mark of a removed entry, past which probing continues; no context has this handle.
const REMOVED: u64 = 1;

#[derive(Default)]
struct Slot {
    handle: AtomicU64,
    target: AtomicU64,
}

pub struct Fast {
    slots: [Slot; SLOTS],
}

impl Default for Fast {
    fn default() -> Self {
        Fast { slots: std::array::from_fn(|_| Slot::default()) }
    }
}

fn pack(target: Target) -> u64 {
    u64::from(target.context.0) << 8 | u64::from(target.device.0)
}

fn unpack(word: u64) -> Target {
    Target { context: ContextId((word >> 8) as u16), device: DeviceId(word as u8) }
}

fn start(handle: u64) -> usize {
    (handle.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) as usize
}

impl Fast {
    /// The slots in which a handle may be, in order.
    #[inline(always)]
    fn probe(&self, handle: u64) -> impl Iterator<Item = &Slot> {
        let most = if handle > REMOVED { SLOTS } else { 0 };
        (0..most).map(move |step| &self.slots[(start(handle) + step) % SLOTS])
    }

    #[inline]
    pub fn get(&self, handle: u64) -> Option<Target> {
        for slot in self.probe(handle) {
            let found = slot.handle.load(Ordering::Acquire);
            if found == handle {
                let target = slot.target.load(Ordering::Acquire);
                // The slot may be removed and reused between the two loads. If the handle has changed,
                // the target is of another context.
                return (slot.handle.load(Ordering::Acquire) == handle).then(|| unpack(target));
            }
            if found == EMPTY {
                return None;
            }
        }
        None
    }

    /// Called under the state's lock. A full table drops the entry, which is still in the state.
    pub fn put(&self, handle: u64, target: Target) {
        let is = |slot: &&Slot, what| slot.handle.load(Ordering::Relaxed) == what;
        let known = self.probe(handle).find(|slot| is(slot, handle));
        let free = || self.probe(handle).find(|slot| is(slot, EMPTY) || is(slot, REMOVED));
        if let Some(slot) = known.or_else(free) {
            slot.target.store(pack(target), Ordering::Release);
            slot.handle.store(handle, Ordering::Release);
        }
    }

    /// Called under the state's lock.
    pub fn remove(&self, handle: u64) {
        let mut here = self.probe(handle);
        if let Some(slot) = here.find(|slot| slot.handle.load(Ordering::Relaxed) == handle) {
            slot.handle.store(REMOVED, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(n: u16) -> Target {
        Target { context: ContextId(n), device: DeviceId((n % 7) as u8) }
    }

    #[test]
    fn put_get_remove_over_many_rounds() {
        let fast = Fast::default();
        for round in 0..100u16 {
            for n in 1..=50u64 {
                fast.put(n * 4096, target(round + n as u16));
            }
            for n in 1..=50u64 {
                assert_eq!(fast.get(n * 4096), Some(target(round + n as u16)));
                fast.remove(n * 4096);
                assert_eq!(fast.get(n * 4096), None);
            }
        }
    }

    #[test]
    fn a_full_table_forgets_and_never_lies() {
        let fast = Fast::default();
        for n in 1..=2 * SLOTS as u64 {
            fast.put(n * 64, target(n as u16));
        }
        let found = (1..=2 * SLOTS as u64).filter(|n| fast.get(n * 64).is_some()).count();
        assert_eq!(found, SLOTS);
        assert_eq!(fast.get(0), None);
        assert_eq!(fast.get(1), None);
    }
}
