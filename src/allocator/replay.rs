//! Runs a log through the cache under one setting and one capacity.

use super::rounding::OWN_SEGMENT_STEP;
use super::{BlockId, Cache, Conf, Log, Request, Totals};

/// What came of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayOutcome {
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    /// Highest sum of what is reserved and what others than PyTorch's cache held then.
    pub peak_total: u64,
    /// Highest sum of what is allocated and what others held: no setting needs less.
    pub peak_needed: u64,
    /// cudaMalloc calls, or pages' cuMemCreate runs with expandable segments.
    pub driver_allocations: u64,
    pub driver_frees: u64,
    /// Times that the cache was emptied to serve a request.
    pub retries: u64,
    pub failure: Option<ReplayFailure>,
}

/// Where a replay ends before its log does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayFailure {
    /// Index of the request that could not be served.
    pub at: usize,
    /// Others took what the cache held already: not PyTorch's request failed but theirs.
    pub outside: bool,
}

impl ReplayOutcome {
    pub fn fits(&self) -> bool {
        self.failure.is_none()
    }
}

/// `capacity`: the bytes of the card or the cap, for the cache and what is outside of it.
pub fn replay(log: &Log, conf: &Conf, capacity: Option<u64>) -> ReplayOutcome {
    let mut cache = Cache::new(conf.clone(), capacity);
    // By slot: as many as are live at once.
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
    }
}

/// The least capacity under which the log is served to its end, found by search, as retries make
/// room that peaks do not show. `free` is the outcome without a limit. To 2 MiB, or a thousandth;
/// the answer itself fits. `None` for a log that fails without a limit.
///
/// More room is taken to be no worse; where the allocator breaks that, the answer still fits.
pub fn smallest_capacity(log: &Log, conf: &Conf, free: &ReplayOutcome) -> Option<u64> {
    if !free.fits() {
        return None;
    }
    let pages = |bytes: u64| bytes.div_ceil(OWN_SEGMENT_STEP);
    let served = |pages: u64| replay(log, conf, Some(pages * OWN_SEGMENT_STEP)).fits();
    let (mut fails, mut fits) = (pages(free.peak_needed).saturating_sub(1), pages(free.peak_total));
    let grain = (fits / 1024).max(1);
    // Most answers lie near the least that could do, and what fails ends early: steps that grow.
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
