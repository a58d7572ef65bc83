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
use vramtrace_format::{ContextId, DeviceId, SiteId};

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
    stream: u64,
    pool_wanted: u64,
    context_handle: u64,
    pool: *const Pool,
    site: u32,
    api: u16,
    context: u16,
    device: u8,
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
        // SAFETY: this thread's own line; a pool once seen lives as long as the process's state.
        unsafe {
            let line = &*line(key);
            let known = line.generation == self.generation()
                && line.stream == key.stream
                && line.pool_wanted == key.pool
                && line.context_handle == key.context
                && line.api == key.api;
            if !known {
                return None;
            }
            Some(StreamTarget {
                target: Target { context: ContextId(line.context), device: DeviceId(line.device) },
                pool: line.pool.as_ref(),
                site: SiteId(line.site),
            })
        }
    }

    pub fn keep(&self, generation: u64, key: &Key, route: &StreamTarget) {
        let fresh = Line {
            generation,
            stream: key.stream,
            pool_wanted: key.pool,
            context_handle: key.context,
            pool: route.pool.map_or(std::ptr::null(), |pool| pool),
            site: route.site.0,
            api: key.api,
            context: route.target.context.0,
            device: route.target.device.0,
        };
        // SAFETY: this thread's own line.
        unsafe { line(key).write(fresh) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
