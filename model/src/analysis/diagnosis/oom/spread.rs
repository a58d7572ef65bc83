//! How the addresses in use lie in a pool of which only the requests are known, as in a log of RMM.

use vramtrace_format::{DeviceId, Space};

use crate::replay::State;

/// Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// In use.
    pub bytes: u64,
    /// From the first address to the last one.
    pub from_first_to_last: u64,
    /// Of the holes that are smaller than the request: their sum, and the largest.
    pub holes: u64,
    pub largest_hole: u64,
}

impl Spread {
    pub(super) fn of(state: &State, device: DeviceId, request: u64) -> Spread {
        let live = state.live.iter();
        let here = live.filter(|(key, live)| key.space == Space::Array && live.device == device);
        let mut ranges: Vec<(u64, u64)> = here.map(|(key, live)| (key.number, live.size)).collect();
        ranges.sort_unstable();
        let has_frees = state.devices.get(&device).is_some_and(|device| device.frees > 0);
        let mut found = Spread::default();
        let mut last = None;
        for (start, size) in ranges {
            let end = start.saturating_add(size);
            let hole = start.saturating_sub(last.unwrap_or(start));
            // A larger one would have served it: it is no part of the pool. Nor is any where nothing was freed.
            if hole < request && has_frees {
                found.holes = found.holes.saturating_add(hole);
                found.largest_hole = found.largest_hole.max(hole);
            }
            found.bytes = found.bytes.saturating_add(size);
            found.from_first_to_last =
                found.from_first_to_last.saturating_add(hole).saturating_add(size);
            last = Some(end.max(last.unwrap_or(0)));
        }
        found
    }
}
