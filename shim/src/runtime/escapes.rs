//! What happened in the process that may let driver calls go past the library: reported once each, in
//! the trace and by `vramtrace doctor`.

use core::sync::atomic::{AtomicU8, Ordering};
pub use vramtrace_format::escape::Escape;

static ESCAPES: AtomicU8 = AtomicU8::new(0);

/// Bits of [`Escape`].
#[inline]
pub fn escapes() -> u8 {
    ESCAPES.load(Ordering::Relaxed)
}

/// True: it is the first one of its kind.
pub fn escaped(escape: Escape) -> bool {
    escapes() & escape as u8 == 0
        && ESCAPES.fetch_or(escape as u8, Ordering::Relaxed) & escape as u8 == 0
}
