//! Device, context, pool and site of stream-ordered requests, cached per thread, so that a common
//! request makes no driver query.
//!
//! A created stream belongs to one context, so (stream, requested pool) is the key. The default streams
//! belong to the current context, so its handle is part of the key. The cache is cleared when a stream,
//! pool or context ends, or a device's pool changes.

use crate::model::contexts::Target;
use crate::model::pools::Pool;
use crate::runtime::tls::thread_block;
use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::SiteId;

/// The key of a cached route. `stream`: 0 legacy default, 1 legacy, 2 per-thread default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Key {
    pub stream: u64,
    /// 0 = the device's current pool.
    pub pool: u64,
    /// The current context's handle for a default stream, else 0.
    pub context: u64,
    /// The number of the entry point.
    pub api: u16,
}

#[derive(Clone, Copy)]
pub struct StreamTarget {
    pub target: Target,
    pub pool: Option<&'static Pool>,
    pub site: SiteId,
}

/// A cached route, on one line of the cache; all zeros = none (generations start above 0).
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    generation: u64,
    key: Key,
    route: StreamTarget,
}

const LINES: usize = 8;
const BYTES: usize = 512;
const _: () = assert!(LINES * size_of::<Line>() <= BYTES);

thread_block!(fn lines() -> *mut Line = "vramtrace_stream_targets", 512, align 64);

#[inline]
fn line(key: &Key) -> *mut Line {
    let mixed = key.stream ^ key.pool.rotate_left(7) ^ key.context.rotate_left(13);
    let hash = crate::runtime::hash_table::spread(mixed ^ (u64::from(key.api) << 3));
    // SAFETY: the index is below LINES.
    unsafe { lines().add((hash >> 61) as usize % LINES) }
}

/// The generation that a valid cached route has.
pub struct StreamTargets {
    generation: AtomicU64,
}

impl Default for StreamTargets {
    /// A forked child starts with a generation that its parent did not use, since it inherits the
    /// parent's lines.
    fn default() -> Self {
        let process = u64::from(std::process::id());
        StreamTargets { generation: AtomicU64::new((process << 32) | 1) }
    }
}

impl StreamTargets {
    /// Clears the cache: handles may have been reused.
    pub fn forget(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// To be read before the driver queries whose results [`StreamTargets::keep`] stores.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub fn find(&self, key: &Key) -> Option<StreamTarget> {
        // SAFETY: this thread's own line. Zero bytes are valid.
        let line = unsafe { &*line(key) };
        (line.generation == self.generation() && line.key == *key).then_some(line.route)
    }

    pub fn keep(&self, generation: u64, key: &Key, route: &StreamTarget) {
        let fresh = Line { generation, key: *key, route: *route };
        // SAFETY: this thread's own line.
        unsafe { line(key).write(fresh) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::{ContextId, DeviceId};

    #[test]
    fn routes_are_known_until_something_ends() {
        let routes = StreamTargets::default();
        let key = Key { stream: 0x500, pool: 0, context: 0, api: 4 };
        assert!(routes.find(&key).is_none());
        let target = Target { context: ContextId(3), device: DeviceId(1) };
        let generation = routes.generation();
        routes.keep(generation, &key, &StreamTarget { target, pool: None, site: SiteId(9) });
        let found = routes.find(&key).unwrap();
        assert_eq!((found.target, found.site), (target, SiteId(9)));
        assert!(routes.find(&Key { stream: 0x501, ..key }).is_none());
        assert!(routes.find(&Key { context: 1, ..key }).is_none());
        assert!(routes.find(&Key { api: 5, ..key }).is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(routes.find(&key).is_none(), "each thread its own"));
        });
        routes.forget();
        assert!(routes.find(&key).is_none());
        routes.keep(generation, &key, &found);
        assert!(routes.find(&key).is_none(), "learned before something ended");
    }
}
