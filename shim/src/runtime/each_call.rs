//! What nearly every call reads of `runtime`, on one line of the cache.

use super::ticks::Ticks;
use core::sync::atomic::{AtomicU8, AtomicU64};

/// Nothing that is written more often than the anchor of the clock, once a millisecond, lies beside it.
#[repr(align(64))]
pub struct EachCall {
    pub ticks: Ticks,
    /// See [`super::attention`].
    pub asked: AtomicU8,
    /// See `capture/python/freed_codes.rs`.
    pub codes_freed: AtomicU64,
}

pub static EACH_CALL: EachCall =
    EachCall { ticks: Ticks::new(), asked: AtomicU8::new(0), codes_freed: AtomicU64::new(0) };
