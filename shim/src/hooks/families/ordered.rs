//! Stream-ordered allocation (cuMemAllocAsync and related functions): blocks inside pools.

use super::alloc::{given, undo};
use super::graph::take_captured;
use super::pool::{current_pool, named};
use super::prelude::*;
use super::stream::{PER_THREAD_STREAM, StreamOfCall};
use crate::hooks::call::accounting::{self, came, record};
use crate::hooks::call::request::{ask_again, refuse_at, refuse_unrecordable};
use crate::hooks::process::pool_reserves::{end_if_over, read, record_change, refresh};
use crate::hooks::process::target::{current_context, target_of};
use crate::model::cap::{Budget, InFlight, Ticket};
use crate::model::pools::Pool as KnownPool;
use crate::model::stream_targets::{Key, StreamTarget};

/// A request for a block: what the call takes.
#[derive(Clone, Copy)]
struct Wanted {
    stream: StreamOfCall,
    /// 0 = the current pool of the stream's device.
    pool: u64,
    dptr: Out<u64>,
    size: u64,
}

impl Wanted {
    /// For a function off the usual path: what has its address taken is kept in memory.
    #[inline(always)]
    fn again(&self) -> Wanted {
        let Wanted { stream, pool, dptr, size } = *self;
        Wanted { stream, pool, dptr, size }
    }
}

/// `pool`: null where the call names none.
#[inline(always)]
pub fn allocate(
    call: Call<impl Row>,
    dptr: Out<u64>,
    bytesize: usize,
    pool: Pool,
    stream: Stream,
) -> CUresult {
    let (p, stream) = (call.p, StreamOfCall::new(call, stream));
    let wanted = Wanted { stream, pool: pool as u64, dptr, size: bytesize as u64 };
    if p.cap.is_bad() {
        return refuse_all(call, wanted.size);
    }
    if stream.is_captured(p) {
        return take_captured(call, dptr, wanted.size);
    }
    let key = key(call.api(), &wanted);
    match p.stream_targets.find(&key) {
        Some(route) => take_routed(call, wanted, route),
        None => take_new(call, wanted.again(), key),
    }
}

#[inline(always)]
pub fn free(call: Call<impl Row>, dptr: u64, stream: Stream) -> CUresult {
    let stream = StreamOfCall::new(call, stream);
    if stream.is_captured(call.p) {
        // On a capturing stream this creates a free node.
        return call.forward();
    }
    accounting::free(call, (Space::Device, dptr), stream.id())
}

/// On a route that is not cached.
#[cold]
#[inline(never)]
fn take_new(call: Call<impl Row>, wanted: Wanted, key: Key) -> CUresult {
    take_routed(call, wanted, find_route(call.p, call.api(), wanted, key))
}

#[inline(always)]
fn take_routed(call: Call<impl Row>, wanted: Wanted, route: StreamTarget) -> CUresult {
    let p = call.p;
    let Some(pool) = route.pool.filter(|pool| pool.is_device_memory()) else {
        return take_other(call, wanted.again(), route);
    };
    pool.takes();
    if let Some(budget) = p.cap.limited(pool.device())
        && wanted.size > 0
        && !wanted.dptr.is_null()
    {
        return take(call, wanted, &route, Some(pool), Some(budget));
    }
    take(call, wanted, &route, Some(pool), None)
}

