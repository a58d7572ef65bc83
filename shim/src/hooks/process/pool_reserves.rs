//! Reserved and used bytes of pools, read from the driver.

use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::hooks::process::state::Process;
use crate::model::cap::{Change, Reading, Ticket};
use crate::model::ledger::Entry;
use crate::model::pools::{GONE, Pool as KnownPool};
use vramtrace_format::{DeviceId, Event, Kind};

/// Ends a destroyed pool whose last block was freed: it reserves nothing any more.
#[inline]
pub fn end_if_over(p: &'static Process, pool: &'static KnownPool) -> bool {
    let is_over = pool.is_over();
    if is_over {
        end(p, pool);
    }
    is_over
}

#[cold]
fn end(p: &'static Process, pool: &'static KnownPool) {
    p.pools.end(pool, || {
        let ticket = pool.growth.ticket();
        let budget = p.cap.budget(pool.device());
        pool.growth.observe(budget, ticket, GONE, |change| record_change(p, pool, change));
    });
}

/// Records that a pool's reserved bytes changed.
pub fn record_change(p: &'static Process, pool: &'static KnownPool, change: Change) {
    let Change { delta, reserved, used } = change;
    let now = p.clock.now_ns();
    p.ledger.add_reserved(&p.trace_writer, pool.device(), Kind::Pool, delta, now);
    p.trace_writer.record_at(now, &Event::PoolState { pool: pool.id(), reserved, used });
}

/// The driver's figures; `None` where the driver may not be called now, or gives none. After a request the reserved bytes
/// are enough: it may have made the pool grow, and the used bytes are those of the ledger.
#[inline(always)]
pub fn read<const WITH_USED: bool>(
    p: &'static Process,
    pool: &KnownPool,
    ticket: impl FnOnce() -> Ticket,
) -> Option<(Ticket, Reading)> {
    if p.stream_captures.any() || !pool.is_device_memory() {
        return None;
    }
    let get = driver().mem_pool_get_attribute?;
    let (handle, _reading) = pool.begin_reading()?;
    let (ticket, handle) = (ticket(), handle as Pool);
    let mut figures = [0u64; 2];
    let [reserved, used] = figures.each_mut().map(|figure| &raw mut *figure);
    // The closures move what they use: its address is not taken.
    let result = inside(move || {
        // SAFETY: the attribute is a u64.
        let one = move |attribute, value: *mut u64| unsafe { get(handle, attribute, value.cast()) };
        match one(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved) {
            0 if WITH_USED => one(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, used),
            result => result,
        }
    });
    let [reserved, used] = figures;
    (result == 0).then_some((ticket, Reading { reserved, used: WITH_USED.then_some(used) }))
}

#[cold]
pub fn refresh(p: &'static Process, pool: &'static KnownPool) {
    if let Some((ticket, reading)) = read::<true>(p, pool, || pool.growth.ticket()) {
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
    for pool in p.pools.active().filter(|pool| pool.device() == device) {
        if !end_if_over(p, pool) {
            refresh(p, pool);
        }
        pool.rests();
    }
}

/// A block was freed. Its pool may keep the memory or release it, now or later; a destroyed pool ends
/// with its last block.
#[inline(always)]
pub fn block_freed(p: &'static Process, entry: &Entry, now: u64) {
    let Some(pool) = p.pools.by_number(entry.pool) else { return };
    p.pools.freed_one(pool);
    pool.growth.freed(entry.size);
    if !end_if_over(p, pool) && pool.growth.is_due(now) {
        refresh(p, pool);
    }
}
