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

/// The `count` largest live allocations of a device by requested bytes, largest first, then oldest
/// first. Host memory is left out, and so are imports: another process owns their memory.
pub fn largest(live: &LiveSet, device: DeviceId, count: usize) -> Vec<LargestAllocation> {
    // A live set may have millions of entries: at most `count + 1` are kept.
    let mut heap = BinaryHeap::with_capacity(count + 1);
    let own = live.iter().filter(|(_, live)| live.device == device && live.is_device_memory());
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
