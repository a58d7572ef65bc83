//! Runs a log through the cache under one setting and one limit.

use super::rounding::OWN_SEGMENT_STEP;
use super::{BlockId, Cache, Conf, Log, Request};

/// What came of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    /// cudaMalloc calls, or pages' cuMemCreate runs with expandable segments.
    pub driver_allocations: u64,
    pub driver_frees: u64,
    /// Times that the cache was emptied to serve a request.
    pub retries: u64,
    /// Index of the request that could not be served, if one could not: the replay ends there.
    pub failed_at: Option<usize>,
}

impl Outcome {
    pub fn fits(&self) -> bool {
        self.failed_at.is_none()
    }
}

/// `limit`: the most bytes that may be reserved.
pub fn replay(log: &Log, conf: &Conf, limit: Option<u64>) -> Outcome {
    let mut cache = Cache::new(conf.clone(), limit);
    let mut blocks: Vec<BlockId> = Vec::with_capacity(log.allocations());
    let mut failed_at = None;
    for (index, request) in log.requests.iter().enumerate() {
        match *request {
            Request::Alloc { size, stream, pool } => match cache.alloc(size, stream, pool) {
                Ok(block) => blocks.push(block),
                Err(_) => {
                    failed_at = Some(index);
                    break;
                }
            },
            Request::Free { allocation } => cache.free(blocks[allocation as usize]),
            Request::EmptyCache => cache.empty(),
        }
    }
    let totals = cache.totals();
    Outcome {
        peak_reserved: totals.peak_reserved,
        peak_allocated: totals.peak_allocated,
        driver_allocations: totals.driver_allocations,
        driver_frees: totals.driver_frees,
        retries: totals.retries,
        failed_at,
    }
}

/// The least limit, to 2 MiB, under which the log is served to its end; found by search, as retries
/// make room that peaks do not show. `None` for a log that fails without a limit.
///
/// More room is taken to be no worse; where the allocator breaks that, the answer still fits.
pub fn smallest_capacity(log: &Log, conf: &Conf) -> Option<u64> {
    let free = replay(log, conf, None);
    if !free.fits() {
        return None;
    }
    let pages = |bytes: u64| bytes.div_ceil(OWN_SEGMENT_STEP);
    let (mut fails, mut fits) =
        (pages(free.peak_allocated).saturating_sub(1), pages(free.peak_reserved));
    while fits - fails > 1 {
        let middle = fails + (fits - fails) / 2;
        if replay(log, conf, Some(middle * OWN_SEGMENT_STEP)).fits() {
            fits = middle;
        } else {
            fails = middle;
        }
    }
    Some(fits * OWN_SEGMENT_STEP)
}
