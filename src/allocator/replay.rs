//! Replays a log through the cache under one setting and one capacity. Sizes are bytes.

use super::rounding::OWN_SEGMENT_STEP;
use super::{BlockId, Cache, Conf, Log, Request, Totals, driver_pool};

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayOutcome {
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    /// Highest sum of the reserved bytes and the bytes outside of the cache.
    pub peak_total: u64,
    /// Highest sum of the allocated bytes and the bytes outside of the cache: no setting needs less.
    pub peak_needed: u64,
    /// Calls of cudaMalloc, or mappings of pages with expandable segments.
    pub driver_allocations: u64,
    pub driver_frees: u64,
    /// Times that the cache was emptied to serve a request.
    pub retries: u64,
    pub failure: Option<ReplayFailure>,
    /// Only of the driver's pool, whose `peak_reserved` and `peak_total` are the most that it may take.
    pub least: Option<Least>,
}

/// The least bytes that the driver's pool takes at its peaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Least {
    pub reserved: u64,
    /// With the bytes outside.
    pub total: u64,
}

/// The request at which a replay ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayFailure {
    /// Index of the request that could not be served.
    pub at: usize,
    /// The bytes outside of the cache did not fit: no request of PyTorch failed.
    pub outside: bool,
}

impl ReplayOutcome {
    /// Whether all requests were served.
    pub fn fits(&self) -> bool {
        self.failure.is_none()
    }
}

/// Replays a log. `capacity`: bytes of the card or the cap, for the cache and the memory outside of it;
/// `None`: no limit.
pub fn replay(log: &Log, conf: &Conf, capacity: Option<u64>) -> ReplayOutcome {
    if conf.driver_pool {
        return driver_pool::replay(log, capacity);
    }
    let mut cache = Cache::new(conf.clone(), capacity);
    // By slot.
    let mut blocks: Vec<BlockId> = cache.adopt(log.start());
    let mut failure = None;
    for (at, request) in log.requests().enumerate() {
        let served = match request {
            Request::Alloc { size, stream, pool, slot } => {
                cache.alloc(size, stream, pool).map(|block| match blocks.get_mut(slot as usize) {
                    Some(place) => *place = block,
                    None => blocks.push(block),
                })
            }
            Request::Free { slot } => {
                cache.free(blocks[slot as usize]);
                Ok(())
            }
            Request::EmptyCache => {
                cache.empty();
                Ok(())
            }
            Request::PoolEnds { pool } => {
                cache.pool_ends(pool);
                Ok(())
            }
            Request::Outside { bytes } => cache.set_outside(bytes),
        };
        if served.is_err() {
            failure =
                Some(ReplayFailure { at, outside: matches!(request, Request::Outside { .. }) });
            break;
        }
    }
    let Totals {
        peak_reserved,
        peak_allocated,
        peak_total,
        peak_needed,
        driver_allocations,
        driver_frees,
        retries,
        ..
    } = cache.totals();
    ReplayOutcome {
        peak_reserved,
        peak_allocated,
        peak_total,
        peak_needed,
        driver_allocations,
        driver_frees,
        retries,
        failure,
        least: None,
    }
}

/// The lowest sufficient capacity, to 2 MiB or a thousandth. It is found by search, because retries free
/// memory that peaks include. `free`: the outcome without a limit. `None`: the log fails without a limit.
///
/// The search takes it that a larger capacity is no worse. Where that does not hold, the result is
/// sufficient, but may not be the lowest.
pub fn smallest_capacity(log: &Log, conf: &Conf, free: &ReplayOutcome) -> Option<u64> {
    if !free.fits() {
        return None;
    }
    if conf.driver_pool {
        return Some(free.peak_total);
    }
    let pages = |bytes: u64| bytes.div_ceil(OWN_SEGMENT_STEP);
    let served = |pages: u64| replay(log, conf, Some(pages * OWN_SEGMENT_STEP)).fits();
    let (mut fails, mut fits) = (pages(free.peak_needed).saturating_sub(1), pages(free.peak_total));
    let grain = (fits / 1024).max(1);
    // Most results are near the lower bound, and failing replays end early: the steps grow from there.
    let mut step = (fits / 128).max(1);
    while fits - fails > step {
        if served(fails + step) {
            fits = fails + step;
            break;
        }
        fails += step;
        step *= 2;
    }
    while fits - fails > grain {
        let middle = fails + (fits - fails) / 2;
        if served(middle) {
            fits = middle;
        } else {
            fails = middle;
        }
    }
    Some(fits * OWN_SEGMENT_STEP)
}
