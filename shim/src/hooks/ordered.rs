//! Stream-ordered memory: blocks inside pools.

use super::book::{look_before_refusal, refuse_at, site, warn};
use super::pool::{current_pool, gone, look, meet, read, tell};
use super::{Request, Why, current_context, give_back, place_of, refuse, take};
use crate::cap::{Budget, UnderWay};
use crate::entry::cuda::*;
use crate::entry::{Api, Call, driver, inside};
use crate::ledger::Entry;
use crate::pools::{Pool as KnownPool, block};
use crate::process::Process;
use crate::routes::{Key, Route};
use std::ptr::null_mut;
use vramtrace_format::{DeviceId, Event, Kind, PoolId, PoolOrigin, Space};

/// Streams 0 to 2 are the default ones: legacy by default, legacy, per-thread.
const LAST_DEFAULT_STREAM: u64 = 2;

/// A `_ptsz` variant's stream 0 is the per-thread default one.
#[inline]
fn stream_id(stream: Stream, per_thread: bool) -> u64 {
    if stream.is_null() && per_thread { LAST_DEFAULT_STREAM } else { stream as u64 }
}

/// A call for a block: which variant, from where.
struct Asked {
    api: Api,
    per_thread: bool,
    stream: Stream,
    /// 0 = the current pool of the stream's device.
    pool: u64,
    dptr: *mut u64,
    size: u64,
}

/// # Safety
/// As the driver's function.
pub unsafe fn alloc_async(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u64, usize, Stream) -> CUresult>,
    dptr: *mut u64,
    bytesize: usize,
    stream: Stream,
) -> CUresult {
    let per_thread = call.api == Api::cuMemAllocAsync_ptsz;
    let size = bytesize as u64;
    let asked = Asked { api: call.api, per_thread, stream, pool: 0, dptr, size };
    take_block(p, &asked, || unsafe { call.real(dptr, bytesize, stream) })
}

/// # Safety
/// As the driver's function.
pub unsafe fn alloc_from_pool_async(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u64, usize, Pool, Stream) -> CUresult>,
    dptr: *mut u64,
    bytesize: usize,
    pool: Pool,
    stream: Stream,
) -> CUresult {
    let per_thread = call.api == Api::cuMemAllocFromPoolAsync_ptsz;
    let (pool_asked, size) = (pool as u64, bytesize as u64);
    let asked = Asked { api: call.api, per_thread, stream, pool: pool_asked, dptr, size };
    take_block(p, &asked, || unsafe { call.real(dptr, bytesize, pool, stream) })
}

/// # Safety
/// As the driver's function.
pub unsafe fn free_async(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(u64, Stream) -> CUresult>,
    dptr: u64,
    stream: Stream,
) -> CUresult {
    let per_thread = call.api == Api::cuMemFreeAsync_ptsz;
    if p.captures.takes(stream, per_thread) {
        // A node that frees when its graph runs.
        return unsafe { call.real(dptr, stream) };
    }
    let stream_id = stream_id(stream, per_thread);
    give_back(p, call.api, Space::Device, dptr, stream_id, || unsafe { call.real(dptr, stream) })
}

#[inline]
fn take_block(p: &'static Process, asked: &Asked, real: impl FnOnce() -> CUresult) -> CUresult {
    if p.cap.is_bad() {
        let request = Request::new(asked.api, Kind::Pool, super::NOWHERE, asked.size);
        return refuse(p, &request, Why::BadCap);
    }
    if p.captures.takes(asked.stream, asked.per_thread) {
        return super::graph::take_captured(p, asked.api, asked.dptr, asked.size, real);
    }
    let route = route(p, asked);
    let Some(pool) = route.pool else { return plain(p, asked, &route, real) };
    if !pool.is_device_memory() {
        return take_other(p, asked, &route, pool.kind(), real);
    }
    match p.cap.limited(pool.device()) {
        Some(budget) if asked.size > 0 && !asked.dptr.is_null() => {
            capped(p, asked, &route, pool, budget, real)
        }
        _ => plain(p, asked, &route, real),
    }
}

fn plain(
    p: &'static Process,
    asked: &Asked,
    route: &Route,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = real();
    if result != 0 {
        return refused_by_driver(p, asked, route, result);
    }
    let now = booked(p, asked, route);
    if let Some(pool) = route.pool
        && (pool.growth.took(block(asked.size)) || pool.is_due(now))
    {
        look(p, pool);
    }
    result
}

fn capped(
    p: &'static Process,
    asked: &Asked,
    route: &Route,
    pool: &'static KnownPool,
    budget: &Budget,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let size = block(asked.size);
    if pool.growth.ask(Some(budget), size).is_err() {
        look_before_refusal(p, pool.device());
        if let Err(refusal) = pool.growth.ask_again(Some(budget), size) {
            let device = route.place.device;
            if !p.cap.only_warns() {
                return refuse_at(p, device, route.site, asked.size, Why::Cap(refusal));
            }
            warn(p, device, route.site, asked.size, refusal);
            pool.growth.ask_anyway(budget, size);
        }
    }
    let under_way = UnderWay::new(&pool.growth, Some(budget), size);
    let result = real();
    let got = result == 0;
    let reading = if got { read(p, pool) } else { None };
    under_way.finish(got, reading, |change| tell(p, pool, change));
    if !got {
        return refused_by_driver(p, asked, route, result);
    }
    booked(p, asked, route);
    result
}

