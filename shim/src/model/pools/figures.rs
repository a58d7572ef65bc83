//! The figures that the trace has for pools. Pools that share an id have one sum.

use super::Pools;
use super::pool::Pool;
use std::sync::atomic::Ordering;
use vramtrace_format::{Event, PoolId};

impl Pools {
    /// Calls `record` with the figures that the trace has for the pool's id: its own, or the sum of the pools
    /// that share the id, in the order of their changes.
    pub fn record(&self, pool: &Pool, now: [u64; 2], record: impl FnOnce([u64; 2])) {
        if !pool.shares_id() {
            return record(now);
        }
        let mut shared = self.shared.lock();
        let Some(sums) = shared.get_mut(&pool.id().0) else { return };
        for ((sum, reported), now) in sums.iter_mut().zip(&pool.reported).zip(now) {
            let before = reported.swap(now, Ordering::Relaxed);
            *sum = sum.saturating_sub(before).saturating_add(now);
        }
        record(*sums);
    }

    /// Writes the figures of each pool. Later changes follow in the file as `PoolState`.
    pub fn checkpoint(&self, id: u32, emit: &mut dyn FnMut(&Event)) {
        let mut emit = |pool, reserved, used| {
            if reserved != 0 || used != 0 {
                emit(&Event::CheckpointPool { id, pool, reserved, used });
            }
        };
        for pool in self.all().filter(|pool| !pool.shares_id()) {
            let (reserved, used) = pool.growth.known();
            emit(pool.id(), reserved, used);
        }
        for (pool, [reserved, used]) in self.shared.lock().iter() {
            emit(PoolId(*pool), *reserved, *used);
        }
    }
}
