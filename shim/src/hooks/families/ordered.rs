//! Stream-ordered allocation (cuMemAllocAsync and related functions): blocks inside pools.

use crate::driver::api::Api;
use crate::driver::capture_status::is_capturing;
use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::Out;
use crate::hooks::call::accounting::{Account, allocate, free, take};
use crate::hooks::call::request::{Request, Why, refuse, refuse_at, refuse_unrecordable, site};
use crate::hooks::call::{Call, Function, hooks};
use crate::hooks::families::alloc::undo;
use crate::hooks::families::pool::{current_pool, named};
use crate::hooks::process::pool_reserves::{end_if_over, read, record_change, refresh};
use crate::hooks::process::refresh::refresh_before_refusal;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::{NO_TARGET, current_context, target_of};
use crate::model::cap::{Budget, InFlight, Refusal, Ticket};
use crate::model::ledger::Entry;
use crate::model::pools::Pool as KnownPool;
use crate::model::stream_targets::{Key, StreamTarget};
use std::ops::ControlFlow;
use std::ptr::null_mut;
use vramtrace_format::{DeviceId, Kind, PoolId, Space};

/// Streams 0 to 2 are the default ones: legacy by default, legacy, per-thread.
pub const PER_THREAD_STREAM: u64 = 2;

/// A `_ptsz` variant's stream 0 is the per-thread default one.
#[inline]
pub fn stream_id(stream: Stream, per_thread: bool) -> u64 {
    if stream.is_null() && per_thread { PER_THREAD_STREAM } else { stream as u64 }
}

/// A request for a block: the entry point and its arguments.
#[derive(Clone, Copy)]
struct Wanted {
    api: Api,
    per_thread: bool,
    stream: Stream,
    /// 0 = the current pool of the stream's device.
    pool: u64,
    dptr: Out<u64>,
    size: u64,
}

impl Wanted {
    /// For a function off the usual path: what has its address taken is kept in memory.
    #[inline(always)]
    fn again(&self) -> Wanted {
        let Wanted { api, per_thread, stream, pool, dptr, size } = *self;
        Wanted { api, per_thread, stream, pool, dptr, size }
    }
}

macro_rules! of_the_stream {
    ($($alloc:ident $free:ident $per_thread:literal $alloc_api:ident $free_api:ident;)*) => {$(
        #[inline(always)]
        pub fn $alloc(
            p: &'static Process,
            call: &Call<impl Function>,
            dptr: Out<u64>,
            bytesize: usize,
            stream: Stream,
        ) -> CUresult {
            let (api, size) = (Api::$alloc_api, bytesize as u64);
            let wanted = Wanted { api, per_thread: $per_thread, stream, pool: 0, dptr, size };
            take_block(p, wanted, || call.forward())
        }

        #[inline(always)]
        pub fn $free(
            p: &'static Process,
            call: &Call<impl Function>,
            dptr: u64,
            stream: Stream,
        ) -> CUresult {
            if p.stream_captures.takes(|| is_capturing(stream, $per_thread)) {
                // On a capturing stream this creates a free node.
                return call.forward();
            }
            let stream = stream_id(stream, $per_thread);
            free(p, call, Api::$free_api, (Space::Device, dptr), stream)
        }
    )*};
}

// The entry point is known where each is compiled: programs make no call more often.
of_the_stream! {
    alloc_async free_async false cuMemAllocAsync cuMemFreeAsync;
    alloc_async_ptsz free_async_ptsz true cuMemAllocAsync_ptsz cuMemFreeAsync_ptsz;
}

hooks! { p, call:
    alloc_from_pool_async(dptr: Out<u64>, bytesize: usize, pool: Pool, stream: Stream) = {
        let (api, pool, size) = (call.api, pool as u64, bytesize as u64);
        let per_thread = api == Api::cuMemAllocFromPoolAsync_ptsz;
        take_block(p, Wanted { api, per_thread, stream, pool, dptr, size }, || call.forward())
    };
}

#[inline(always)]
fn take_block(p: &'static Process, wanted: Wanted, real: impl FnOnce() -> CUresult) -> CUresult {
    if p.cap.is_bad() {
        return refuse_all(p, wanted.again());
    }
    if p.stream_captures.takes(|| is_capturing(wanted.stream, wanted.per_thread)) {
        return super::graph::take_captured(p, wanted.api, wanted.dptr, wanted.size, real);
    }
    let key = key(&wanted);
    match p.stream_targets.find(&key) {
        Some(route) => take_routed(p, wanted, route, real),
        None => take_new(p, wanted.again(), key, real),
    }
}