/// A block of a device's pool: promise, driver, ledger, trace file. Under a limit of the cap it is counted as growth of the pool.
/// `pool`: `None`, if it is not followed. `budget`: `None`, if no cap limits the request.
#[inline(always)]
fn take(
    call: Call<impl Row>,
    wanted: Wanted,
    route: &StreamTarget,
    pool: Option<&'static KnownPool>,
    budget: Option<&'static Budget>,
) -> CUresult {
    let (p, Wanted { size, dptr, .. }) = (call.p, wanted);
    // Made before the driver's call, where it stays: what would be kept for it across the call is stored once.
    let mut entry = Entry {
        context: route.target.context,
        pool: pool.map_or(0, KnownPool::number),
        stream: wanted.stream.id(),
        site: route.site,
        ..Entry::new(Kind::Pool, 0, size, route.target.device)
    };
    let mut in_flight = None;
    if let (Some(pool), Some(budget)) = (pool, budget) {
        let asked = match pool.growth.ask(budget, size) {
            Ok(asked) => asked,
            Err(_) => match grow_again(p, pool, budget, &entry) {
                Ok(asked) => asked,
                Err(refused) => return refused,
            },
        };
        in_flight = Some(InFlight { growth: &pool.growth, budget, size, asked });
    }
    let result = call.forward();
    if result != 0 {
        withdraw(p, pool, in_flight);
        return refuse_at(p, entry.device, entry.site, size, Why::Driver(result));
    }
    if let Some(pool) = pool {
        pool.served();
        if let Some(in_flight) = in_flight {
            let reading = read::<false>(p, pool, || in_flight.ticket());
            in_flight.finish(true, reading, move |change| record_change(p, pool, change));
        }
    }
    entry.key = given(dptr);
    came(p, &mut entry);
    p.ledger.insert(&p.trace_writer, &entry);
    record(p, &entry);
    if let (Some(pool), None) = (pool, budget)
        && (pool.growth.allocated(size) || pool.growth.is_due(entry.time_ns))
    {
        refresh(p, pool);
    }
    0
}

#[cold]
fn refuse_all(call: Call<impl Row>, size: u64) -> CUresult {
    refuse(call.p, &Request::new(call.api(), Kind::Pool, NO_TARGET, size), Why::BadCap)
}

/// A block of another pool than those of a device's memory, or of one that is not followed.
#[cold]
fn take_other(call: Call<impl Row>, wanted: Wanted, route: StreamTarget) -> CUresult {
    let (p, target) = (call.p, route.target);
    let Wanted { dptr, size, .. } = wanted;
    if let Some(pool) = route.pool {
        // Of managed or host memory: each block is counted as an allocation.
        let mut request = Request::new(call.api(), pool.kind(), target, size);
        request.space = Space::Device;
        if pool.kind() == Kind::HostPinned {
            request.target.device = DeviceId::UNKNOWN;
        }
        return accounting::allocate(call, &request, || (given(dptr), size), undo(dptr));
    }
    // One that is not followed, or none: no cap would hold.
    if p.pools.has_overflowed() && size > 0 && p.cap.must_count(target.device) {
        return refuse_unrecordable(p, &Request::new(call.api(), Kind::Pool, target, size));
    }
    take(call, wanted, &route, None, None)
}

/// Asks for the block again. `Err`: the result for the program.
#[cold]
fn grow_again(
    p: &'static Process,
    pool: &'static KnownPool,
    budget: &Budget,
    &Entry { device, site, size, .. }: &Entry,
) -> Result<Ticket, CUresult> {
    let ask = || pool.growth.ask_again(budget, size);
    let anyway = || pool.growth.ask_anyway(budget, size);
    ask_again(p, pool.device(), ask, anyway, |why| refuse_at(p, device, site, size, why))
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

/// The context, device and pool of the request are cached for streams that were used before.
#[inline(always)]
fn key(api: Api, wanted: &Wanted) -> Key {
    let stream = wanted.stream.id();
    let context = if stream <= PER_THREAD_STREAM { current_context() } else { 0 };
    Key { stream, pool: wanted.pool, context, api: api as u16 }
}

fn find_route(p: &'static Process, api: Api, wanted: Wanted, key: Key) -> StreamTarget {
    let generation = p.stream_targets.generation();
    let context = match key.context {
        0 if key.stream > PER_THREAD_STREAM => wanted.stream.context(),
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
    let site = site(p, api, Some(kind), target, id, key.stream);
    let route = StreamTarget { target, pool, site };
    if target.device != DeviceId::UNKNOWN {
        p.stream_targets.keep(generation, &key, &route);
    }
    route
}
