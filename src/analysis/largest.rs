//! The largest live allocations.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use vramtrace_format::DeviceId;

use crate::replay::{Key, Live, LiveSet};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LargestAllocation {
    pub key: Key,
    pub live: Live,
}

/// The `count` largest live allocations of a device by requested bytes, largest first; of equal
/// ones the oldest. Imports are left out: they are another process's.
pub fn largest(live: &LiveSet, device: DeviceId, count: usize) -> Vec<LargestAllocation> {
    // Bounded: a live set may have millions.
    let mut heap = BinaryHeap::with_capacity(count + 1);
    let own = live.iter().filter(|(_, live)| {
        live.device == device
            && !live.kind.is_host()
            && live.kind != vramtrace_format::Kind::Imported
    });
    for (key, live) in own {
        let rank = (live.size, Reverse(live.time_ns), Reverse(key));
        heap.push(Reverse(rank));
        if heap.len() > count {
            heap.pop();
        }
    }
    let ordered = heap.into_sorted_vec();
    let keys = ordered.into_iter().map(|Reverse((_, _, Reverse(key)))| key);
    keys.filter_map(|key| Some(LargestAllocation { key, live: *live.get(key)? })).collect()
}
