//! The latest frees. The recorder writes a free before it calls the driver. If the driver refuses the
//! free, the allocation is still live and is restored from here.

use std::collections::VecDeque;

use super::live::{Key, Live};

/// Far more than the frees of all threads between the record of a free and its refusal.
const KEPT: usize = 1024;

/// The oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentlyFreed(VecDeque<(Key, Live)>);

impl RecentlyFreed {
    pub(super) fn push(&mut self, key: Key, live: &Live) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back((key, *live));
    }

    /// The latest free of this key.
    pub(super) fn find(&self, key: Key) -> Option<Live> {
        self.0.iter().rev().find(|(of, _)| *of == key).map(|(_, live)| *live)
    }
}

#[cfg(test)]
mod tests {
    use vramtrace_format::{ContextId, DeviceId, Kind, PoolId, SiteId, Space, StackId, ThreadId};

    use super::*;

    fn entry(number: u64, size: u64) -> (Key, Live) {
        let live = Live {
            size,
            time_ns: 0,
            site: SiteId(0),
            stack: StackId(0),
            thread: ThreadId(0),
            context: ContextId(0),
            pool: PoolId(0),
            kind: Kind::Device,
            device: DeviceId(0),
            references: 1,
            slot: 0,
            weight: 1.0,
        };
        (Key { space: Space::Device, number }, live)
    }

    #[test]
    fn the_latest_free_of_a_key_is_found_until_it_is_overwritten() {
        let mut freed = RecentlyFreed::default();
        for size in 0..KEPT as u64 + 10 {
            let (key, live) = entry(size % 7, size);
            freed.push(key, &live);
        }
        let (key, _) = entry(3, 0);
        assert_eq!(freed.find(key).unwrap().size % 7, 3);
        assert!(freed.find(key).unwrap().size > KEPT as u64);
        let (first, live) = entry(99, 1);
        freed.push(first, &live);
        for size in 0..KEPT as u64 {
            let (key, live) = entry(1, size);
            freed.push(key, &live);
        }
        assert_eq!(freed.find(first), None);
    }
}
