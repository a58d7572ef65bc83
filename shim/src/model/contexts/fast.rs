//! Finds a context's target by its handle without a lock, in a small fixed table. Contexts that do not
//! fit are found under the lock.

use super::Target;
use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::{ContextId, DeviceId};

/// Programs have one context a device, seldom more than a few.
const SLOTS: usize = 16;
/// No context has this handle.
const EMPTY: u64 = 0;

#[derive(Default)]
struct Slot {
    handle: AtomicU64,
    target: AtomicU64,
}

#[derive(Default)]
pub struct Fast([Slot; SLOTS]);

fn pack(target: Target) -> u64 {
    u64::from(target.context.0) << 8 | u64::from(target.device.0)
}

fn unpack(word: u64) -> Target {
    Target { context: ContextId((word >> 8) as u16), device: DeviceId(word as u8) }
}

impl Fast {
    #[inline(always)]
    fn slot(&self, handle: u64) -> Option<&Slot> {
        self.0.iter().find(|slot| slot.handle.load(Ordering::Acquire) == handle)
    }

    #[inline]
    pub fn get(&self, handle: u64) -> Option<Target> {
        let slot = self.slot(handle).filter(|_| handle != EMPTY)?;
        let target = slot.target.load(Ordering::Acquire);
        // The slot may be emptied and used again between the loads. If the handle has changed, the target is of another
        // context.
        (slot.handle.load(Ordering::Acquire) == handle).then(|| unpack(target))
    }

    /// Called under the state's lock. A full table drops the entry, which is still in the state.
    pub fn put(&self, handle: u64, target: Target) {
        if let Some(slot) = self.slot(handle).or_else(|| self.slot(EMPTY)) {
            slot.target.store(pack(target), Ordering::Release);
            slot.handle.store(handle, Ordering::Release);
        }
    }

    /// Called under the state's lock.
    pub fn remove(&self, handle: u64) {
        if let Some(slot) = self.slot(handle) {
            slot.handle.store(EMPTY, Ordering::Release);
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
    fn a_full_table_forgets_and_never_lies() {
        let fast = Fast::default();
        let all = 1..=2 * SLOTS as u64;
        for round in 0..3 {
            all.clone().for_each(|n| fast.put(n * 64, target(round + n as u16)));
            let known = all.clone().filter_map(|n| Some((n, fast.get(n * 64)?)));
            let known: Vec<_> = known.collect();
            assert_eq!(known.len(), SLOTS);
            assert!(known.iter().all(|(n, found)| *found == target(round + *n as u16)));
            all.clone().for_each(|n| fast.remove(n * 64));
            assert!(all.clone().all(|n| fast.get(n * 64).is_none()));
        }
        assert_eq!((fast.get(0), fast.get(1)), (None, None));
    }
}
