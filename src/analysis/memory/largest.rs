//! The largest live allocations.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;
use vramtrace_format::DeviceId;

use crate::facts;
use crate::replay::State;
use crate::trace::Definitions;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LiveAllocation {
    pub size_bytes: u64,
    pub kind: &'static str,
    pub api: String,
    #[serde(rename = "allocated_at_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub allocated_ns: u64,
    #[serde(rename = "age_s", serialize_with = "facts::seconds")]
    #[cfg_attr(test, schemars(with = "f64"))]
    pub age_ns: u64,
    /// Of a stream-ordered allocation.
    pub pool: Option<u16>,
    pub stream: Option<u64>,
    pub key: String,
}

/// The `count` largest live allocations of a device by requested bytes, largest first, then oldest
/// first. Host memory is left out, and so are imports: another process owns their memory.
pub fn largest(
    state: &State,
    definitions: &Definitions,
    device: DeviceId,
    count: usize,
) -> Vec<LiveAllocation> {
    // A live set may have millions of entries: at most `count + 1` are kept.
    let mut heap = BinaryHeap::with_capacity(count + 1);
    let live = state.live.iter();
    let own = live.filter(|(_, live)| live.device == device && live.is_device_memory());
    for (key, live) in own {
        let rank = (live.size, Reverse(live.time_ns), Reverse(key));
        heap.push(Reverse(rank));
        if heap.len() > count {
            heap.pop();
        }
    }
    let ordered = heap.into_sorted_vec();
    let keys = ordered.into_iter().map(|Reverse((_, _, Reverse(key)))| key);
    let facts = keys.filter_map(|key| {
        let live = state.live.get(key)?;
        let in_pool = live.pool.0 != 0;
        Some(LiveAllocation {
            size_bytes: live.size,
            kind: live.kind.name(),
            api: definitions.site_api_name(live.site),
            allocated_ns: live.time_ns,
            age_ns: state.time_ns.saturating_sub(live.time_ns),
            pool: in_pool.then_some(live.pool.0),
            stream: definitions.site(live.site).filter(|_| in_pool).map(|site| site.stream),
            key: format!("{:#x}", key.number),
        })
    });
    facts.collect()
}
