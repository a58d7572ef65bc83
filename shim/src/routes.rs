//! Where a stream-ordered request goes: its device, context, pool and site, remembered per thread,
//! so that the common request asks the driver nothing.
//!
//! A created stream belongs to its context for life, so (stream, pool asked for) is enough; the
//! default streams belong to whatever context is current, so its handle is part of the key. All is
//! forgotten when a stream, pool or context ends or a device's pool changes.

use crate::contexts::Place;
use crate::entry::Api;
use crate::pools::Pool;
use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::{ContextId, DeviceId, SiteId};

/// What tells one route from another. `stream`: 0 legacy default, 1 legacy, 2 per-thread default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Key {
    pub stream: u64,
    /// 0 = the device's current pool.
    pub pool: u64,
    /// The current context's handle for a default stream, else 0.
    pub context: u64,
    pub api: Api,
}

#[derive(Clone, Copy)]
pub struct Route {
    pub place: Place,
    pub pool: Option<&'static Pool>,
    pub site: SiteId,
}

/// A remembered route: plain words, all zero = none (generations start above 0).
#[derive(Clone, Copy)]
#[repr(C)]
struct Line {
    generation: u64,
    stream: u64,
    pool_asked: u64,
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

// Initial-exec thread-local storage by hand, as for the depth of calls: `thread_local!` may
// allocate on a thread's first touch. The size is BYTES.
core::arch::global_asm!(
    ".pushsection .tbss.vramtrace_routes,\"awT\",@nobits",
    ".globl vramtrace_routes",
    ".hidden vramtrace_routes",
    ".type vramtrace_routes, @object",
    ".size vramtrace_routes, 512",
    ".balign 64",
    "vramtrace_routes:",
    ".zero 512",
    ".popsection",
);

#[inline(always)]
fn lines() -> *mut Line {
    let address: *mut Line;
    // SAFETY: reads this thread's base and the block's offset in the static block.
    unsafe {
        core::arch::asm!(
            "mov {address}, qword ptr fs:[0]",
            "add {address}, qword ptr [rip + vramtrace_routes@GOTTPOFF]",
            address = out(reg) address,
            options(nostack, pure, readonly),
        );
    }
    address
}

#[inline]
fn line(key: &Key) -> *mut Line {
    let mixed = key.stream ^ key.pool.rotate_left(7) ^ key.context.rotate_left(13);
    let hash = crate::table::spread(mixed ^ ((key.api as u64) << 3));
    // SAFETY: the index is below LINES.
    unsafe { lines().add((hash >> 61) as usize % LINES) }
}

/// The generation that a remembered route must have.
pub struct Routes {
    generation: AtomicU64,
}

impl Default for Routes {
    /// A forked child's first generation is none of its parent's, whose lines it inherits.
    fn default() -> Self {
        let process = u64::from(std::process::id());
        Routes { generation: AtomicU64::new((process << 32) | 1) }
    }
}

impl Routes {
    /// Handles may have changed their meaning: nothing that is remembered holds.
    pub fn forget(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// To be read before the driver is asked for what [`Routes::keep`] will remember.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    #[inline]
    pub fn find(&self, key: &Key) -> Option<Route> {
        // SAFETY: this thread's own line; a pool once met lives as long as the process's state.
        unsafe {
            let line = &*line(key);
            let known = line.generation == self.generation()
                && line.stream == key.stream
                && line.pool_asked == key.pool
                && line.context_handle == key.context
                && line.api == key.api as u16;
            if !known {
                return None;
            }
            Some(Route {
                place: Place { context: ContextId(line.context), device: DeviceId(line.device) },
                pool: line.pool.as_ref(),
                site: SiteId(line.site),
            })
        }
    }

    pub fn keep(&self, generation: u64, key: &Key, route: &Route) {
        let fresh = Line {
            generation,
            stream: key.stream,
            pool_asked: key.pool,
            context_handle: key.context,
            pool: route.pool.map_or(std::ptr::null(), |pool| pool),
            site: route.site.0,
            api: key.api as u16,
            context: route.place.context.0,
            device: route.place.device.0,
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
        let routes = Routes::default();
        let key = Key { stream: 0x500, pool: 0, context: 0, api: Api::cuMemAllocAsync };
        assert!(routes.find(&key).is_none());
        let place = Place { context: ContextId(3), device: DeviceId(1) };
        let generation = routes.generation();
        routes.keep(generation, &key, &Route { place, pool: None, site: SiteId(9) });
        let found = routes.find(&key).unwrap();
        assert_eq!((found.place, found.site), (place, SiteId(9)));
        assert!(routes.find(&Key { stream: 0x501, ..key }).is_none());
        assert!(routes.find(&Key { context: 1, ..key }).is_none());
        assert!(routes.find(&Key { api: Api::cuMemAllocAsync_ptsz, ..key }).is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(routes.find(&key).is_none(), "each thread its own"));
        });
        routes.forget();
        assert!(routes.find(&key).is_none());
        routes.keep(generation, &key, &found);
        assert!(routes.find(&key).is_none(), "learned before something ended");
    }
}
