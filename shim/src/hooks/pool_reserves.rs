//! Reserved and used bytes of pools, read from the driver.

use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::hooks::state::Process;
use crate::model::cap::{Change, Reading, Ticket};
use crate::model::ledger::Entry;
use crate::model::pools::{GONE, Pool as KnownPool};
use vramtrace_format::{DeviceId, Event, Kind};

/// The last block of a destroyed pool was freed: the pool reserves nothing any more.
#[cold]
pub fn record_pool_end(p: &'static Process, pool: &'static KnownPool) {
    let ticket = pool.growth.ticket();
    let budget = p.cap.budget(pool.device());
    pool.growth.observe(budget, ticket, GONE, |change| record_change(p, pool, change));
}

/// Records that a pool's reserved bytes changed.
pub fn record_change(p: &'static Process, pool: &'static KnownPool, change: Change) {
    let Change { delta, reserved, used } = change;
    let now = p.clock.now_ns();
    p.ledger.add_reserved(&p.trace_writer, pool.device(), Kind::Pool, delta, now);
    p.trace_writer.record_at(now, &Event::PoolState { pool: pool.id(), reserved, used });
}

/// The driver's figures; `None` where the driver may not be called now, or gives none.
pub fn read(p: &'static Process, pool: &KnownPool) -> Option<(Ticket, Reading)> {
    if p.stream_captures.any() || pool.kind() != Kind::Pool {
        return None;
    }
    let handle = pool.handle()? as Pool;
    let get = driver().mem_pool_get_attribute?;
    let ticket = pool.growth.ticket();
    let one = |attribute| {
        let mut value = 0u64;
        // SAFETY: the attribute is a u64.
        let result = inside(|| unsafe { get(handle, attribute, (&raw mut value).cast()) });
        (result == 0).then_some(value)
    };
    let reserved = one(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    let used = one(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
    Some((ticket, Reading { reserved, used }))
}

#[cold]
pub fn refresh(p: &'static Process, pool: &'static KnownPool) {
    if let Some((ticket, reading)) = read(p, pool) {
        let budget = p.cap.budget(pool.device());
        pool.growth.observe(budget, ticket, reading, |change| record_change(p, pool, change));
    }
}

/// After a synchronisation: reads the pools in which blocks were freed, since they may have released
/// memory.
#[inline]
pub fn refresh_after_frees(p: &'static Process) {
    if p.pools.any_freed() {
        for pool in p.pools.take_freed() {
            refresh(p, pool);
        }
    }
}

/// Before a refusal: reads all pools of the device, since they may have released memory.
pub fn refresh_all(p: &'static Process, device: DeviceId) {
    for pool in p.pools.all().filter(|pool| pool.device() == device) {
        refresh(p, pool);
    }
}

/// A block was freed. Its pool may keep the memory or release it, now or later; a destroyed pool ends
/// with its last block.
#[inline]
pub fn block_freed(p: &'static Process, entry: &Entry, now: u64) {
    let Some(pool) = p.pools.by_id(entry.pool) else { return };
    p.pools.freed_one(pool);
    if pool.freed(entry.size).is_some() {
        record_pool_end(p, pool);
    } else if pool.is_due(now) {
        refresh(p, pool);
    }
}