/// On a route that is not cached.
#[cold]
#[inline(never)]
fn take_new(
    p: &'static Process,
    wanted: Wanted,
    key: Key,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let route = find_route(p, wanted, key);
    take_routed(p, wanted, route, real)
}

#[inline(always)]
fn take_routed(
    p: &'static Process,
    wanted: Wanted,
    route: StreamTarget,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(pool) = route.pool.filter(|pool| pool.is_device_memory()) else {
        return take_other(p, wanted.again(), route, real);
    };
    p.pools.takes(pool);
    let Wanted { size, dptr, .. } = wanted;
    let entry = entry(&wanted, &route, pool.number());
    let complete = |entry: &mut Entry| entry.key = given(dptr);
    if let Some(budget) = p.cap.limited(pool.device())
        && size > 0
        && !dptr.is_null()
    {
        return take(p, Block { p, pool: Some(pool), budget: Some(budget) }, entry, real, complete);
    }
    take(p, Block { p, pool: Some(pool), budget: None }, entry, real, complete)
}

/// The driver returned success, so it has written the address.
#[inline(always)]
fn given(dptr: Out<u64>) -> u64 {
    dptr.get().unwrap_or(0)
}

#[cold]
fn refuse_all(p: &'static Process, wanted: Wanted) -> CUresult {
    refuse(p, &Request::new(wanted.api, Kind::Pool, NO_TARGET, wanted.size), Why::BadCap)
}

/// A block of another pool than those of a device's memory, or of one that is not followed.
#[cold]
fn take_other(
    p: &'static Process,
    wanted: Wanted,
    route: StreamTarget,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    match route.pool {
        Some(pool) => take_counted(p, wanted, route, pool.kind(), real),
        None => match refuse_unfollowed(p, wanted, route) {
            Some(refused) => refused,
            None => {
                let block = Block { p, pool: None, budget: None };
                take(p, block, entry(&wanted, &route, 0), real, |entry| {
                    entry.key = given(wanted.dptr);
                })
            }
        },
    }
}

/// A request for a block of a pool that is not followed, or of none: no cap would hold.
fn refuse_unfollowed(p: &'static Process, wanted: Wanted, route: StreamTarget) -> Option<CUresult> {
    let device = route.target.device;
    (p.pools.has_overflowed() && wanted.size > 0 && p.cap.must_count(device)).then(|| {
        refuse_unrecordable(p, &Request::new(wanted.api, Kind::Pool, route.target, wanted.size))
    })
}

/// Asks again, after a look.
#[cold]
fn ask_again(
    p: &'static Process,
    pool: &'static KnownPool,
    budget: &Budget,
    size: u64,
) -> Result<Ticket, Refusal> {
    refresh_before_refusal(p, pool.device());
    pool.growth.ask_again(Some(budget), size)
}

/// A block of a device's pool. Under a limit of the cap it is counted as growth of the pool.
struct Block {
    p: &'static Process,
    /// `None`: it is not followed.
    pool: Option<&'static KnownPool>,
    /// `None`: no cap limits the request.
    budget: Option<&'static Budget>,
}

impl Account for Block {
    type Promise = Option<InFlight<'static>>;
    type Given = ();

    #[inline(always)]
    fn promise(&self, wanted: &Entry) -> Result<Self::Promise, Refusal> {
        let (size, budget) = (wanted.size, self.budget);
        let (Some(pool), Some(limit)) = (self.pool, budget) else { return Ok(None) };
        let asked = match pool.growth.ask(budget, size) {
            Ok(asked) => asked,
            Err(_) => ask_again(self.p, pool, limit, size)?,
        };
        Ok(Some(InFlight { growth: &pool.growth, budget, size, asked }))
    }

    #[inline(always)]
    fn promise_anyway(&self, wanted: &Entry) -> Self::Promise {
        let (size, budget) = (wanted.size, self.budget);
        let (Some(pool), Some(limit)) = (self.pool, budget) else { return None };
        let asked = pool.growth.ask_anyway(limit, size);
        Some(InFlight { growth: &pool.growth, budget, size, asked })
    }

    #[inline(always)]
    fn withdraw(&self, in_flight: Self::Promise) {
        withdraw(self.p, self.pool, in_flight);
    }