/// Managed or host memory out of a pool of such: each block counts by itself.
#[cold]
fn take_other(
    p: &'static Process,
    asked: &Asked,
    route: &Route,
    kind: Kind,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let mut request = Request::new(asked.api, kind, route.place, asked.size);
    request.space = Space::Device;
    if kind == Kind::HostPinned {
        request.place.device = DeviceId::UNKNOWN;
    }
    // SAFETY: not NULL, and the program gave it to be written; the driver has given the address.
    let old = (!asked.dptr.is_null()).then(|| unsafe { *asked.dptr });
    let taken = || (unsafe { *asked.dptr }, asked.size);
    take(p, &request, real, taken, |address| unsafe {
        if let Some(free) = driver().mem_free {
            inside(|| free(address));
        }
        if let Some(old) = old {
            *asked.dptr = old;
        }
    })
}

#[cold]
fn refused_by_driver(
    p: &'static Process,
    asked: &Asked,
    route: &Route,
    result: CUresult,
) -> CUresult {
    refuse_at(p, route.place.device, route.site, asked.size, Why::Driver(result))
}

/// Into ledger and file. Returns the time.
#[inline]
fn booked(p: &'static Process, asked: &Asked, route: &Route) -> u64 {
    // SAFETY: the driver has written it and answered success.
    let key = unsafe { *asked.dptr };
    let now = p.recorder.now_ns();
    let entry = Entry {
        context: route.place.context,
        pool: route.pool.map_or(PoolId(0), KnownPool::id),
        stream: stream_id(asked.stream, asked.per_thread),
        site: route.site,
        stack: crate::capture::stack(p),
        time_ns: now,
        ..Entry::new(Kind::Pool, key, asked.size, route.place.device)
    };
    p.ledger.insert(&p.recorder, &entry);
    p.recorder.record_at(now, &Event::Alloc(entry.alloc()));
    now
}

/// A block was freed; its pool keeps the memory, gives it back now or later, or ends with it.
#[inline]
pub(super) fn block_freed(p: &'static Process, entry: &Entry, now: u64) {
    let Some(pool) = p.pools.by_id(entry.pool) else { return };
    p.pools.freed_one(pool);
    if pool.freed(entry.size).is_some() {
        gone(p, pool);
    } else if pool.is_due(now) {
        look(p, pool);
    }
}

/// Where the call goes; known already in the common case.
#[inline]
fn route(p: &'static Process, asked: &Asked) -> Route {
    let stream = stream_id(asked.stream, asked.per_thread);
    let context = if stream <= LAST_DEFAULT_STREAM { current_context() } else { 0 };
    let key = Key { stream, pool: asked.pool, context, api: asked.api };
    p.routes.find(&key).unwrap_or_else(|| find_route(p, asked, &key))
}

#[cold]
fn find_route(p: &'static Process, asked: &Asked, key: &Key) -> Route {
    let generation = p.routes.generation();
    let context = match key.context {
        0 if key.stream > LAST_DEFAULT_STREAM => context_of(asked.stream, asked.per_thread),
        current => current,
    };
    let mut place = place_of(p, context);
    let pool = match asked.pool {
        0 => current_pool(p, place.device),
        asked => meet(p, asked, place.device, Kind::Pool, PoolOrigin::Created),
    };
    if let Some(pool) = pool {
        // A pool's memory lies on the pool's device, whatever the stream's is. Managed memory may
        // lie on none: it counts where cuMemAllocManaged's would.
        if pool.device() != DeviceId::UNKNOWN || pool.kind() != Kind::Managed {
            place.device = pool.device();
        }
    }
    let id = pool.map_or(PoolId(0), KnownPool::id);
    let kind = pool.map_or(Kind::Pool, KnownPool::kind);
    let route = Route { place, pool, site: site(p, asked.api, Some(kind), place, id, key.stream) };
    if place.device != DeviceId::UNKNOWN {
        p.routes.keep(generation, key, &route);
    }
    route
}

/// The context of a created stream; 0 = the driver does not say.
fn context_of(stream: Stream, per_thread: bool) -> u64 {
    let driver = driver();
    let ask = match per_thread {
        true => driver.stream_get_ctx_ptsz.or(driver.stream_get_ctx),
        false => driver.stream_get_ctx,
    };
    let mut context = null_mut();
    // SAFETY: the program's own stream, and room for the answer.
    let result = ask.map(|ask| inside(|| unsafe { ask(stream, &mut context) }));
    if result == Some(0) { context as u64 } else { 0 }
}
