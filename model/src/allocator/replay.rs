//! Replays a log through the cache under one setting and one capacity. Sizes are bytes.

use super::rounding::OWN_SEGMENT_STEP;
use super::{BlockId, Cache, Conf, Log, ReplayFailure, ReplayOutcome, Request};

/// Replays a log. `capacity`: bytes of the card or the cap, for the cache and the memory outside of it;
/// `None`: no limit.
pub fn replay(log: &Log, conf: &Conf, capacity: Option<u64>) -> ReplayOutcome {
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
    ReplayOutcome { failure, ..cache.totals().clone() }
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
    Some(bisected(fails, fits, grain, served) * OWN_SEGMENT_STEP)
}

/// Between a value that is not served and one that is: one that is served, no further than `grain` from one that is not.
pub fn bisected(mut fails: u64, mut fits: u64, grain: u64, served: impl Fn(u64) -> bool) -> u64 {
    while fails.abs_diff(fits) > grain {
        let middle = fails.midpoint(fits);
        *(if served(middle) { &mut fits } else { &mut fails }) = middle;
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Between the least that is allocated (232 MiB) and the most that is reserved (520 MiB): the cache gives back what
    /// no block pins.
    #[test]
    fn the_smallest_capacity_is_that_at_which_retries_free_enough() {
        let mut log = Log::default();
        for (address, size, freed) in
            [(1, 100, true), (2, 12, false), (3, 200, true), (4, 220, false)]
        {
            log.alloc(address, size * MIB, 0, 0);
            if freed {
                log.free(address);
            }
        }
        let conf = Conf::default();
        let free = replay(&log, &conf, None);
        assert_eq!((free.peak_needed, free.peak_total), (232 * MIB, 520 * MIB));
        assert_eq!(smallest_capacity(&log, &conf, &free), Some(320 * MIB));
        let fits = |mib: u64| replay(&log, &conf, Some(mib * MIB)).fits();
        assert!(fits(320) && !fits(318));
    }
}
