//! What each call looks for and hardly ever finds, in one word on one line of the cache. A bit says only where to look: the
//! rest is with who asks.

use super::each_call::EACH_CALL;
use std::sync::atomic::Ordering;

/// The kernel has refused memory for the recorder's tables. It stays.
pub const RAN_OUT: u8 = 1;
/// Little of the [reserve](super::reserve) is left. It stays.
pub const LOW: u8 = 2;
/// Calls may have bypassed this library: see [`super::escapes`].
pub const ESCAPED: u8 = 4;
/// There is something to report of a limit.
pub const NEWS: u8 = 8;

#[inline(always)]
pub fn is_any() -> bool {
    EACH_CALL.asked.load(Ordering::Relaxed) != 0
}

#[inline(always)]
pub fn is_asked(what: u8) -> bool {
    EACH_CALL.asked.load(Ordering::Relaxed) & what != 0
}

#[cold]
pub fn ask(what: u8) {
    EACH_CALL.asked.fetch_or(what, Ordering::AcqRel);
}

/// To be called before the look, so that what comes later asks again.
#[cold]
pub fn met(what: u8) {
    EACH_CALL.asked.fetch_and(!what, Ordering::AcqRel);
}