    #[inline(always)]
    fn given(&self, in_flight: Self::Promise) {
        let (p, Some(pool)) = (self.p, self.pool) else { return };
        pool.served();
        if let Some(in_flight) = in_flight {
            let reading = read::<false>(p, pool, || in_flight.ticket());
            in_flight.finish(true, reading, move |change| record_change(p, pool, change));
        }
    }

    #[inline(always)]
    fn enter(&mut self, entry: &Entry, (): ()) -> ControlFlow<CUresult> {
        self.p.ledger.insert(&self.p.trace_writer, entry);
        ControlFlow::Continue(())
    }

    #[inline(always)]
    fn recorded(&self, entry: &Entry) {
        if let (Some(pool), None) = (self.pool, self.budget)
            && (pool.growth.allocated(entry.size) || pool.is_due(entry.time_ns))
        {
            refresh(self.p, pool);
        }
    }

    #[inline(always)]
    fn refuse(&self, wanted: &Entry, why: Why) -> CUresult {
        refuse_at(self.p, wanted.device, wanted.site, wanted.size, why)
    }
}

#[cold]
fn withdraw(
    p: &'static Process,
    pool: Option<&'static KnownPool>,
    in_flight: Option<InFlight<'static>>,
) {
    if let Some(in_flight) = in_flight {
        in_flight.finish(false, None, |_| ());
    }
    if let Some(pool) = pool
        && p.pools.forget_named(pool)
    {
        p.stream_targets.forget();
        end_if_over(p, pool);
    }
}

/// A block from a pool of managed or host memory: each block is counted as an allocation.
fn take_counted(
    p: &'static Process,
    wanted: Wanted,
    route: StreamTarget,
    kind: Kind,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let mut request = Request::new(wanted.api, kind, route.target, wanted.size);
    request.space = Space::Device;
    if kind == Kind::HostPinned {
        request.target.device = DeviceId::UNKNOWN;
    }
    let old = wanted.dptr.get();
    let taken = || (wanted.dptr.get().unwrap_or(0), wanted.size);
    // SAFETY: as `allocate` promises.
    allocate(p, &request, real, taken, |address| unsafe { undo(address, wanted.dptr, old) })
}

/// What is known of a block before the driver's call.
#[inline(always)]
fn entry(wanted: &Wanted, route: &StreamTarget, pool: u32) -> Entry {
    Entry {
        context: route.target.context,
        pool,
        stream: stream_id(wanted.stream, wanted.per_thread),
        site: route.site,
        ..Entry::new(Kind::Pool, 0, wanted.size, route.target.device)
    }
}

/// The context, device and pool of the request are cached for streams that were used before.
#[inline(always)]
fn key(wanted: &Wanted) -> Key {
    let stream = stream_id(wanted.stream, wanted.per_thread);
    let context = if stream <= PER_THREAD_STREAM { current_context() } else { 0 };
    Key { stream, pool: wanted.pool, context, api: wanted.api as u16 }
}

fn find_route(p: &'static Process, wanted: Wanted, key: Key) -> StreamTarget {
    let generation = p.stream_targets.generation();
    let context = match key.context {
        0 if key.stream > PER_THREAD_STREAM => context_of(wanted.stream, wanted.per_thread),
        current => current,
    };
    let mut target = target_of(p, context);
    let pool = match wanted.pool {
        0 => current_pool(p, target.device),
        wanted => named(p, wanted, target.device),
    };
    if let Some(pool) = pool {
        // A pool's memory lies on the pool's device, whatever the stream's is. Managed memory may
        // lie on none: it counts where cuMemAllocManaged's would.
        if pool.device() != DeviceId::UNKNOWN || pool.kind() != Kind::Managed {
            target.device = pool.device();
        }
    }
    let id = pool.map_or(PoolId(0), KnownPool::id);
    let kind = pool.map_or(Kind::Pool, KnownPool::kind);
    let route = StreamTarget {
        target,
        pool,
        site: site(p, wanted.api, Some(kind), target, id, key.stream),
    };
    if target.device != DeviceId::UNKNOWN {
        p.stream_targets.keep(generation, &key, &route);
    }
    route
}

/// The context of a created stream; 0: the driver gives none.
pub(in crate::hooks) fn context_of(stream: Stream, per_thread: bool) -> u64 {
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
