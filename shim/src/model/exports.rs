//! Addresses that were exported to other processes by cuIpcGetMemHandle.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const MOST: usize = 16;

/// The first addresses. With more of them, each range counts as exported.
#[derive(Default)]
pub struct Exports {
    addresses: [AtomicU64; MOST],
    more: AtomicBool,
}

impl Exports {
    pub fn add(&self, address: u64) {
        let has_room = |slot: &AtomicU64| {
            let taken = slot.compare_exchange(0, address, Relaxed, Relaxed);
            taken.is_ok() || taken == Err(address)
        };
        if !self.addresses.iter().any(has_room) {
            self.more.store(true, Relaxed);
        }
    }

    /// Whether an address in the range was exported.
    pub fn any_in(&self, range: Range<u64>) -> bool {
        self.more.load(Relaxed)
            || self.addresses.iter().any(|slot| range.contains(&slot.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_kept_once_and_past_the_bound_all_count() {
        let exports = Exports::default();
        for _ in 0..100 {
            exports.add(1 << 40);
        }
        assert!(exports.any_in(1 << 40..(1 << 40) + 1) && !exports.any_in(1..1 << 40));
        (0..MOST as u64).for_each(|n| exports.add(n + 1));
        assert!(exports.any_in(1 << 50..1 << 51));
    }
}
