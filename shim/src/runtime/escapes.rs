//! Events that may let driver calls bypass this library: each is reported once, in the trace and by
//! `vramtrace doctor`.

use crate::runtime::attention;
use core::sync::atomic::{AtomicU8, Ordering};
pub use vramtrace_format::escape::Escape;

static ESCAPES: AtomicU8 = AtomicU8::new(0);

/// The events so far, as bits of [`Escape`].
pub fn escapes() -> u8 {
    ESCAPES.load(Ordering::Relaxed)
}

/// Notes an event. Returns true if it is the first of its kind.
pub fn escaped(escape: Escape) -> bool {
    let is_first = escapes() & escape as u8 == 0
        && ESCAPES.fetch_or(escape as u8, Ordering::Relaxed) & escape as u8 == 0;
    if is_first {
        attention::ask(attention::ESCAPED);
    }
    is_first
}
