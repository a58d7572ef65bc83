//! The steps by which bytes are counted against a limit. `models/` checks every interleaving of
//! threads: the granted bytes never exceed the limit.

use crate::runtime::atomics::{AtomicU64, Ordering, Ordering::Relaxed, Ordering::SeqCst};

/// A request that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub counted: u64,
    pub limit: u64,
    /// Whether count and limit are the group's.
    pub of_group: bool,
}

/// Adds `bytes` if the count stays at or under the limit. `Err`: the count.
pub fn take_within(count: &AtomicU64, bytes: u64, limit: u64) -> Result<(), u64> {
    let mut counted = count.load(Relaxed);
    loop {
        let next = counted.checked_add(bytes).filter(|next| *next <= limit).ok_or(counted)?;
        match count.compare_exchange_weak(counted, next, SeqCst, Relaxed) {
            Ok(_) => return Ok(()),
            Err(seen) => counted = seen,
        }
    }
}

/// Adds a signed delta, stopping at both ends. False: it would have gone below zero. `order`: `SeqCst` where it must be in
/// one order with what other members do.
pub fn add_saturating(total: &AtomicU64, delta: i64, order: Ordering) -> bool {
    let step = |now: u64| match delta >= 0 {
        true => now.saturating_add(delta as u64),
        false => now.saturating_sub(delta.unsigned_abs()),
    };
    let before = total.fetch_update(order, order, |now| Some(step(now))).unwrap_or(0);
    delta >= 0 || delta.unsigned_abs() <= before
}
